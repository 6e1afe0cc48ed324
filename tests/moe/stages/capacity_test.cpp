// Capacity: the formulas of the codebases it is taken from, and placement in every order against a
// search that knows nothing of buffers being filled.
#include "moe/stages/capacity.h"

#include <algorithm>
#include <tuple>

#include "support/check.h"

namespace moe::test::capacity_test {
namespace {

using Order = BufferCapacity::Order;
using Rounding = BufferCapacity::Rounding;
constexpr Order kOrders[] = {Order::choice_major, Order::token_major, Order::by_weight,
                             Order::batch_priority, Order::random};
constexpr Rounding kRoundings[] = {Rounding::floor, Rounding::floor_to_even, Rounding::round,
                                   Rounding::ceil};

std::vector<int32_t> ints(const Tensor& t) {
  return {t.as<int32_t>(), t.as<int32_t>() + t.numel()};
}
Tensor ones(Arena& arena, int64_t rows, int64_t cols) {
  Tensor t = arena.alloc(DType::i32, {rows, cols});
  std::fill_n(t.as<int32_t>(), t.numel(), 1);
  return t;
}

TEST(CapacityFormula, IsNanoMoEs) {
  BufferCapacity train{.factor = 1.25f, .rounding = Rounding::floor_to_even, .minimum = 4},
      eval = train;
  eval.factor = 2;
  EXPECT_EQ(expert_capacity(train, 12 * 1024, 8, 2), 3840);
  EXPECT_EQ(expert_capacity(eval, 12 * 1024, 8, 2), 6144);
  EXPECT_EQ(expert_capacity(train, 100, 8, 2), 32);
  for (int64_t tokens : {1, 2, 4, 7, 8, 9})
    EXPECT_EQ(expert_capacity(eval, tokens, 8, 2), 4) << tokens;
  EXPECT_EQ(expert_capacity(eval, 10, 8, 2), 6);
  EXPECT_EQ(expert_capacity(eval, 16, 8, 2), 8);
}

TEST(CapacityFormula, IsMeshTensorFlows) {  // max(4, min(S, trunc(cf S / E))): no K
  const BufferCapacity mesh{.factor = 1.25f,
                            .count_choices = false,
                            .rounding = Rounding::floor,
                            .minimum = 4,
                            .at_most_tokens = true};
  EXPECT_EQ(expert_capacity(mesh, 1000, 64, 2), 19);
  EXPECT_EQ(expert_capacity(mesh, 100, 64, 2), 4);
  EXPECT_EQ(expert_capacity(mesh, 100, 1, 1), 100);
  EXPECT_EQ(expert_capacity(mesh, 3, 1, 1), 4);
}

TEST(CapacityFormula, IsFlaxformersDeepSpeedsMegatronsAndGShards) {
  const BufferCapacity flaxformer{
      .factor = 1.25f, .count_choices = false, .rounding = Rounding::round, .minimum = 0};
  EXPECT_EQ(expert_capacity(flaxformer, 18, 9, 1), 2);  // 2.5
  EXPECT_EQ(expert_capacity(flaxformer, 14, 5, 1), 4);  // 3.5
  EXPECT_EQ(expert_capacity(flaxformer, 15, 5, 1), 4);  // 3.75
  const BufferCapacity deepspeed{
      .factor = 1, .count_choices = true, .rounding = Rounding::ceil, .minimum = 4};
  EXPECT_EQ(expert_capacity(deepspeed, 21, 4, 1), 6);
  EXPECT_EQ(expert_capacity(deepspeed, 21, 4, 2), 11);
  EXPECT_EQ(expert_capacity(deepspeed, 5, 4, 1), 4);
  const BufferCapacity gshard{
      .factor = 1, .count_choices = true, .rounding = Rounding::floor, .minimum = 0};
  EXPECT_EQ(expert_capacity(gshard, 1024, 128, 2), 16);  // 2N / (G E), N / G = 1024
}

TEST(CapacityFormula, TakesTheFactorAsItIsWritten) {
  EXPECT_EQ(expert_capacity({.factor = 0.7f, .minimum = 0}, 10, 1, 1), 7);  // in f32 a little less
  EXPECT_EQ(expert_capacity({.factor = 1.1f, .rounding = Rounding::ceil, .minimum = 0}, 10, 1, 1),
            11);  // in f32 a little more
}

TEST(CapacityFormula, NothingAndEverything) {
  for (Rounding rounding : kRoundings) {
    EXPECT_EQ(expert_capacity({.factor = 1e-9f, .rounding = rounding, .minimum = 0}, 100, 4, 2),
              rounding == Rounding::ceil ? 1 : 0);
    EXPECT_GE(expert_capacity({.factor = 1e38f, .rounding = rounding, .minimum = 0}, 1000000, 1, 8),
              int64_t{1} << 61);
    EXPECT_GE(expert_capacity({.factor = INFINITY, .rounding = rounding, .minimum = 0}, 10, 2, 1),
              int64_t{1} << 61);
    EXPECT_EQ(expert_capacity(
                  {.factor = 1e38f, .rounding = rounding, .minimum = 0, .at_most_tokens = true}, 77,
                  2, 2),
              77);
  }
}

TEST(Capacity, ChoiceMajorLetsAnyFirstChoiceGoBeforeAnySecond) {
  moe::Run run(1);
  int32_t choice[] = {0, 1, 1, 0};
  const Tensor kept = run.saved.alloc(DType::i32, {2, 2}),
               w = draw(run.saved, DType::f32, {2, 2}, 1);
  BufferCapacity buffer{.factor = 1e-6f, .minimum = 1, .order = Order::choice_major};
  EXPECT_EQ(capacity_forward(run, kept, Tensor(choice, DType::i32, {2, 2}), ones(run.saved, 2, 2),
                             w, {}, 2, buffer, {}),
            2);
  EXPECT_EQ(ints(kept), (std::vector<int32_t>{1, 0, 1, 0}));
  buffer.order = Order::token_major;
  EXPECT_EQ(capacity_forward(run, kept, Tensor(choice, DType::i32, {2, 2}), ones(run.saved, 2, 2),
                             w, {}, 2, buffer, {}),
            2);
  EXPECT_EQ(ints(kept), (std::vector<int32_t>{1, 1, 0, 0}));
}

TEST(Capacity, GoldenCase) {  // choices of the worked example, capacity 2
  moe::Run run(1);
  int32_t choice[] = {0, 1, 0, 1, 0, 2, 3, 0};
  const Tensor kept = run.saved.alloc(DType::i32, {4, 2}),
               w = draw(run.saved, DType::f32, {4, 2}, 1);
  const BufferCapacity buffer{.factor = 1, .minimum = 0, .order = Order::choice_major};
  EXPECT_EQ(expert_capacity(buffer, 4, 4, 2), 2);
  EXPECT_EQ(capacity_forward(run, kept, Tensor(choice, DType::i32, {4, 2}), ones(run.saved, 4, 2),
                             w, {}, 4, buffer, {}),
            2);
  EXPECT_EQ(ints(kept), (std::vector<int32_t>{1, 1, 1, 1, 0, 1, 1, 0}));
}

TEST(Capacity, BatchPriorityLooksAtTheFirstWeightOnly) {
  moe::Run run(1);
  int32_t choice[] = {0, 1, 0, 1, 0, 1};
  float w[] = {0.3f, 0.9f, 0.5f, 0.1f, 0.5f, 0.8f};
  const Tensor kept = run.saved.alloc(DType::i32, {3, 2});
  const auto place = [&](Order order) {
    capacity_forward(run, kept, Tensor(choice, DType::i32, {3, 2}), ones(run.saved, 3, 2),
                     Tensor(w, DType::f32, {3, 2}), {}, 2,
                     BufferCapacity{.factor = 1e-6f, .minimum = 1, .order = order}, {});
    return ints(kept);
  };
  // tokens 1, 2 (a tie), 0
  EXPECT_EQ(place(Order::batch_priority), (std::vector<int32_t>{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(place(Order::by_weight), (std::vector<int32_t>{0, 1, 1, 0, 0, 0}));
}

// ---- against a search ---------------------------------------------------------------------------
struct Drawn {
  int64_t tokens, k, experts;
  Tensor choice, selected, w;
  std::vector<int64_t> bounds;
};

// Distinct experts for each token, few enough weights that many are equal, some below 0 and zeros
// of both signs, and pairs that are not selected.
Drawn draw_case(Arena& arena, uint64_t seed, bool all_selected) {
  const RngKey key = RngKey::from_seed(seed);
  uint64_t at = 0;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(uniform_index(key, at++, static_cast<uint64_t>(n)));
  };
  Drawn d{.tokens = 1 + below(40),
          .k = 1 + below(4),
          .experts = 4 + below(3),
          .choice = {},
          .selected = {},
          .w = {},
          .bounds = {0}};
  d.choice = arena.alloc(DType::i32, {d.tokens, d.k});
  d.selected = arena.alloc(DType::i32, {d.tokens, d.k});
  d.w = arena.alloc(DType::f32, {d.tokens, d.k});
  for (int64_t n = 0; n < d.tokens; ++n) {
    std::vector<int32_t> order(static_cast<size_t>(d.experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    for (int64_t i = 0; i < d.k; ++i) {
      std::swap(order[static_cast<size_t>(i)],
                order[static_cast<size_t>(i + below(d.experts - i))]);
      d.choice.row<int32_t>(n)[i] = order[static_cast<size_t>(i)];
      d.selected.row<int32_t>(n)[i] = all_selected || below(3) > 0;
      const float w = static_cast<float>(below(7) - 2) / 4;
      d.w.row<float>(n)[i] = w == 0 && n % 2 ? -0.0f : w;
    }
    if (below(9) == 0 && n + 1 < d.tokens) d.bounds.push_back(n + 1);
  }
  d.bounds.push_back(d.tokens);
  return d;
}

// A pair is kept iff fewer than C pairs of its expert and scope that take room stand before it.
std::vector<int32_t> search(const Drawn& d, const BufferCapacity& c,
                            const std::vector<int64_t>& scopes, RngKey key) {
  const auto place_of = [&](int64_t n, int64_t i) {
    const double w = d.w.row<float>(n)[i], first = d.w.row<float>(n)[0];
    const double u =
        key.empty() ? 0 : uniform(key.fold(2), static_cast<uint64_t>(i * d.tokens + n));
    const auto rank = static_cast<double>(i), token = static_cast<double>(n);
    switch (c.order) {
      case Order::choice_major: return std::tuple(rank, 0.0, token);
      case Order::token_major: return std::tuple(token, 0.0, rank);
      case Order::by_weight: return std::tuple(-w, token, rank);
      case Order::batch_priority: return std::tuple(rank, -first, token);
      case Order::random: return std::tuple(rank, u, token);
    }
    return std::tuple(0.0, 0.0, 0.0);
  };
  std::vector<int32_t> out;
  for (int64_t n = 0; n < d.tokens; ++n)
    for (int64_t i = 0; i < d.k; ++i) {
      const auto scope = std::upper_bound(scopes.begin(), scopes.end(), n);
      int64_t before = 0;
      for (int64_t m = *(scope - 1); m < *scope; ++m)
        for (int64_t j = 0; j < d.k; ++j)
          before += d.choice.row<int32_t>(m)[j] == d.choice.row<int32_t>(n)[i] &&
                    (d.selected.row<int32_t>(m)[j] || c.skipped_take_room) &&
                    place_of(m, j) < place_of(n, i);
      out.push_back(d.selected.row<int32_t>(n)[i] &&
                    before < expert_capacity(c, *scope - *(scope - 1), d.experts, d.k));
    }
  return out;
}

TEST(Capacity, MatchesASearchInEveryOrderAndScope) {
  int64_t drops = 0, skips_that_matter = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    moe::Run run(1);
    const Drawn d = draw_case(run.saved, seed, seed % 3 == 0);
    const RngKey key = seed % 2 ? RngKey::from_seed(seed) : RngKey{};
    for (Order order : kOrders)
      for (Scope::Kind kind :
           {Scope::Kind::micro_batch, Scope::Kind::sequence, Scope::Kind::group}) {
        BufferCapacity c{.factor = 0.5f + 0.25f * static_cast<float>(seed % 4),
                         .rounding = kRoundings[seed % 4],
                         .minimum = static_cast<int64_t>(seed % 3)};
        c.order = order;
        c.scope = {kind, kind == Scope::Kind::group ? 7 : 0};
        std::vector<int64_t> scopes = {0};
        if (kind == Scope::Kind::sequence) scopes = d.bounds;
        else
          for (int64_t n = 1; n <= d.tokens; ++n)
            if (n == d.tokens || (kind == Scope::Kind::group && n % 7 == 0)) scopes.push_back(n);
        std::vector<int32_t> kept_when[2];
        for (bool skipped : {false, true}) {
          c.skipped_take_room = skipped;
          const Tensor kept = run.saved.alloc(DType::i32, {d.tokens, d.k});
          const int64_t dropped =
              capacity_forward(run, kept, d.choice, d.selected, d.w, d.bounds, d.experts, c, key);
          const std::vector<int32_t> want = search(d, c, scopes, key), selected = ints(d.selected);
          ASSERT_EQ(ints(kept), want)
              << "seed " << seed << " order " << static_cast<int>(order) << " scope "
              << static_cast<int>(kind) << " skipped " << skipped;
          ASSERT_EQ(dropped, std::count(selected.begin(), selected.end(), 1) -
                                 std::count(want.begin(), want.end(), 1));
          drops += dropped;
          kept_when[skipped] = want;
        }
        skips_that_matter += kept_when[0] != kept_when[1];
      }
  }
  EXPECT_GT(drops, 1000);
  EXPECT_GT(skips_that_matter, 100);
}

TEST(Capacity, ZeroDropsAllAndEndlessNone) {
  moe::Run run(1);
  const Drawn d = draw_case(run.saved, 4, false);
  const std::vector<int32_t> selected = ints(d.selected);
  const Tensor kept = run.saved.alloc(DType::i32, {d.tokens, d.k});
  const auto asked = std::count(selected.begin(), selected.end(), 1);
  for (Order order : kOrders)
    for (bool skipped : {false, true}) {
      BufferCapacity c{.factor = 1e-9f, .minimum = 0, .order = order};
      c.skipped_take_room = skipped;
      EXPECT_EQ(capacity_forward(run, kept, d.choice, d.selected, d.w, d.bounds, d.experts, c,
                                 RngKey::from_seed(1)),
                asked);
      EXPECT_EQ(ints(kept), std::vector<int32_t>(selected.size(), 0));
      c.factor = 3e38f;
      EXPECT_EQ(capacity_forward(run, kept, d.choice, d.selected, d.w, d.bounds, d.experts, c,
                                 RngKey::from_seed(1)),
                0);
      EXPECT_EQ(ints(kept), selected);
    }
}

TEST(Capacity, RandomOrderIsAnotherForEveryKey) {
  moe::Run run(1);
  const int64_t tokens = 200;
  const Tensor choice = run.saved.alloc_zeroed(DType::i32, {tokens, 1}),
               w = draw(run.saved, DType::f32, {tokens, 1}, 1),
               kept = run.saved.alloc(DType::i32, {tokens, 1});
  const auto kept_by = [&](uint64_t seed) {
    EXPECT_EQ(capacity_forward(run, kept, choice, ones(run.saved, tokens, 1), w, {}, 2,
                               BufferCapacity{.factor = 1, .order = Order::random},
                               RngKey::from_seed(seed)),
              100);
    return ints(kept);
  };
  const std::vector<int32_t> first = kept_by(1);
  EXPECT_EQ(first, kept_by(1));
  EXPECT_NE(first, kept_by(2));
  // of 100 kept; half on average, standard deviation 3.5
  const auto early = std::count(first.begin(), first.begin() + 100, 1);
  EXPECT_GT(early, 35);
  EXPECT_LT(early, 65);
}

}  // namespace
}  // namespace moe::test::capacity_test
