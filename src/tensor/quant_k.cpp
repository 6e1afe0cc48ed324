// The K formats. Scales are searched as in ggml's reference (src/ggml-quants.c,
// quantize_row_q4_K_ref, _q5_K_ref and _q6_K_ref): for each group a fan of candidate steps, for
// each the integers it rounds to and the scale (and offset) that fit them best by weighted least
// squares; the best fit is kept. Sums run in eight lanes, so the compiler can use vectors; a file
// made here may differ from ggml's in a few scales, not in its error.
#include "tensor/quant_k.h"

#include "tensor/quant_parts.h"

namespace moe {
namespace {

constexpr int kSuperBlock = 256;
constexpr int kGroup = 32;  // of q4_k and q5_k
constexpr int kGroups = kSuperBlock / kGroup;
constexpr int kSmallGroup = 16;  // of the others
constexpr int kSmallGroups = kSuperBlock / kSmallGroup;
constexpr int kLanes = 8;

// ---- scales of q4_k and q5_k: eight scales and eight offsets of six bits in twelve bytes --------
// Bytes 0-3: the low six bits hold scales 0-3, 4-7: offsets 0-3, 8-11: the low nibbles of scales
// and of offsets 4-7. The upper two bits of bytes 0-7 are the upper bits of scales and offsets 4-7.
struct SixBits {
  int scale[kGroups];
  int offset[kGroups];
};

SixBits read_six_bits(const uint8_t* at) {
  SixBits s{};
  for (int i = 0; i < 4; ++i) {
    s.scale[i] = at[i] & 63;
    s.offset[i] = at[i + 4] & 63;
    s.scale[i + 4] = (at[i + 8] & 15) | (at[i] >> 6) << 4;
    s.offset[i + 4] = (at[i + 8] >> 4) | (at[i + 4] >> 6) << 4;
  }
  return s;
}

void write_six_bits(uint8_t* at, const SixBits& s) {
  for (int i = 0; i < 4; ++i) {
    at[i] = static_cast<uint8_t>(s.scale[i] | (s.scale[i + 4] >> 4) << 6);
    at[i + 4] = static_cast<uint8_t>(s.offset[i] | (s.offset[i + 4] >> 4) << 6);
    at[i + 8] = static_cast<uint8_t>((s.scale[i + 4] & 15) | (s.offset[i + 4] & 15) << 4);
  }
}

// ---- weighted least squares ---------------------------------------------------------------------
// Sum over a group of term(i), lane by lane.
template <class T, int kCount, class F>
T sum_over(F&& term) {
  T lane[kLanes] = {};
  for (int i = 0; i < kCount; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

// x ~ scale q - offset, offset >= 0.
struct Line {
  float scale = 0, offset = 0;
};

// How a K format with an offset looks for its lines: q in 0..top; candidate steps are the range
// over `first`, first + 0.1, ..., as many as `candidates`.
struct FourBits {
  static constexpr float top = 15, first = 14;
  static constexpr int candidates = 21;
};
struct FiveBits {
  static constexpr float top = 31, first = 30.5f;
  static constexpr int candidates = 16;
};

// The line over one group of 32. Large numbers weigh more. The range begins at the best line's own
// offset: an improvement moves where the next candidates start.
template <class Fan>
Line fit_line(const float* x) {
  constexpr float kTop = Fan::top;
  float low = 0, high = x[0];
  for (int i = 0; i < kGroup; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  Line best{(high - low) / kTop, -low};
  if (finite_ratio(kTop, high - low) == 0) return {0, -low};
  float weight[kGroup], q[kGroup];
  const float typical =
      std::sqrt(sum_over<float, kGroup>([&](int i) { return x[i] * x[i]; }) / kGroup);
  for (int i = 0; i < kGroup; ++i) weight[i] = typical + std::abs(x[i]);
  const float w = sum_over<float, kGroup>([&](int i) { return weight[i]; });
  const float wx = sum_over<float, kGroup>([&](int i) { return weight[i] * x[i]; });
  const auto round_in_steps = [&](float steps) {
    const float inverse = steps / (high + best.offset);
    for (int i = 0; i < kGroup; ++i)
      q[i] = clamped(nearest_even(inverse * (x[i] + best.offset)), 0, kTop);
  };
  const auto error_of = [&](const Line& line) {
    return sum_over<float, kGroup>([&](int i) {
      const float off = line.scale * q[i] - line.offset - x[i];
      return weight[i] * off * off;
    });
  };
  round_in_steps(kTop);
  float best_error = error_of(best);
  for (int candidate = 0; candidate < Fan::candidates; ++candidate) {
    round_in_steps(Fan::first + 0.1f * static_cast<float>(candidate));
    const float wq = sum_over<float, kGroup>([&](int i) { return weight[i] * q[i]; });
    const float wqq = sum_over<float, kGroup>([&](int i) { return weight[i] * q[i] * q[i]; });
    const float wqx = sum_over<float, kGroup>([&](int i) { return weight[i] * q[i] * x[i]; });
    const float determinant = w * wqq - wq * wq;
    if (!(determinant > 0)) continue;
    Line line{(w * wqx - wx * wq) / determinant, (wq * wqx - wqq * wx) / determinant};
    if (line.offset < 0) line = {wqx / wqq, 0};
    const float error = error_of(line);
    if (error < best_error) {
      best_error = error;
      best = line;
    }
  }
  return best;
}

// The scale for q in -32..31 over one group of 16; squares weigh by themselves. The largest number
// may fall on either side of step -32. Where it dwarfs the others all candidates fit alike: sums
// are in double, and a gain of the size of rounding does not count.
float fit_scale(const float* x) {
  constexpr double kNotable = 1 + 1e-7;
  float largest = 0, with_sign = 0;
  for (int i = 0; i < kSmallGroup; ++i)
    if (std::abs(x[i]) > largest) {
      largest = std::abs(x[i]);
      with_sign = x[i];
    }
  if (largest < 1e-15f) return 0;
  double weight[kSmallGroup], weighted[kSmallGroup];
  for (int i = 0; i < kSmallGroup; ++i) {
    weight[i] = static_cast<double>(x[i]) * x[i];
    weighted[i] = weight[i] * x[i];
  }
  double best_scale = 0, best_gain = 0;
  const auto consider = [&](int candidate) {
    const float inverse = -(32 + 0.1f * static_cast<float>(candidate)) / with_sign;
    double q[kSmallGroup];
    for (int i = 0; i < kSmallGroup; ++i) q[i] = clamped(nearest_even(inverse * x[i]), -32, 31);
    const double wqx = sum_over<double, kSmallGroup>([&](int i) { return weighted[i] * q[i]; });
    const double wqq =
        sum_over<double, kSmallGroup>([&](int i) { return weight[i] * q[i] * q[i]; });
    // The squared error falls by wqx^2 / wqq against that of a scale of 0.
    if (!(wqq > 0 && wqx * wqx > best_gain * wqq * kNotable)) return;
    best_scale = wqx / wqq;
    best_gain = best_scale * wqx;
  };
  consider(0);
  for (int candidate = 1; candidate <= 9; ++candidate) {
    consider(-candidate);
    consider(candidate);
  }
  return static_cast<float>(best_scale);
}

}  // namespace

// x = d scale_g q - dmin offset_g.  d, dmin [half], six-bit scales [12], nibbles [128]: 32 bytes
// hold the low nibbles of one group and the high of the next
void read_q4_k(float* out, const uint8_t* block) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const SixBits six = read_six_bits(block + 4);
  const uint8_t* q = block + 16;
  for (int g = 0; g < kGroups; g += 2, q += kGroup, out += 2 * kGroup) {
    const float d0 = d * static_cast<float>(six.scale[g]),
                m0 = dmin * static_cast<float>(six.offset[g]);
    const float d1 = d * static_cast<float>(six.scale[g + 1]),
                m1 = dmin * static_cast<float>(six.offset[g + 1]);
    for (int j = 0; j < kGroup; ++j) {
      out[j] = d0 * static_cast<float>(q[j] & 15) - m0;
      out[j + kGroup] = d1 * static_cast<float>(q[j] >> 4) - m1;
    }
  }
}

// The same with a fifth bit: bit g of byte j belongs to number j of group g.  d, dmin [half],
// six-bit scales [12], fifth bits [32], nibbles [128]
void read_q5_k(float* out, const uint8_t* block) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const SixBits six = read_six_bits(block + 4);
  const uint8_t *fifth = block + 16, *q = block + 48;
  for (int g = 0; g < kGroups; g += 2, q += kGroup, out += 2 * kGroup) {
    const float d0 = d * static_cast<float>(six.scale[g]),
                m0 = dmin * static_cast<float>(six.offset[g]);
    const float d1 = d * static_cast<float>(six.scale[g + 1]),
                m1 = dmin * static_cast<float>(six.offset[g + 1]);
    for (int j = 0; j < kGroup; ++j) {
      out[j] = d0 * static_cast<float>((q[j] & 15) | (fifth[j] >> g & 1) << 4) - m0;
      out[j + kGroup] = d1 * static_cast<float>((q[j] >> 4) | (fifth[j] >> (g + 1) & 1) << 4) - m1;
    }
  }
}

// x = d scale_g (q - 32).  low nibbles [128], upper two bits [64], scales int8 [16], d [half]; each
// half of the block has 64 + 32 bytes: the low nibbles of bytes 0-31 and 32-63, then their high
// nibbles, are four runs of 32 numbers, and byte j of the upper bits serves number j of each run.
void read_q6_k(float* out, const uint8_t* block) {
  const float d = load_half(block + 208);
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  for (int part = 0; part < 2; ++part, out += 128, low += 64, high += 32, scales += 8) {
    for (int run = 0; run < 4; ++run) {
      const uint8_t* nibbles = low + run % 2 * 32;
      const int shift = run / 2 * 4;
      int8_t q[32];
      for (int j = 0; j < 32; ++j)
        q[j] =
            static_cast<int8_t>(((nibbles[j] >> shift & 15) | (high[j] >> 2 * run & 3) << 4) - 32);
      for (int half = 0; half < 2; ++half)
        scale_run<kSmallGroup>(out + 32 * run + half * kSmallGroup, q + half * kSmallGroup,
                               d * static_cast<float>(static_cast<int8_t>(scales[2 * run + half])));
    }
  }
}

// x = d scale_g (q - 4).  third bits [32], lower two bits [64], scales [12], d [half]; each half of
// the block has 32 bytes of lower bits, four runs of 32 numbers, and bit r of the third bits serves
// run r of both halves.
void read_q3_k(float* out, const uint8_t* block) {
  const float d = load_half(block + 108);
  const uint8_t *third = block, *low = block + 32, *scales = block + 96;
  for (int run = 0; run < kGroups; ++run) {
    const uint8_t* bits = low + run / 4 * 32;
    const int shift = 2 * (run % 4);
    int8_t q[32];
    for (int j = 0; j < 32; ++j)
      q[j] = static_cast<int8_t>(((bits[j] >> shift & 3) | (third[j] >> run & 1) << 2) - 4);
    for (int half = 0; half < 2; ++half)
      scale_run<kSmallGroup>(out + 32 * run + half * kSmallGroup, q + half * kSmallGroup,
                             d * static_cast<float>(q3_k_scale(scales, 2 * run + half)));
  }
}

// x = d scale_g q - dmin offset_g.  scales (low) and offsets (high) [16], bits [64] as the lower
// two of q3_k, d, dmin [half]
void read_q2_k(float* out, const uint8_t* block) {
  const float d = load_half(block + 80), dmin = load_half(block + 82);
  const uint8_t *scales = block, *bits = block + 16;
  for (int run = 0; run < kGroups; ++run) {
    const uint8_t* lower = bits + run / 4 * 32;
    const int shift = 2 * (run % 4);
    int8_t q[32];
    for (int j = 0; j < 32; ++j) q[j] = static_cast<int8_t>(lower[j] >> shift & 3);
    for (int half = 0; half < 2; ++half) {
      const uint8_t both = scales[2 * run + half];
      scale_run<kSmallGroup>(out + 32 * run + half * kSmallGroup, q + half * kSmallGroup,
                             d * static_cast<float>(both & 15),
                             -(dmin * static_cast<float>(both >> 4)));
    }
  }
}

namespace {

// Both formats with an offset begin alike: d, dmin, the scales in six bits. q [256] are the numbers
// in steps of what was written.
template <class Fan>
void write_scales(uint8_t* block, int* q, const float* x) {
  Line line[kGroups];
  float top_scale = 0, top_offset = 0;
  for (int g = 0; g < kGroups; ++g) {
    line[g] = fit_line<Fan>(x + g * kGroup);
    top_scale = std::max(top_scale, line[g].scale);
    top_offset = std::max(top_offset, line[g].offset);
  }
  store_half(block, top_scale / 63);
  store_half(block + 2, top_offset / 63);
  const float per_scale = finite_ratio(63, top_scale), per_offset = finite_ratio(63, top_offset);
  SixBits six{};
  for (int g = 0; g < kGroups; ++g) {
    six.scale[g] = static_cast<int>(clamped(nearest_even(per_scale * line[g].scale), 0, 63));
    six.offset[g] = static_cast<int>(clamped(nearest_even(per_offset * line[g].offset), 0, 63));
  }
  write_six_bits(block + 4, six);
  // The numbers are rounded anew by the steps that a reader will see.
  const float d = load_half(block), dmin = load_half(block + 2);
  for (int g = 0; g < kGroups; ++g) {
    const float step = d * static_cast<float>(six.scale[g]),
                offset = dmin * static_cast<float>(six.offset[g]);
    for (int j = g * kGroup; j < (g + 1) * kGroup; ++j)
      q[j] = static_cast<int>(clamped(nearest_even((x[j] + offset) / step), 0, Fan::top));
  }
}

}  // namespace

void write_q4_k(uint8_t* block, const float* x) {
  int q[kSuperBlock];
  write_scales<FourBits>(block, q, x);
  for (int g = 0; g < kGroups; g += 2)
    for (int j = 0; j < kGroup; ++j)
      block[16 + g / 2 * kGroup + j] =
          static_cast<uint8_t>(q[g * kGroup + j] | q[(g + 1) * kGroup + j] << 4);
}

void write_q5_k(uint8_t* block, const float* x) {
  int q[kSuperBlock];
  write_scales<FiveBits>(block, q, x);
  uint8_t *fifth = block + 16, *nibbles = block + 48;
  for (int j = 0; j < kGroup; ++j) {
    fifth[j] = 0;
    for (int g = 0; g < kGroups; ++g)
      fifth[j] = static_cast<uint8_t>(fifth[j] | (q[g * kGroup + j] >> 4) << g);
  }
  for (int g = 0; g < kGroups; g += 2)
    for (int j = 0; j < kGroup; ++j)
      nibbles[g / 2 * kGroup + j] =
          static_cast<uint8_t>((q[g * kGroup + j] & 15) | (q[(g + 1) * kGroup + j] & 15) << 4);
}

void write_q6_k(uint8_t* block, const float* x) {
  float scale[kSmallGroups], largest = 0, with_sign = 0;
  for (int g = 0; g < kSmallGroups; ++g) {
    scale[g] = fit_scale(x + g * kSmallGroup);
    if (std::abs(scale[g]) > largest) {
      largest = std::abs(scale[g]);
      with_sign = scale[g];
    }
  }
  // The largest scale becomes -128.
  const float per_scale = finite_ratio(-128, with_sign);
  store_half(block + 208, per_scale == 0 ? 0 : 1 / per_scale);
  const float d = load_half(block + 208);
  int q[kSuperBlock];
  for (int g = 0; g < kSmallGroups; ++g) {
    const float factor = clamped(nearest_even(per_scale * scale[g]), -128, 127), step = d * factor;
    block[192 + g] = static_cast<uint8_t>(static_cast<int>(factor));
    for (int j = g * kSmallGroup; j < (g + 1) * kSmallGroup; ++j)
      q[j] = static_cast<int>(clamped(nearest_even(x[j] / step), -32, 31)) + 32;
  }
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

}  // namespace moe
