#include "tensor/dtype.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace moe {

namespace {

constexpr std::string_view kNames[] = {
    "f32",   "bf16",  "f16",   "i32",   "q8_0",    "q4_0",    "q4_1",   "q5_0",
    "q5_1",  "q4_k",  "q5_k",  "q6_k",  "mxfp4",   "iq4_nl",  "iq4_xs", "q3_k",
    "q2_k",  "q2_0",  "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs",  "iq2_s",  "iq3_xxs",
    "iq3_s", "tq1_0", "tq2_0", "q1_0",  "u8",      "f8_e4m3", "i8",     "i64"};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string_view name_of(DType dtype) { return kNames[static_cast<size_t>(dtype)]; }

std::optional<DType> dtype_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (std::equal(name.begin(), name.end(), kNames[i].begin(), kNames[i].end(),
                   [](char a, char b) { return lower(a) == b; }))
      return static_cast<DType>(i);
  return std::nullopt;
}

float f8_e4m3_to_f32(uint8_t byte) {
  const uint32_t sign = uint32_t{byte & 0x80u} << 24, exponent = (byte >> 3) & 0xFu,
                 fraction = byte & 7u;
  if ((byte & 0x7F) == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
  const float subnormal = static_cast<float>(fraction) * 0x1p-9f;
  return sign ? -subnormal : subnormal;
}

float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 0x1Fu,
                 fraction = half & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float subnormal = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

}  // namespace moe
