// Philox against the known answers of its authors, and the draws made from it: pure, within range,
// with the right moments.
#include "core/rng.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace moe::rng_test {
namespace {

using Words = std::array<uint32_t, 4>;

// The first line of philox4x32-10 in Random123's kat_vectors: counter 0, key 0.
TEST(Philox, KnownAnswerOfItsAuthors) {
  EXPECT_EQ(philox(RngKey{0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, EveryBitOfKeyAndCounterMatters) {
  const RngKey key{0x0123456789ABCDEFu};
  const uint64_t counter = 0xFEDCBA9876543210u;
  const Words base = philox(key, counter);
  std::set<Words> seen = {base};
  for (int bit = 0; bit < 64; ++bit)
    for (const Words& flipped : {philox(RngKey{key.value ^ uint64_t{1} << bit}, counter),
                                 philox(key, counter ^ uint64_t{1} << bit)}) {
      int differing = 0;
      for (int i = 0; i < 4; ++i) differing += std::popcount(base[i] ^ flipped[i]);
      EXPECT_GT(differing, 30) << bit;
      EXPECT_LT(differing, 98) << bit;
      EXPECT_TRUE(seen.insert(flipped).second) << bit;
    }
}

TEST(RngKey, FoldsIntoDistinctKeysThatAreNeverEmpty) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const RngKey key = RngKey::from_seed(seed);
    EXPECT_FALSE(key.empty());
    seen.insert(key.value);
    for (uint64_t part = 0; part < 50; ++part) seen.insert(key.fold(part).value);
  }
  EXPECT_EQ(seen.size(), 50u + 50u * 50u);
  const RngKey key = RngKey::from_seed(1);
  EXPECT_NE(key.fold(2).fold(3).value, key.fold(3).fold(2).value);
}

TEST(Rng, UniformHasItsRangeAndMoments) {
  const RngKey key = RngKey::from_seed(7);
  const int n = 100'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const float u = uniform(key, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.004);  // 4 standard errors
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.004);
  EXPECT_EQ(uniform(key, 5), uniform(key, 5));
}

TEST(Rng, IndexCoversItsRangeEvenly) {
  const RngKey key = RngKey::from_seed(8);
  std::vector<int> counts(10);
  for (uint64_t i = 0; i < 100'000; ++i) ++counts.at(uniform_index(key, i, 10));
  double chi2 = 0;
  for (const int c : counts) chi2 += (c - 1e4) * (c - 1e4) / 1e4;
  EXPECT_LT(chi2, 27.9);  // 9 degrees of freedom, p = 0.001
  EXPECT_EQ(uniform_index(key, 3, 1), 0u);
  EXPECT_LT(uniform_index(key, 3, ~uint64_t{0}), ~uint64_t{0});
}

TEST(Rng, NormalHasItsMoments) {
  const RngKey key = RngKey::from_seed(9);
  const int n = 200'000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (int i = 0; i < n; ++i) {
    const double z = normal(key, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(z));
    m1 += z / n;
    m2 += z * z / n;
    m3 += z * z * z / n;
    m4 += z * z * z * z / n;
  }
  EXPECT_NEAR(m1, 0, 0.01);
  EXPECT_NEAR(m2, 1, 0.015);
  EXPECT_NEAR(m3, 0, 0.04);
  EXPECT_NEAR(m4, 3, 0.1);
}

TEST(Rng, TruncatedNormalStaysWithinAndSpreads) {
  const RngKey key = RngKey::from_seed(10);
  const int n = 50'000;
  double squares = 0, largest = 0;
  for (int i = 0; i < n; ++i) {
    const double z = truncated_normal(key, static_cast<uint64_t>(i), 2.0f);
    ASSERT_LE(std::abs(z), 2.0);
    squares += z * z / n;
    largest = std::max(largest, std::abs(z));
  }
  // variance of N(0,1) cut at 2: 1 - 2*2*phi(2) / (2*Phi(2) - 1)
  EXPECT_NEAR(squares, 0.7737, 0.015);
  EXPECT_GT(largest, 1.98);
}

}  // namespace
}  // namespace moe::rng_test
