// The shared vector functions of src/ops/cpu/simd-inl.h on the instruction set in use: rounding to
// bf16 bit for bit, exp, erf, tanh and sigmoid in ulp, sums.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

void NarrowAll(const float* x, bf16* y, int64_t count) {
  ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
    Store(Load(DF32(), x + c, part), DF32(), y + c, part);
  });
}

void WidenAll(const bf16* x, float* y, int64_t count) {
  ForColumns(DF32(), count, [&](int64_t c, auto part) HWY_ATTR {
    Store(Load(DF32(), x + c, part), DF32(), y + c, part);
  });
}

// which: 0 exp, 1 erf, 2 tanh, 3 sigmoid
void ApplyAll(int which, const float* x, float* y, int64_t count) {
  const DF32 d;
  ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 v = Load(d, x + c, part);
    Store(which == 0   ? Exp(d, v)
          : which == 1 ? Erf(d, v)
          : which == 2 ? Tanh(d, v)
                       : Sigmoid(d, v),
          d, y + c, part);
  });
}

float SumAll(const float* x, int64_t count) {
  return SumColumns(DF32(), count,
                    [&](int64_t c, auto part) HWY_ATTR { return Load(DF32(), x + c, part); });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/rng.h"
#include "ops/cpu/isa.h"

namespace moe::ops {

HWY_EXPORT(NarrowAll);
HWY_EXPORT(WidenAll);
HWY_EXPORT(ApplyAll);
HWY_EXPORT(SumAll);

namespace {

// Nearest of the two bf16 neighbours of a finite x, measured in double; a tie goes to the even one.
uint16_t nearest_bf16(float x) {
  const uint16_t below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16),
                 above = static_cast<uint16_t>(below + 1);
  const double low = to_f32(bf16{below});
  // Past the largest bf16 the next one is counted as 2^128, as IEEE rounding to infinity does.
  const double high = (above & 0x7FFF) == 0x7F80 ? std::copysign(0x1p128, x)
                                                 : static_cast<double>(to_f32(bf16{above}));
  const double to_low = std::abs(x - low), to_high = std::abs(high - x);
  if (to_low != to_high) return to_low < to_high ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(Simd, RoundsEveryUpperHalfToNearestEven) {
  choose_isa();
  const uint32_t lower[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0, 0};  // the last two are drawn
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (int i = 0; i < 8; ++i)
      x.push_back(std::bit_cast<float>(
          upper << 16 |
          (i < 6 ? lower[i] : philox(RngKey::from_seed(1), upper * 2 + i)[0] & 0xFFFF)));
  x.pop_back();  // an odd count, so that a tail is narrowed too
  std::vector<bf16> y(x.size());
  HWY_DYNAMIC_DISPATCH(NarrowAll)(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << std::hex << std::bit_cast<uint32_t>(x[i]);
    if (std::isnan(x[i])) ASSERT_TRUE(std::isnan(to_f32(y[i])));
    else if (std::isinf(x[i])) ASSERT_EQ(to_f32(y[i]), x[i]);
    else ASSERT_EQ(y[i].bits, nearest_bf16(x[i])) << std::hex << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST(Simd, WidensEveryBf16Exactly) {
  choose_isa();
  std::vector<bf16> x;
  for (uint32_t bits = 0; bits < 0xFFFF; ++bits) x.push_back({static_cast<uint16_t>(bits)});
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(WidenAll)(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), uint32_t{x[i].bits} << 16);
}

// The worst error in ulp over every 509th float of the whole range; infinities and NaN must come
// out as the exact function gives them.
double worst_ulp(int which, double (*exact)(double), double smallest) {
  choose_isa();
  constexpr int64_t kChunk = 4095;
  std::vector<float> x(kChunk), y(kChunk);
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32;) {
    for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(bits)), bits += 509;
    HWY_DYNAMIC_DISPATCH(ApplyAll)(which, x.data(), y.data(), kChunk);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = exact(x[i]);
      if (std::isnan(x[i])) {
        if (!std::isnan(y[i])) return INFINITY;
      } else if (std::isinf(static_cast<float>(want))) {
        if (y[i] != static_cast<float>(want)) return INFINITY;
      } else if (std::abs(want) >= smallest) {
        const double ulp = std::abs(want) < 0x1p-126
                               ? 0x1p-149
                               : std::ldexp(1.0, std::ilogb(static_cast<float>(want)) - 23);
        const double error = std::abs(y[i] - want) / ulp;
        if (!(error <= worst)) worst = error;
      }
    }
  }
  return worst;
}

TEST(Simd, ExpWithinTwoUlp) {
  EXPECT_LE(worst_ulp(
                0, [](double x) { return std::exp(x); }, 0),
            2);
}
TEST(Simd, ErfWithinTwoUlp) {
  EXPECT_LE(worst_ulp(
                1, [](double x) { return std::erf(x); }, 0),
            2);
}
TEST(Simd, TanhWithinThreeUlp) {
  EXPECT_LE(worst_ulp(
                2, [](double x) { return std::tanh(x); }, 0),
            3);
}
// e^-x overflows where the sigmoid would be subnormal: it is 0 there.
TEST(Simd, SigmoidWithinThreeUlp) {
  EXPECT_LE(worst_ulp(
                3, [](double x) { return 1 / (1 + std::exp(-x)); }, 0x1p-126),
            3);
}

TEST(Simd, SumsEveryElementOnceForAnyLength) {
  choose_isa();
  std::vector<float> x;
  for (int64_t n = 1; n <= 200; ++n) {
    // whole numbers below 2^24: every order gives the exact sum
    x.push_back(static_cast<float>(n));
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(SumAll)(x.data(), n), static_cast<float>(n * (n + 1) / 2));
  }
}

}  // namespace
}  // namespace moe::ops
#endif  // HWY_ONCE
