// Single stages: ties, NaN, order of placement. Their gradients are checked through whole models (tests/model/model_test.cpp).
#include "moe/stages.h"

#include "core/error.h"
#include "support/check.h"

namespace moe::test {
namespace {

Tensor i32(Arena& arena, int64_t rows, int64_t cols) { return arena.alloc_zeroed(DType::i32, {rows, cols}); }

TEST(Select, BreaksTiesByTheLowerIndex) {
  moe::Run run(1);
  float scores[] = {1, 3, 3, 3, 2, 3};
  Tensor choice = i32(run.saved, 1, 4);
  select_forward(run, choice, Tensor(scores, DType::f32, {1, 6}), TopK{4});
  EXPECT_EQ(std::vector<int32_t>(choice.as<int32_t>(), choice.as<int32_t>() + 4), (std::vector<int32_t>{1, 2, 3, 5}));
}

TEST(Select, MatchesASortForEveryK) {
  moe::Run run(2);
  const Tensor s = draw(run.saved, DType::f32, {200, 16}, 3);
  for (int64_t k = 1; k <= 16; ++k) {
    Tensor choice = i32(run.saved, 200, k);
    select_forward(run, choice, s, TopK{k});
    for (int64_t n = 0; n < 200; ++n) {
      std::vector<int32_t> order(16);
      for (int32_t e = 0; e < 16; ++e) order[static_cast<size_t>(e)] = e;
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return s.row<float>(n)[a] > s.row<float>(n)[b]; });
      order.resize(static_cast<size_t>(k));
      ASSERT_EQ(std::vector<int32_t>(choice.row<int32_t>(n), choice.row<int32_t>(n) + k), order);
    }
  }
}

TEST(Select, RefusesNaN) {
  moe::Run run(1);
  float scores[] = {1, NAN, 0, 0};
  Tensor choice = i32(run.saved, 2, 1);
  EXPECT_THROW(select_forward(run, choice, Tensor(scores, DType::f32, {2, 2}), TopK{1}), Error);
}

TEST(Capacity, ChoiceMajorLetsAnyFirstChoiceGoBeforeAnySecond) {
  moe::Run run(1);
  int32_t choice[] = {0, 1, 1, 0};
  Tensor kept = i32(run.saved, 2, 2);
  BufferCapacity buffer{.factor = 1e-6f, .minimum = 1, .order = BufferCapacity::Order::choice_major};
  EXPECT_EQ(capacity_forward(kept, Tensor(choice, DType::i32, {2, 2}), 2, buffer), 2);
  EXPECT_EQ(std::vector<int32_t>(kept.as<int32_t>(), kept.as<int32_t>() + 4), (std::vector<int32_t>{1, 0, 1, 0}));
  buffer.order = BufferCapacity::Order::token_major;
  EXPECT_EQ(capacity_forward(kept, Tensor(choice, DType::i32, {2, 2}), 2, buffer), 2);
  EXPECT_EQ(std::vector<int32_t>(kept.as<int32_t>(), kept.as<int32_t>() + 4), (std::vector<int32_t>{1, 1, 0, 0}));
}

TEST(Score, SigmoidAndItsGradient) {
  moe::Run run(1);
  Tensor z = draw(run.saved, DType::f32, {3, 4}, 5), s = run.saved.alloc(DType::f32, {3, 4}), ds = draw(run.saved, DType::f32, {3, 4}, 6),
         dz = run.saved.alloc(DType::f32, {3, 4});
  score_forward(run, s, z, SigmoidScore{});
  score_backward(run, dz, ds, s, SigmoidScore{});
  for (int64_t i = 0; i < 12; ++i) {
    const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(z.as<float>()[i])));
    EXPECT_NEAR(s.as<float>()[i], sigmoid, 1e-6);
    EXPECT_NEAR(dz.as<float>()[i], ds.as<float>()[i] * sigmoid * (1 - sigmoid), 1e-6);
  }
}

TEST(Noise, IsTheSameForAnyThreadsAndNewForAnyKey) {
  moe::Run one(1), two(2);
  const Tensor x = draw(one.saved, DType::f32, {300, 8}, 1), a = one.saved.alloc(DType::f32, {300, 8}), b = one.saved.alloc(DType::f32, {300, 8});
  jitter(one, a, x, InputJitter{0.01f}, RngKey::from_seed(4));
  jitter(two, b, x, InputJitter{0.01f}, RngKey::from_seed(4));
  EXPECT_TRUE(same_bits(a, b));
  jitter(two, b, x, InputJitter{0.01f}, RngKey::from_seed(5));
  EXPECT_FALSE(same_bits(a, b));
  for (int64_t i = 0; i < x.numel(); ++i) EXPECT_NEAR(a.as<float>()[i] / x.as<float>()[i], 1, 0.0101);
}

}  // namespace
}  // namespace moe::test
