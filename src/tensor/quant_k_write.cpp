// The K formats, made as ggml's reference makes them (github ggml-org/ggml, src/ggml-quants.c): the
// groups of a block are fitted one by one, then their scales are rounded to small integers, and the
// numbers are rounded anew by the steps that a reader will see. A file made here may differ from
// ggml's in a few scales, not in its error; q2_k and q3_k, which weigh an error by the size of its
// number where ggml has absolute errors and squares, come nearer. Where the importance of the
// columns is known, the scales of the groups are fitted in turn, each weighed by what hangs on it.
#include "tensor/quant_fit.h"
#include "tensor/quant_k.h"
#include "tensor/quant_rounding.h"

namespace moe {
namespace {

// A block of a format with an offset, before its bits are packed.
template <int kGroup>
struct Lined {
  static constexpr int kGroups = kSuperBlock / kGroup;
  float d, dmin;                        // as they are stored
  int scale[kGroups], offset[kGroups];  // 0..top of the scales
  int q[kSuperBlock];
};

template <class Fan, int kGroup>
Lined<kGroup> fit_lines(const float* x, const float* importance, float top,
                        BlockRounding* rounding) {
  constexpr int kGroups = Lined<kGroup>::kGroups;
  Lined<kGroup> block{};
  float weight[kSuperBlock], scale[kGroups], offset[kGroups];
  if (importance != nullptr) weigh<kSuperBlock>(weight, x, importance, 2);
  float on_scale[kGroups], on_offset[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const float* of_group = x + g * kGroup;
    float* w = weight + g * kGroup;
    if (importance == nullptr) weigh_by_size<kGroup>(w, of_group);
    const Line line = importance == nullptr ? fit_line<Fan, kGroup>(of_group, w)
                                            : fit_line<Closely<Fan>, kGroup>(of_group, w);
    scale[g] = line.scale;
    offset[g] = line.offset;
    const float per_step = finite_ratio(1, line.scale);
    on_scale[g] = sum_over<float, kGroup>([&](int i) {
      const float q = clamped(nearest_even((of_group[i] + line.offset) * per_step), 0, Fan::top);
      return w[i] * q * q;
    });
    on_offset[g] = sum_over<float, kGroup>([&](int i) { return w[i]; });
  }
  const auto settle = [&](float& d, int* out, const float* values, const float* on) {
    float largest = 0;
    for (int g = 0; g < kGroups; ++g) largest = std::max(largest, values[g]);
    const float step =
        importance == nullptr ? largest / top : fit_positive<kGroups>(values, on, top);
    d = f16_to_f32(f32_to_f16(step));
    const float inverse = finite_ratio(1, importance == nullptr ? step : d);
    for (int g = 0; g < kGroups; ++g)
      out[g] = static_cast<int>(clamped(nearest_even(inverse * values[g]), 0, top));
  };
  settle(block.d, block.scale, scale, on_scale);
  settle(block.dmin, block.offset, offset, on_offset);
  float step[kGroups], below[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    step[g] = block.d * static_cast<float>(block.scale[g]);
    below[g] = block.dmin * static_cast<float>(block.offset[g]);
  }
  if (rounding != nullptr) {
    rounding->round(block.q, x, {kSuperBlock, kGroup, static_cast<int>(Fan::top), step, below});
    return block;
  }
  for (int j = 0; j < kSuperBlock; ++j)
    block.q[j] = static_cast<int>(
        clamped(nearest_even((x[j] + below[j / kGroup]) / step[j / kGroup]), 0, Fan::top));
  return block;
}

// Eight scales and eight offsets of six bits in twelve bytes, as quant_k.cpp reads them.
void write_six_bits(uint8_t* at, const int* scale, const int* offset) {
  for (int i = 0; i < 4; ++i) {
    at[i] = static_cast<uint8_t>(scale[i] | (scale[i + 4] >> 4) << 6);
    at[i + 4] = static_cast<uint8_t>(offset[i] | (offset[i + 4] >> 4) << 6);
    at[i + 8] = static_cast<uint8_t>((scale[i + 4] & 15) | (offset[i + 4] & 15) << 4);
  }
}

// Both formats of six-bit scales begin alike: d, dmin, the scales.
template <class Fan>
Lined<32> write_lines(uint8_t* block, const float* x, const float* importance,
                      BlockRounding* rounding) {
  const Lined<32> lined = fit_lines<Fan, 32>(x, importance, 63, rounding);
  store_half(block, lined.d);
  store_half(block + 2, lined.dmin);
  write_six_bits(block + 4, lined.scale, lined.offset);
  return lined;
}

// A block of a format without an offset: a scale for each 16 numbers.
constexpr int kSixteen = 16, kOfSixteen = kSuperBlock / kSixteen;
struct Scaled {
  float scale[kOfSixteen];
  float on[kOfSixteen];  // what hangs on each: sum w q^2
};

// weight [256]
template <int kReach>
Scaled fit_scales(const float* x, const float* weight) {
  Scaled fitted{};
  for (int g = 0; g < kOfSixteen; ++g) {
    const float *of_group = x + g * kSixteen, *w = weight + g * kSixteen;
    fitted.scale[g] = fit_scale<kReach, kSixteen>(of_group, w);
    const float inverse = finite_ratio(1, fitted.scale[g]);
    fitted.on[g] = sum_over<float, kSixteen>([&](int i) {
      const float q = clamped(nearest_even(inverse * of_group[i]), -kReach, kReach - 1);
      return w[i] * q * q;
    });
  }
  return fitted;
}

// The scale of the largest magnitude, with its sign.
float largest_of(const Scaled& fitted) {
  float largest = 0;
  for (const float scale : fitted.scale)
    if (std::abs(scale) > std::abs(largest)) largest = scale;
  return largest;
}

// q [256] = x in steps of d factor_g, from -kReach on.
template <int kReach>
void round_anew(int* q, const float* x, float d, const float* factor, BlockRounding* rounding) {
  float step[kOfSixteen], below[kOfSixteen];
  for (int g = 0; g < kOfSixteen; ++g) {
    step[g] = d * factor[g];
    below[g] = step[g] * kReach;
  }
  if (rounding != nullptr)
    return rounding->round(q, x, {kSuperBlock, kSixteen, 2 * kReach - 1, step, below});
  for (int j = 0; j < kSuperBlock; ++j)
    q[j] = static_cast<int>(clamped(nearest_even(x[j] / step[j / kSixteen]), -kReach, kReach - 1)) +
           kReach;
}

// Byte j of each half's 32 holds the lower two bits of number j of its four runs of 32.
void write_two_bits(uint8_t* at, const int* q) {
  for (int half = 0; half < 2; ++half, at += 32, q += 128)
    for (int j = 0; j < 32; ++j)
      at[j] = static_cast<uint8_t>((q[j] & 3) | (q[j + 32] & 3) << 2 | (q[j + 64] & 3) << 4 |
                                   (q[j + 96] & 3) << 6);
}

}  // namespace

void write_q4_k(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  const Lined<32> lined = write_lines<FourBits>(block, x, importance, rounding);
  for (int g = 0; g < 8; g += 2)
    for (int j = 0; j < 32; ++j)
      block[16 + g * 16 + j] =
          static_cast<uint8_t>(lined.q[g * 32 + j] | lined.q[(g + 1) * 32 + j] << 4);
}

void write_q5_k(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  const Lined<32> lined = write_lines<FiveBits>(block, x, importance, rounding);
  const int* q = lined.q;
  uint8_t *fifth = block + 16, *nibbles = block + 48;
  for (int j = 0; j < 32; ++j) {
    fifth[j] = 0;
    for (int g = 0; g < 8; ++g)
      fifth[j] = static_cast<uint8_t>(fifth[j] | (q[g * 32 + j] >> 4) << g);
  }
  for (int g = 0; g < 8; g += 2)
    for (int j = 0; j < 32; ++j)
      nibbles[g * 16 + j] =
          static_cast<uint8_t>((q[g * 32 + j] & 15) | (q[(g + 1) * 32 + j] & 15) << 4);
}

void write_q2_k(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  const Lined<kSixteen> lined = fit_lines<TwoBits, kSixteen>(x, importance, 15, rounding);
  for (int g = 0; g < kOfSixteen; ++g)
    block[g] = static_cast<uint8_t>(lined.scale[g] | lined.offset[g] << 4);
  write_two_bits(block + 16, lined.q);
  store_half(block + 80, lined.d);
  store_half(block + 82, lined.dmin);
}

void write_q6_k(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  float weight[kSuperBlock];
  if (importance != nullptr) weigh<kSuperBlock>(weight, x, importance, 2);
  else
    for (int i = 0; i < kSuperBlock; ++i) weight[i] = x[i] * x[i];
  const Scaled fitted = fit_scales<32>(x, weight);
  // The largest scale becomes -128.
  const float per_scale = finite_ratio(-128, largest_of(fitted));
  store_half(block + 208, per_scale == 0 ? 0 : 1 / per_scale);
  float factor[kOfSixteen];
  for (int g = 0; g < kOfSixteen; ++g) {
    factor[g] = clamped(nearest_even(per_scale * fitted.scale[g]), -128, 127);
    block[192 + g] = static_cast<uint8_t>(static_cast<int>(factor[g]));
  }
  int q[kSuperBlock];
  round_anew<32>(q, x, load_half(block + 208), factor, rounding);
  for (int part = 0; part < 2; ++part) {
    uint8_t *low = block + 64 * part, *high = block + 128 + 32 * part;
    const int* at = q + 128 * part;
    for (int j = 0; j < 32; ++j) {
      low[j] = static_cast<uint8_t>((at[j] & 15) | (at[j + 64] & 15) << 4);
      low[j + 32] = static_cast<uint8_t>((at[j + 32] & 15) | (at[j + 96] & 15) << 4);
      high[j] = static_cast<uint8_t>(at[j] >> 4 | (at[j + 32] >> 4) << 2 | (at[j + 64] >> 4) << 4 |
                                     (at[j + 96] >> 4) << 6);
    }
  }
}

void write_q3_k(uint8_t* block, const float* x, const float* importance, BlockRounding* rounding) {
  float weight[kSuperBlock];
  if (importance != nullptr) weigh<kSuperBlock>(weight, x, importance, 2);
  else
    for (int g = 0; g < kOfSixteen; ++g)
      weigh_by_size<kSixteen>(weight + g * kSixteen, x + g * kSixteen);
  const Scaled fitted = fit_scales<4>(x, weight);
  // The largest scale becomes -32, or what lies best.
  const float per_scale = finite_ratio(-32, largest_of(fitted));
  float d = per_scale == 0 ? 0 : 1 / per_scale;
  if (importance != nullptr) d = fit_scale<32, kOfSixteen>(fitted.scale, fitted.on);
  store_half(block + 108, d);
  d = load_half(block + 108);
  const float inverse = finite_ratio(1, d);
  uint8_t *third = block, *scales = block + 96;
  std::memset(third, 0, 32);
  std::memset(scales, 0, 12);
  float factor[kOfSixteen];
  for (int g = 0; g < kOfSixteen; ++g) {
    factor[g] = clamped(nearest_even(inverse * fitted.scale[g]), -32, 31);
    const int bits = static_cast<int>(factor[g]) + 32;
    scales[g % 8] = static_cast<uint8_t>(scales[g % 8] | (bits & 15) << 4 * (g / 8));
    scales[8 + g % 4] = static_cast<uint8_t>(scales[8 + g % 4] | bits >> 4 << 2 * (g / 4));
  }
  int q[kSuperBlock];
  round_anew<4>(q, x, d, factor, rounding);
  write_two_bits(block + 32, q);
  for (int run = 0; run < 8; ++run)
    for (int j = 0; j < 32; ++j)
      third[j] = static_cast<uint8_t>(third[j] | (q[run * 32 + j] >> 2) << run);
}

}  // namespace moe
