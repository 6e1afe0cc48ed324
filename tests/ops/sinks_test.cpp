// Sinks against their formulas: as if each head had one score more, whose value is nothing.
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"

namespace moe::test::sinks_test {
namespace {

class Sinks : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(Sinks, TakeAShareOfTheWeights) {
  constexpr int64_t kRows = 70, kHeads = 3, kWidth = 11;
  Param sinks = draw_param(memory, {kHeads}, 1);
  fill(sinks.grad, values(draw(memory, DType::f32, {kHeads}, 2)));
  const Tensor o = draw(memory, dtype, {kRows, kHeads * kWidth + 4}, 3)
                       .slice_cols(2, 2 + kHeads * kWidth),
               lse = draw(memory, DType::f32, {kRows, kHeads}, 4),
               dout = draw(memory, dtype, {kRows, kHeads * kWidth}, 5);
  const auto o0 = values(o), lse0 = values(lse), s = values(sinks.value), d = values(dout);
  std::vector<double> want_o, want_lse, grad = values(sinks.grad);
  for (size_t n = 0; n < kRows; ++n)
    for (size_t h = 0; h < kHeads; ++h) {
      const double l = lse0[n * kHeads + h], both = std::log(std::exp(l) + std::exp(s[h]));
      want_lse.push_back(both);
      for (size_t c = 0; c < kWidth; ++c) {
        const size_t at = (n * kHeads + h) * kWidth + c;
        want_o.push_back(o0[at] * std::exp(l - both));
        grad[h] -= std::exp(s[h] - both) * d[at] * want_o.back();
      }
    }
  ops::attention_sinks(run, o, lse, sinks);
  expect_near(o, want_o, tolerance(dtype), "o");
  expect_near(lse, want_lse, kTwinF32, "lse");
  ops::attention_sinks_backward(run, sinks, dout, o, lse);
  expect_near(sinks.grad, grad, tolerance(dtype), "dsinks");
}

INSTANTIATE_TEST_SUITE_P(All, Sinks,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(SinksOf, ScoresFarApart) {
  Arena memory;
  moe::Run run(1);
  Param sinks = draw_param(memory, {2}, 1);
  fill(sinks.value, {200, -200});
  const Tensor o = memory.alloc(DType::f32, {1, 2}), lse = memory.alloc(DType::f32, {1, 2});
  fill(o, {3, 3});
  fill(lse, {1, 1});
  ops::attention_sinks(run, o, lse, sinks);
  EXPECT_EQ(values(o), (std::vector<double>{0, 3}));
  EXPECT_EQ(values(lse), (std::vector<double>{200, 1}));
}

TEST(SinksOf, ShapesThatDoNotFitAreNamed) {
  Arena memory;
  moe::Run run(1);
  Param sinks = draw_param(memory, {3}, 1);
  const Tensor o = draw(memory, DType::f32, {2, 8}, 1), lse = draw(memory, DType::f32, {2, 3}, 2);
  EXPECT_THROW(ops::attention_sinks(run, o, lse, sinks), Error);
}

}  // namespace
}  // namespace moe::test::sinks_test
