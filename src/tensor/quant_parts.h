// What the files of the block formats share: halves in memory, and rounding that no value can make
// undefined.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"

namespace moe {

inline uint16_t u16_at(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
inline uint32_t u32_at(const uint8_t* at) {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
inline float load_half(const uint8_t* at) { return f16_to_f32(u16_at(at)); }
inline void store_half(uint8_t* at, float x) {
  const uint16_t bits = f32_to_f16(x);
  std::memcpy(at, &bits, sizeof bits);
}

inline constexpr int kBlock = 32;  // numbers that share a scale, but for the K formats
inline constexpr int kHalf = kBlock / 2;

// Byte j of a block's nibbles holds numbers j (low) and j + 16 (high).
inline void write_nibbles(uint8_t* at, const int* q) {
  for (int j = 0; j < kHalf; ++j) at[j] = static_cast<uint8_t>(q[j] | q[j + kHalf] << 4);
}

// Readers first put the integers of a run of numbers into bytes and then scale them: two loops that
// a compiler makes vectors of, where one loop that does both stays one number at a time.
inline void unpack_nibbles(int8_t* q, const uint8_t* at, int offset) {
  for (int j = 0; j < kHalf; ++j) {
    q[j] = static_cast<int8_t>((at[j] & 15) - offset);
    q[j + kHalf] = static_cast<int8_t>((at[j] >> 4) - offset);
  }
}
// x = d q
template <int kCount>
inline void scale_run(float* __restrict x, const int8_t* __restrict q, float d) {
  for (int j = 0; j < kCount; ++j) x[j] = d * static_cast<float>(q[j]);
}
// x = d q + m
template <int kCount>
inline void scale_run(float* __restrict x, const int8_t* __restrict q, float d, float m) {
  for (int j = 0; j < kCount; ++j) x[j] = d * static_cast<float>(q[j]) + m;
}

// Into [low, high]; NaN becomes low. Branches that compile to two vector instructions.
inline float clamped(float x, float low, float high) {
  const float above = x > low ? x : low;
  return above < high ? above : high;
}
// To the nearest integer, ties to even, as long as |x| < 2^22: adding 1.5 * 2^23 leaves no bits
// behind the point. Larger ones stay large, so clamped() may come after.
inline float nearest_even(float x) { return (x + 12582912.0f) - 12582912.0f; }
// To the nearest integer, ties away from zero, as an int; |x| < 2^22. The number below one half
// keeps what lies just below a tie from being added up to it.
inline int nearest_away(float x) { return static_cast<int>(x + std::copysign(0.49999997f, x)); }
// a / b; 0 where that is no number: b is 0, or so small that the quotient overflows (a scale of b
// is then far below the smallest half).
inline float finite_ratio(float a, float b) {
  const float ratio = a / b;
  return std::isfinite(ratio) ? ratio : 0.0f;
}

}  // namespace moe
