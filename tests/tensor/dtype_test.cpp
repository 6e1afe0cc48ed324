// Conversions, over every 16-bit pattern: half and bfloat16 to f32 exactly, f32 to bfloat16 to
// nearest even.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/rng.h"

namespace moe::dtype_test {
namespace {

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
}

// IEEE 754 binary16: (-1)^s 2^(e-15) (1 + f/1024), subnormals 2^-14 f/1024.
TEST(DType, HalfToF32IsExactForAllPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float got = f16_to_f32(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), fraction != 0) << bits;
      EXPECT_EQ(std::isinf(got), fraction == 0) << bits;
      continue;
    }
    const double want =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(std::abs(got), want) << bits;
  }
}

TEST(DType, HalfSurvivesTheRoundTripForAllPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = f16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_f16(wide);
    if (!std::isnan(wide)) EXPECT_EQ(back, bits);
    else EXPECT_TRUE(std::isnan(f16_to_f32(back)) && (back & 0x8000) == (bits & 0x8000)) << bits;
  }
}

// Between each two neighbouring halves, subnormal ones too: below the middle rounds down, above it
// up, the middle itself to the even one.
TEST(DType, HalfRoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7BFF; ++low) {
    const float below = f16_to_f32(static_cast<uint16_t>(low)),
                above = f16_to_f32(static_cast<uint16_t>(low + 1));
    const float middle = below + (above - below) / 2;  // exact
    const uint32_t sign = low % 2 == 0 ? 0 : 0x8000;
    const auto round = [&](float x) { return f32_to_f16(sign != 0 ? -x : x); };
    EXPECT_EQ(round(std::nextafter(below, above)), sign | low);
    EXPECT_EQ(round(std::nextafter(middle, below)), sign | low);
    EXPECT_EQ(round(middle), sign | (low + (low & 1)));
    EXPECT_EQ(round(std::nextafter(middle, above)), sign | (low + 1));
  }
}

TEST(DType, HalfOfSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(infinity), 0x7C00);
  EXPECT_EQ(f32_to_f16(-infinity), 0xFC00);
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7BFF) << "the largest half";
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00) << "the middle to the next power of two";
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::max()), 0x7C00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0) << "half the smallest, a tie to the even zero";
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u})
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(nan))))) << nan;
}

TEST(DType, BlocksAndNames) {
  EXPECT_EQ(bytes_of(DType::q8_0, 64), 68);
  EXPECT_EQ(bytes_of(DType::q6_k, 512), 420);
  EXPECT_EQ(bytes_of(DType::i64, 3), 24);
  EXPECT_EQ(bytes_of(DType::i8, 3), 3);
  EXPECT_FALSE(is_quantised(DType::f16));
  EXPECT_TRUE(is_quantised(DType::q4_1));
  for (const DType dtype : {DType::u8, DType::f8_e4m3, DType::i8, DType::i64}) {
    EXPECT_FALSE(holds_weights(dtype));
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("Q4_K"), DType::q4_k);
  EXPECT_EQ(dtype_named("bf16"), DType::bf16);
  EXPECT_EQ(dtype_named("q4"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
}

TEST(DType, Bf16SurvivesTheRoundTripForAllPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 x{static_cast<uint16_t>(bits)};
    const float wide = to_f32(x);
    if (std::isnan(wide)) EXPECT_TRUE(std::isnan(to_f32(to_bf16(wide)))) << bits;
    else EXPECT_EQ(to_bf16(wide).bits, bits);
  }
}

// Between each two neighbouring bfloat16: below the middle rounds down, above it up, the middle
// itself to the even one.
TEST(DType, Bf16RoundsToNearestEven) {
  for (uint32_t upper = 0; upper < 0x7F80; ++upper) {
    const uint32_t sign = upper % 2 == 0 ? 0 : 0x80000000u;
    const auto round = [&](uint32_t lower) {
      return to_bf16(std::bit_cast<float>(sign | upper << 16 | lower)).bits & 0x7FFFu;
    };
    EXPECT_EQ(round(0x0001), upper);
    EXPECT_EQ(round(0x7FFF), upper);
    EXPECT_EQ(round(0x8000), upper + (upper & 1));
    EXPECT_EQ(round(0x8001), upper + 1);
    EXPECT_EQ(round(0xFFFF), upper + 1);
  }
}

TEST(DType, Bf16OfSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(infinity).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-infinity).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80)
      << "above the largest bfloat16 lies infinity";
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  for (const uint32_t nan : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0x7FC00000u})
    EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(nan))))) << nan;
}

TEST(DType, Bf16ErrorIsWithinHalfAUnit) {
  const RngKey key = RngKey::from_seed(3);
  double bias = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const float x = normal(key, i);
    const double error = (to_f32(to_bf16(x)) - x) / std::abs(x);
    ASSERT_LE(std::abs(error), 0x1p-8);
    bias += error / 100'000;
  }
  EXPECT_NEAR(bias, 0, 3e-5) << "truncation would give 3e-3";
}

}  // namespace
}  // namespace moe::dtype_test
