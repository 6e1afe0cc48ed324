#include "tensor/quant_table.h"

#include <cmath>

#include "tensor/quant_fit.h"
#include "tensor/quant_k.h"
#include "tensor/quant_rounding.h"

namespace moe {
namespace {

void read_nibbles(float* out, const uint8_t* at, float scale,
                  const std::array<int8_t, 16>& values) {
  int8_t q[kBlock];
  unpack_nibbles(q, at, 0);
  for (int8_t& v : q) v = values[static_cast<size_t>(v)];
  scale_run<kBlock>(out, q, scale);
}
float largest_of(const float* x) {
  float largest = 0;
  for (int j = 0; j < kBlock; ++j)
    if (std::abs(x[j]) > std::abs(largest)) largest = x[j];
  return largest;
}

// How well d times the nearest values fits where 1 / d is about `inverse`: over the numbers x and
// their values v, weighed by w, the best d is sum w x v / sum w v^2, and the square of the first
// over the second is what it takes off the error.
struct Fit {
  float xv = 0, vv = 0;

  float scale() const { return finite_ratio(xv, vv); }
  // The products of three sums of large numbers are beyond f32.
  double gain() const { return vv > 0 ? double{xv} * xv / vv : 0; }
  bool better_than(const Fit& other) const { return gain() > other.gain(); }
};
Fit fit_iq4(const float* x, const float* weight, float inverse) {
  Fit fit;
  for (int j = 0; j < kBlock; ++j) {
    const float v = kIq4Values[static_cast<size_t>(nearest_level(kIq4Values, inverse * x[j]))];
    fit.xv += weight[j] * v * x[j];
    fit.vv += weight[j] * v * v;
  }
  return fit;
}

// Fifteen steps about the one that makes the largest number the lowest value, as
// github ggml-org/ggml, src/ggml-quants.c (quantize_iq4_nl) looks for them. x, weight [32]
float best_iq4_scale(const float* x, const float* weight) {
  constexpr float kLeast = 1e-15f;  // below it a block is zero
  const float largest = largest_of(x);
  if (!(std::abs(largest) >= kLeast) || !std::isfinite(largest)) return 0;
  Fit best = fit_iq4(x, weight, -kIq4Values[0] / largest);
  for (int step = -7; step <= 7; ++step)
    if (const Fit fit = fit_iq4(x, weight, static_cast<float>(step + kIq4Values[0]) / largest);
        fit.better_than(best))
      best = fit;
  return best.scale();
}

// What the numbers of a block count. weight, x [kCount]; importance [kCount] or null
template <int kCount>
void weigh_iq4(float* weight, const float* x, const float* importance) {
  if (importance != nullptr) return weigh<kCount>(weight, x, importance, 2);
  for (int j = 0; j < kCount; ++j) weight[j] = x[j] * x[j];
}

constexpr int kRuns = kSuperBlock / kBlock;  // of a block of IQ4_XS

// Whole scales of the runs and the half that scales them, so that the one of largest magnitude is
// -32, the only one without a counterpart.
struct Iq4XsScales {
  int scale[kRuns];
  float d;
};
Iq4XsScales iq4_xs_scales(const float* x, const float* weight) {
  float best[kRuns], largest = 0;
  for (int g = 0; g < kRuns; ++g) {
    best[g] = best_iq4_scale(x + g * kBlock, weight + g * kBlock);
    if (std::abs(best[g]) > std::abs(largest)) largest = best[g];
  }
  Iq4XsScales scales{{}, f16_to_f32(f32_to_f16(-largest / 32))};
  for (int g = 0; g < kRuns; ++g)
    scales.scale[g] =
        static_cast<int>(clamped(nearest_even(best[g] * finite_ratio(1, scales.d)), -32, 31));
  return scales;
}

}  // namespace

// x = 2^(e - 127) fp4.  e [byte], nibbles [16]
void read_mxfp4(float* out, const uint8_t* block) {
  read_nibbles(out, block + 1, half_power(block[0]), kFp4Doubled);
}

// x = d value.  d [half], nibbles [16]
void read_iq4_nl(float* out, const uint8_t* block) {
  read_nibbles(out, block + 2, load_half(block), kIq4Values);
}

// x = d (scale - 32) value, a scale for each 32.  d [half], upper bits of scales [2], lower [4],
// nibbles [128]
void read_iq4_xs(float* out, const uint8_t* block) {
  const float d = load_half(block);
  const uint32_t upper = uint32_t{block[2]} | uint32_t{block[3]} << 8;
  for (int j = 0; j < 8; ++j)
    read_nibbles(out + j * kBlock, block + 8 + j * kHalf,
                 d * static_cast<float>(iq4_xs_scale(upper, block + 4, j)), kIq4Values);
}

// The exponent takes the largest number between 4 and 8, of which 6 is the largest there is (OCP
// Microscaling Formats 1.0, section 6.3); each number then goes to the nearest, of two as near to
// the one nearer to zero.
void write_mxfp4(uint8_t* block, const float* x) {
  const float largest = std::abs(largest_of(x));
  int exponent = 0;
  if (largest > 0 && std::isfinite(largest))
    exponent = std::clamp(std::ilogb(largest) - 2 + 127, 0, 254);
  block[0] = static_cast<uint8_t>(exponent);
  const float scale = half_power(block[0]);
  int q[kBlock];
  for (int j = 0; j < kBlock; ++j) {
    const float size = std::abs(x[j]);
    int best = 0;
    for (int v = 1; v < 8; ++v) {
      const float middle = 0.5f * static_cast<float>(kFp4Doubled[static_cast<size_t>(v - 1)] +
                                                     kFp4Doubled[static_cast<size_t>(v)]);
      if (size > middle * scale) best = v;
    }
    q[j] = best > 0 && x[j] < 0 ? best + 8 : best;
  }
  write_nibbles(block + 1, q);
}

void write_iq4_nl(uint8_t* block, const float* x, const float* importance,
                  BlockRounding* rounding) {
  float weight[kBlock];
  weigh_iq4<kBlock>(weight, x, importance);
  const float d = best_iq4_scale(x, weight), inverse = finite_ratio(1, d);
  store_half(block, d);
  int q[kBlock];
  if (rounding != nullptr) {
    const float step = load_half(block);
    rounding->round(q, x, {kBlock, kBlock, 15, &step, nullptr, &kIq4Values});
  } else {
    for (int j = 0; j < kBlock; ++j) q[j] = nearest_level(kIq4Values, inverse * x[j]);
  }
  write_nibbles(block + 2, q);
}

void write_iq4_xs(uint8_t* block, const float* x, const float* importance,
                  BlockRounding* rounding) {
  float weight[kSuperBlock], step[kRuns];
  weigh_iq4<kSuperBlock>(weight, x, importance);
  const Iq4XsScales scales = iq4_xs_scales(x, weight);
  int q[kSuperBlock];
  for (int g = 0; g < kRuns; ++g) step[g] = scales.d * static_cast<float>(scales.scale[g]);
  if (rounding != nullptr) {
    rounding->round(q, x, {kSuperBlock, kBlock, 15, step, nullptr, &kIq4Values});
  } else {
    for (int j = 0; j < kSuperBlock; ++j)
      q[j] = nearest_level(kIq4Values, x[j] * finite_ratio(1, step[j / kBlock]));
  }
  store_half(block, scales.d);
  uint32_t upper = 0;
  std::memset(block + 4, 0, kRuns / 2);
  for (int g = 0; g < kRuns; ++g) {
    const auto bits = static_cast<uint32_t>(scales.scale[g] + 32);
    upper |= bits >> 4 << 2 * g;
    block[4 + g / 2] = static_cast<uint8_t>(block[4 + g / 2] | (bits & 15) << 4 * (g % 2));
    write_nibbles(block + 8 + g * kHalf, q + g * kBlock);
  }
  block[2] = static_cast<uint8_t>(upper);
  block[3] = static_cast<uint8_t>(upper >> 8);
}

}  // namespace moe
