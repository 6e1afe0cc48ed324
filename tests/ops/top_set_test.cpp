// The best experts of a token as a set, against a sort.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "ops/routing.h"
#include "support/rowwise.h"

namespace moe::test::top_set_test {
namespace {

std::vector<int32_t> list_of(const Tensor& choice, int64_t n) {
  return {choice.row<int32_t>(n), choice.row<int32_t>(n) + choice.cols()};
}

std::vector<int32_t> sorted_set(const float* s, int64_t experts, int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return s[a] > s[b]; });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

// The op's sets of all rows, in a tensor with a margin that it must leave alone.
void expect_sets(const Tensor& s, int64_t k, int threads, const std::string& what) {
  moe::Run run(threads);
  Arena arena;
  const Tensor all = arena.alloc(DType::i32, {s.rows(), k + 24});
  std::fill_n(all.as<int32_t>(), all.numel(), -7);
  const Tensor choice = all.slice_cols(3, 3 + k);
  ops::top_set(run, choice, s);
  for (int64_t n = 0; n < s.rows(); ++n) {
    ASSERT_EQ(list_of(choice, n), sorted_set(s.row<float>(n), s.cols(), k))
        << what << ", row " << n;
    for (int64_t i = 0; i < all.cols(); ++i)
      if (i < 3 || i >= 3 + k) ASSERT_EQ(all.row<int32_t>(n)[i], -7) << what << ", place " << i;
  }
}

TEST(TopSet, IsThatOfASort) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const RngKey key = RngKey::from_seed(seed);
    Arena arena;
    const auto experts = 1 + static_cast<int64_t>(uniform_index(key, 0, seed % 7 == 0 ? 2000 : 90)),
               k = 1 + static_cast<int64_t>(uniform_index(key, 1, static_cast<uint64_t>(experts)));
    const Tensor s = draw(arena, DType::f32, {3, experts}, seed, seed % 5 == 0 ? 1e-30f : 1);
    // of every kind: no ties, some, many
    for (int64_t i = 0; i < s.numel() && seed % 3 != 0; ++i)
      s.as<float>()[i] = std::nearbyint(s.as<float>()[i] * (seed % 3 == 1 ? 8 : 1));
    expect_sets(s, k, 1, fmt::format("{} of {}, seed {}", k, experts, seed));
  }
}

TEST(TopSet, HasOneExpertOrAll) {
  Arena arena;
  for (const int64_t experts : {1, 2, 15, 16, 17, 64, 1536}) {
    const Tensor s = draw(arena, DType::f32, {2, experts}, 1);
    for (const int64_t k : {int64_t{1}, experts - 1, experts})
      if (k > 0) expect_sets(s, k, 1, fmt::format("{} of {}", k, experts));
  }
}

TEST(TopSet, TakesTheLowerOfTiesAndEveryKindOfNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kLeast = std::numeric_limits<float>::denorm_min(),
                  kMost = std::numeric_limits<float>::max();
  constexpr float kAll[] = {0.0f,   -0.0f, kInfinity, -kInfinity, kLeast, -kLeast,
                            -kMost, kMost, 1.0f,      -1.0f,      1.0f,   -0.0f};
  Arena arena;
  for (const int64_t experts : {12, 37, 200}) {
    const Tensor s = arena.alloc(DType::f32, {16, experts});
    for (int64_t i = 0; i < s.numel(); ++i)
      s.as<float>()[i] = kAll[uniform_index(RngKey::from_seed(3), static_cast<uint64_t>(i), 12)];
    // and rows of one number alone
    for (int64_t n = 0; n < 12; ++n)
      if (n % 2 == 0) std::fill_n(s.row<float>(n), experts, kAll[n]);
    for (int64_t k = 1; k <= experts; k += 1 + experts / 30)
      expect_sets(s, k, 2, fmt::format("{} of {}", k, experts));
  }
}

TEST(TopSet, LawOfRows) {
  Arena arena;
  const Tensor pool = draw(arena, DType::f32, {300, 333}, 5);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const Tensor s = pick(run.saved, pool, which),
                     choice = run.saved.alloc(DType::i32, {s.rows(), 77});
        ops::top_set(run, choice, s);
        return choice;
      },
      "top_set");
}

TEST(TopSet, NamesTheFirstTokenWithoutANumber) {
  Arena arena;
  for (const int threads : {1, 2})
    for (const int64_t experts : {40, 1000}) {
      moe::Run run(threads);
      const Tensor s = draw(arena, DType::f32, {300, experts}, 2),
                   choice = arena.alloc(DType::i32, {300, 9});
      s.row<float>(77)[experts - 1] = NAN;
      s.row<float>(290)[0] = -NAN;
      try {
        ops::top_set(run, choice, s);
        FAIL() << "a score that is not a number was taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("token 77 of 300 is not a number"),
                  std::string::npos)
            << error.what();
      }
    }
}

TEST(TopSet, RefusesWhatDoesNotFit) {
  moe::Run run(1);
  Arena arena;
  const Tensor s = draw(arena, DType::f32, {3, 8}, 1);
  EXPECT_THROW(ops::top_set(run, arena.alloc(DType::i32, {3, 9}), s), Error);
  EXPECT_THROW(ops::top_set(run, arena.alloc(DType::i32, {2, 4}), s), Error);
  EXPECT_THROW(ops::top_set(run, arena.alloc(DType::f32, {3, 4}), s), Error);
  EXPECT_THROW(
      ops::top_set(run, arena.alloc(DType::i32, {3, 4}), draw(arena, DType::bf16, {3, 8}, 1)),
      Error);
}

}  // namespace
}  // namespace moe::test::top_set_test
