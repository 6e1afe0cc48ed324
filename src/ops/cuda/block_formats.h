// Numbers of the block formats as tensor/quant.cpp reads them, one by one, in the same bits: no
// product is fused with a sum. Layouts are said there and in tensor/quant_k.cpp.
#pragma once

#include "ops/cuda/half.h"
#include "ops/cuda/kernel.h"
#include "tensor/quant_table.h"

namespace moe::ops::cuda {

__device__ inline float half_at(const uint8_t* at) {
  return to_f32(f16{static_cast<uint16_t>(at[0] | at[1] << 8)});
}
__device__ inline int signed_byte(uint8_t x) { return static_cast<int8_t>(x); }
// Number j of 32: byte i holds numbers i (low) and i + 16 (high).
__device__ inline int nibble_at(const uint8_t* at, int j) {
  return j < 16 ? at[j] & 15 : at[j - 16] >> 4;
}
// The same with a fifth bit, which come before the nibbles.
__device__ inline int five_bits_at(const uint8_t* at, int j) {
  return nibble_at(at + 4, j) | (at[j / 8] >> j % 8 & 1) << 4;
}
__device__ inline float product(float a, int b) { return __fmul_rn(a, static_cast<float>(b)); }
__device__ inline float line(float a, int b, float c) { return __fadd_rn(product(a, b), c); }

// Scale and offset of group g of 8 of q4_k and q5_k.
struct SixBits {
  int scale, offset;
};
__device__ inline SixBits six_bits_at(const uint8_t* at, int g) {
  if (g < 4) return {at[g] & 63, at[g + 4] & 63};
  return {(at[g + 4] & 15) | (at[g - 4] >> 6) << 4, (at[g + 4] >> 4) | (at[g] >> 6) << 4};
}
// q4_k and q5_k but for the integer.
__device__ inline float grouped(const uint8_t* block, int g, int q) {
  const SixBits six = six_bits_at(block + 4, g);
  return line(product(half_at(block), six.scale), q, -product(half_at(block + 2), six.offset));
}

// 2^(e - 128)
__device__ inline float half_power_of(uint8_t e) {
  return __uint_as_float(e < 2 ? 0x00200000u << e : (uint32_t{e} - 1) << 23);
}
// Value q of a table of 16.
__device__ inline int fp4_doubled(int q) {
  constexpr std::array<int8_t, 16> values = kFp4Doubled;
  return values[static_cast<size_t>(q)];
}
__device__ inline int iq4_value(int q) {
  constexpr std::array<int8_t, 16> values = kIq4Values;
  return values[static_cast<size_t>(q)];
}

// The six formats of 32 numbers with a scale or a scale and an offset.
template <DType format>
__device__ float number_of_32(const uint8_t* b, int j) {
  if constexpr (format == DType::q8_0) return product(half_at(b), signed_byte(b[2 + j]));
  if constexpr (format == DType::q4_0) return product(half_at(b), nibble_at(b + 2, j) - 8);
  if constexpr (format == DType::q4_1) return line(half_at(b), nibble_at(b + 4, j), half_at(b + 2));
  if constexpr (format == DType::q5_0) return product(half_at(b), five_bits_at(b + 2, j) - 16);
  if constexpr (format == DType::q5_1)
    return line(half_at(b), five_bits_at(b + 4, j), half_at(b + 2));
  if constexpr (format == DType::mxfp4)
    return product(half_power_of(b[0]), fp4_doubled(nibble_at(b + 1, j)));
  if constexpr (format == DType::iq4_nl) return product(half_at(b), iq4_value(nibble_at(b + 2, j)));
  return 0;
}

// That of 64: byte i holds numbers 4 i to 4 i + 3, the lowest bits first.
template <DType format>
__device__ float number_of_64(const uint8_t* b, int j) {
  static_assert(format == DType::q2_0);
  return product(half_at(b), (b[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
}

// Those of 256: run r = j / 32 of eight, number i = j % 32 of it.
template <DType format>
__device__ float number_of_256(const uint8_t* b, int j) {
  const int r = j / 32, i = j % 32;
  if constexpr (format == DType::q4_k)
    return grouped(b, r, b[16 + r / 2 * 32 + i] >> 4 * (r % 2) & 15);
  if constexpr (format == DType::q5_k)
    return grouped(b, r, (b[48 + r / 2 * 32 + i] >> 4 * (r % 2) & 15) | (b[16 + i] >> r & 1) << 4);
  if constexpr (format == DType::q6_k) {
    const int part = r / 4, run = r % 4;
    const int low = b[part * 64 + run % 2 * 32 + i] >> run / 2 * 4 & 15,
              high = b[128 + part * 32 + i] >> 2 * run & 3;
    const float d = product(half_at(b + 208), signed_byte(b[192 + part * 8 + 2 * run + i / 16]));
    return product(d, (low | high << 4) - 32);
  }
  if constexpr (format == DType::q3_k) {
    const int q = (b[32 + r / 4 * 32 + i] >> 2 * (r % 4) & 3) | (b[i] >> r & 1) << 2,
              g = 2 * r + i / 16;
    const uint8_t* scales = b + 96;
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4,
              scale = (low | (scales[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32;
    return product(product(half_at(b + 108), scale), q - 4);
  }
  if constexpr (format == DType::q2_k) {
    const int q = b[16 + r / 4 * 32 + i] >> 2 * (r % 4) & 3, both = b[2 * r + i / 16];
    return line(product(half_at(b + 80), both & 15), q, -product(half_at(b + 82), both >> 4));
  }
  if constexpr (format == DType::iq4_xs) {
    const int upper = b[2] | b[3] << 8;
    const int scale = ((b[4 + r / 2] >> 4 * (r % 2) & 15) | (upper >> 2 * r & 3) << 4) - 32;
    return product(product(half_at(b), scale), iq4_value(nibble_at(b + 8 + r * 16, i)));
  }
  return 0;
}

// Number c of a row.
template <DType format>
__device__ float number_at(const void* row, int64_t c) {
  constexpr BlockFormat shape = block_of(format);
  const auto* block = static_cast<const uint8_t*>(row) + c / shape.elements * shape.bytes;
  const int j = static_cast<int>(c % shape.elements);
  if constexpr (shape.elements == 256) return number_of_256<format>(block, j);
  else if constexpr (shape.elements == 64) return number_of_64<format>(block, j);
  else return number_of_32<format>(block, j);
}

// f(integral_constant of the format); nothing for other types.
template <class F>
void with_blocks(DType dtype, F&& f) {
  const auto one = [&]<DType format>() {
    if (dtype == format) f(std::integral_constant<DType, format>());
  };
  one.template operator()<DType::q8_0>();
  one.template operator()<DType::q4_0>();
  one.template operator()<DType::q4_1>();
  one.template operator()<DType::q5_0>();
  one.template operator()<DType::q5_1>();
  one.template operator()<DType::q4_k>();
  one.template operator()<DType::q5_k>();
  one.template operator()<DType::q6_k>();
  one.template operator()<DType::mxfp4>();
  one.template operator()<DType::iq4_nl>();
  one.template operator()<DType::iq4_xs>();
  one.template operator()<DType::q3_k>();
  one.template operator()<DType::q2_k>();
  one.template operator()<DType::q2_0>();
}

}  // namespace moe::ops::cuda
