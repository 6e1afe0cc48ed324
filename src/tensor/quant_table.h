// The formats whose four bits name one of 16 numbers, for quant.cpp: MXFP4 (OCP Microscaling
// Formats 1.0), and IQ4_NL and IQ4_XS of github ggml-org/ggml, src/ggml-common.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace moe {

class BlockRounding;

// Numbers of FP4 (E2M1), doubled: the fourth bit is the sign.
inline constexpr std::array<int8_t, 16> kFp4Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                       0, -1, -2, -3, -4, -6, -8, -12};
// Denser around zero, as weights are.
inline constexpr std::array<int8_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};

// Which of 16 ascending values lies nearest; of two as near the upper one.
inline int nearest_level(const std::array<int8_t, 16>& levels, float x) {
  int below = 0;
  while (below < 14 && x >= static_cast<float>(levels[static_cast<size_t>(below + 1)])) ++below;
  const float low = levels[static_cast<size_t>(below)],
              high = levels[static_cast<size_t>(below + 1)];
  return x - low < high - x ? below : below + 1;
}

// 2^(e - 128), half of what the exponent of a block of MXFP4 says: the numbers are doubled.
inline float half_power(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? uint32_t{0x00200000} << e : (uint32_t{e} - 1) << 23);
}

// Six-bit scale of group j of a block of IQ4_XS, less 32. upper: 16 bits, lower: 4 bytes.
inline int iq4_xs_scale(uint32_t upper, const uint8_t* lower, int j) {
  return static_cast<int>((lower[j / 2] >> 4 * (j % 2) & 15) | (upper >> 2 * j & 3) << 4) - 32;
}

void read_mxfp4(float* out, const uint8_t* block);
void read_iq4_nl(float* out, const uint8_t* block);
void read_iq4_xs(float* out, const uint8_t* block);
void write_mxfp4(uint8_t* block, const float* x);
// importance [32] of the numbers' columns, or null.
// A rounding chooses the integers; null: the nearest ones.
void write_iq4_nl(uint8_t* block, const float* x, const float* importance, BlockRounding*);
// importance [256] likewise
void write_iq4_xs(uint8_t* block, const float* x, const float* importance, BlockRounding*);

}  // namespace moe
