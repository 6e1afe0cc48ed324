// How blocks of the K formats are read; quant_k_write.cpp makes them.
#include "tensor/quant_k.h"

#include "tensor/quant_parts.h"

namespace moe {
namespace {

constexpr int kLargeGroup = 32;  // of q4_k and q5_k
constexpr int kLargeGroups = kSuperBlock / kLargeGroup;
constexpr int kSmallGroup = 16;  // of the others

// Bytes 0-3: the low six bits hold scales 0-3, 4-7: offsets 0-3, 8-11: the low nibbles of scales
// and of offsets 4-7. The upper two bits of bytes 0-7 are the upper bits of scales and offsets 4-7.
struct SixBits {
  int scale[kLargeGroups];
  int offset[kLargeGroups];
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

}  // namespace

// x = d scale_g q - dmin offset_g.  d, dmin [half], six-bit scales [12], nibbles [128]: 32 bytes
// hold the low nibbles of one group and the high of the next
void read_q4_k(float* out, const uint8_t* block) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const SixBits six = read_six_bits(block + 4);
  const uint8_t* q = block + 16;
  for (int g = 0; g < kLargeGroups; g += 2, q += kLargeGroup, out += 2 * kLargeGroup) {
    const float d0 = d * static_cast<float>(six.scale[g]),
                m0 = dmin * static_cast<float>(six.offset[g]);
    const float d1 = d * static_cast<float>(six.scale[g + 1]),
                m1 = dmin * static_cast<float>(six.offset[g + 1]);
    for (int j = 0; j < kLargeGroup; ++j) {
      out[j] = d0 * static_cast<float>(q[j] & 15) - m0;
      out[j + kLargeGroup] = d1 * static_cast<float>(q[j] >> 4) - m1;
    }
  }
}

// The same with a fifth bit: bit g of byte j belongs to number j of group g.  d, dmin [half],
// six-bit scales [12], fifth bits [32], nibbles [128]
void read_q5_k(float* out, const uint8_t* block) {
  const float d = load_half(block), dmin = load_half(block + 2);
  const SixBits six = read_six_bits(block + 4);
  const uint8_t *fifth = block + 16, *q = block + 48;
  for (int g = 0; g < kLargeGroups; g += 2, q += kLargeGroup, out += 2 * kLargeGroup) {
    const float d0 = d * static_cast<float>(six.scale[g]),
                m0 = dmin * static_cast<float>(six.offset[g]);
    const float d1 = d * static_cast<float>(six.scale[g + 1]),
                m1 = dmin * static_cast<float>(six.offset[g + 1]);
    for (int j = 0; j < kLargeGroup; ++j) {
      out[j] = d0 * static_cast<float>((q[j] & 15) | (fifth[j] >> g & 1) << 4) - m0;
      out[j + kLargeGroup] =
          d1 * static_cast<float>((q[j] >> 4) | (fifth[j] >> (g + 1) & 1) << 4) - m1;
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
  for (int run = 0; run < kLargeGroups; ++run) {
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
  for (int run = 0; run < kLargeGroups; ++run) {
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

}  // namespace moe
