// Element types. bf16 is the upper half of an f32; conversion rounds to nearest even and keeps NaN.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moe {

enum class DType : uint8_t { f32, bf16, f16, i32 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
  }
  return 0;
}

std::string_view name_of(DType dtype);

struct bf16 {
  uint16_t bits;
};

inline float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_f32(float x) { return x; }

inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE half to f32, exact. Only read from files.
float f16_to_f32(uint16_t half);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}

}  // namespace moe
