// Element types. bf16 is the upper half of an f32; conversion rounds to nearest even and keeps NaN.
// The quantised types are GGUF's: numbers of a row are stored in blocks, each with scales of its
// own (tensor/quant.h); only weights have them. u8, i8, i64 and f8_e4m3 are parts of weights that
// folders keep apart from their scales (hub/folder/packed.h).
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace moe {

enum class DType : uint8_t {
  f32,
  bf16,
  f16,
  i32,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  mxfp4,
  iq4_nl,
  iq4_xs,
  q3_k,
  q2_k,
  q2_0,
  iq1_s,  // from here on read, not made
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  tq1_0,
  tq2_0,
  q1_0,
  u8,
  f8_e4m3,
  i8,
  i64
};

// What is stored together along a row.
struct BlockFormat {
  int64_t elements;  // a row's length is a multiple of this
  int64_t bytes;
};

constexpr BlockFormat block_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return {1, 4};
    case DType::bf16:
    case DType::f16: return {1, 2};
    case DType::q8_0: return {32, 34};
    case DType::q4_0: return {32, 18};
    case DType::q4_1: return {32, 20};
    case DType::q5_0: return {32, 22};
    case DType::q5_1: return {32, 24};
    case DType::q4_k: return {256, 144};
    case DType::q5_k: return {256, 176};
    case DType::q6_k: return {256, 210};
    case DType::mxfp4: return {32, 17};
    case DType::iq4_nl: return {32, 18};
    case DType::iq4_xs: return {256, 136};
    case DType::q3_k: return {256, 110};
    case DType::q2_k: return {256, 84};
    case DType::q2_0: return {64, 18};
    case DType::iq1_s: return {256, 50};
    case DType::iq1_m: return {256, 56};
    case DType::iq2_xxs: return {256, 66};
    case DType::iq2_xs: return {256, 74};
    case DType::iq2_s: return {256, 82};
    case DType::iq3_xxs: return {256, 98};
    case DType::iq3_s: return {256, 110};
    case DType::tq1_0: return {256, 54};
    case DType::tq2_0: return {256, 66};
    case DType::q1_0: return {128, 18};
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3: return {1, 1};
    case DType::i64: return {1, 8};
  }
  return {1, 0};
}

constexpr bool is_quantised(DType dtype) { return block_of(dtype).elements > 1; }
// Whether numbers of this type can be a model's weights.
constexpr bool holds_weights(DType dtype) {
  return dtype != DType::i32 && dtype != DType::i64 && dtype != DType::u8 && dtype != DType::i8 &&
         dtype != DType::f8_e4m3;
}
// Of a type whose numbers stand alone.
constexpr size_t size_of(DType dtype) {
  assert(!is_quantised(dtype));
  return static_cast<size_t>(block_of(dtype).bytes);
}
// Of `elements` numbers of a row, whole blocks.
constexpr int64_t bytes_of(DType dtype, int64_t elements) {
  return elements / block_of(dtype).elements * block_of(dtype).bytes;
}

std::string_view name_of(DType dtype);
// The type called so ("q4_k"), in either case.
std::optional<DType> dtype_named(std::string_view name);

struct bf16 {
  uint16_t bits;
};

constexpr float to_f32(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
constexpr float to_f32(float x) { return x; }

constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// E4M3 of the OCP 8-bit floating point specification: no infinity, the largest exponent with all
// bits set is no number.
float f8_e4m3_to_f32(uint8_t byte);

// IEEE half to f32, exact, and back, rounding to nearest even; what is too large becomes infinity.
float f16_to_f32(uint16_t half);
// All cases are computed and one is taken, so that a loop over numbers becomes vector instructions.
// Below the smallest normal half the numbers are multiples of 2^-24, which is what adding 1/2
// leaves of them.
constexpr uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477FF000u ? 0x7C00u : half;  // rounds beyond 65504
  half = magnitude > 0x7F800000u ? 0x7E00u : half;
  return static_cast<uint16_t>(half | (u >> 16 & 0x8000u));
}

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
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::i8;
}

}  // namespace moe
