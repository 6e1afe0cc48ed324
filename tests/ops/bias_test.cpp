// The bias ops against their scalar twins, the twins against dual numbers, and the law of rows in
// bits.
#include <numeric>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/dual.h"
#include "support/twins_matmul.h"

namespace moe::test::bias_test {
namespace {

using Offsets = std::vector<int64_t>;

struct Case {
  Offsets offsets;
  int64_t out;
};
const std::vector<Case> kCases = {{{0, 1}, 5},
                                  {{0, 0, 3, 3, 70}, 300},
                                  {{0, 33, 34, 200}, 64},
                                  {{0, 130, 131}, 1},
                                  {{0, 5, 400}, 257}};

class Bias : public testing::TestWithParam<std::tuple<DType, int, bool>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  bool weighted = std::get<2>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(Bias, ForwardAndBackwardAreTheTwin) {
  for (const Case& c : kCases) {
    const int64_t rows = c.offsets.back(), experts = static_cast<int64_t>(c.offsets.size()) - 1;
    Param bias = draw_param(memory, {experts, c.out}, 1);
    fill(bias.grad, values(draw(memory, DType::f32, {experts, c.out}, 7)));
    const Tensor weight = draw(memory, DType::f32, {rows}, 2), given = weighted ? weight : Tensor();
    const std::vector<double> weights =
        weighted ? values(weight) : std::vector<double>(static_cast<size_t>(rows), 1.0);
    const Tensor y = draw(memory, dtype, {rows, c.out + 4}, 3).slice_cols(2, 2 + c.out),
                 dy = draw(memory, dtype, {rows, c.out}, 4);

    auto want = bias_forward_twin(values(bias.value), weights, c.offsets, c.out);
    const auto before = values(y);
    for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
    ops::bias_forward_acc(run, y, bias, given, c.offsets);
    expect_near(y, want, tolerance(dtype), "y");

    auto d = bias_backward_twin(values(dy), values(bias.value), weights, c.offsets, c.out);
    const auto grad = values(bias.grad);
    for (size_t i = 0; i < grad.size(); ++i) d.bias[i] += grad[i];
    const Tensor dweight = draw(memory, DType::f32, {rows}, 6);
    const auto dweight_before = values(dweight);
    for (size_t i = 0; i < dweight_before.size(); ++i) d.weight[i] += dweight_before[i];
    ops::bias_backward(run, weighted ? dweight : Tensor(), bias, dy, given, c.offsets);
    expect_near(bias.grad, d.bias, kTwinF32, "db");
    expect_near(dweight, weighted ? d.weight : dweight_before, kTwinF32, "dweight");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bias,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 2), testing::Bool()),
                         [](const auto& given) {
                           return std::string(name_of(std::get<0>(given.param))) + "_threads" +
                                  std::to_string(std::get<1>(given.param)) +
                                  (std::get<2>(given.param) ? "_weighted" : "");
                         });

TEST(BiasLaw, ARowIsAlone) {
  Arena memory;
  moe::Run one(1), two(2);
  const int64_t rows = 300, out = 200;
  Param bias = draw_param(memory, {out}, 1);
  const Tensor weight = draw(memory, DType::f32, {rows}, 2),
               dy = draw(memory, DType::f32, {rows, out}, 4);
  const Tensor y = draw(memory, DType::f32, {rows, out}, 3),
               dweight = memory.alloc_zeroed(DType::f32, {rows});
  ops::bias_forward_acc(two, y, bias, weight, Offsets{0, rows});
  ops::bias_backward(two, dweight, bias, dy, weight, Offsets{0, rows});
  for (int64_t r = 0; r < rows; ++r) {
    const ArenaScope scope(memory);
    const Tensor whole = draw(memory, DType::f32, {rows, out}, 3),
                 alone = whole.slice_rows(r, r + 1),
                 alone_dweight = memory.alloc_zeroed(DType::f32, {1});
    Tensor one_weight(weight.as<float>() + r, DType::f32, {1});
    ops::bias_forward_acc(one, alone, bias, one_weight, Offsets{0, 1});
    ops::bias_backward(one, alone_dweight, bias, dy.slice_rows(r, r + 1), one_weight,
                       Offsets{0, 1});
    ASSERT_TRUE(same_bits(alone, y.slice_rows(r, r + 1))) << r;
    ASSERT_EQ(alone_dweight.as<float>()[0], dweight.as<float>()[r]) << r;
  }
}

TEST(Bias, ListedRowsAreTheirCopies) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Arena memory;
    moe::Run run(2);
    const Offsets offsets{0, 3, 3, 8};
    const std::vector<int32_t> list = {4, 0, 4, 2, 1, 3, 3, 0};
    Param bias = draw_param(memory, {3, 20}, 1), alone = draw_param(memory, {3, 20}, 1);
    const Tensor all = draw(memory, dtype, {5, 20}, 2), copy = memory.alloc(dtype, {8, 20}),
                 weight = draw(memory, DType::f32, {8}, 3);
    ops::gather_rows(run, copy, all, list);
    const Tensor dweight = memory.alloc_zeroed(DType::f32, {8}),
                 dweight_alone = memory.alloc_zeroed(DType::f32, {8});
    ops::bias_backward(run, dweight, bias, {all, list}, weight, offsets);
    ops::bias_backward(run, dweight_alone, alone, copy, weight, offsets);
    EXPECT_GT(norm(values(bias.grad)), 0);
    EXPECT_TRUE(same_bits(bias.grad, alone.grad) && same_bits(dweight, dweight_alone))
        << name_of(dtype);
  }
}

TEST(BiasManners, FrozenEmptyAndMisfitting) {
  Arena memory;
  moe::Run run(2);
  Param bias = draw_param(memory, {2, 8}, 1);
  const Tensor dy = draw(memory, DType::f32, {6, 8}, 2),
               dweight = memory.alloc_zeroed(DType::f32, {6}),
               weight = draw(memory, DType::f32, {6}, 3), grad = bias.grad;
  bias.grad = Tensor();
  ops::bias_backward(run, dweight, bias, dy, weight, Offsets{0, 2, 6});
  EXPECT_EQ(norm(values(grad)), 0);
  EXPECT_GT(norm(values(dweight)), 0) << "a frozen bias still passes the gradient to the weights";
  bias.grad = grad;
  ops::bias_backward(run, Tensor(), bias, memory.alloc(DType::f32, {0, 8}), Tensor(),
                     Offsets{0, 0, 0});
  EXPECT_EQ(norm(values(grad)), 0);
  EXPECT_THROW(ops::bias_forward_acc(run, dy, bias, weight, Offsets{0, 6}), Error);
  EXPECT_THROW(ops::bias_forward_acc(run, dy.slice_cols(0, 7), bias, weight, Offsets{0, 2, 6}),
               Error);
  EXPECT_THROW(
      ops::bias_forward_acc(run, dy, bias, dweight.reshape({2, 3}).at(0), Offsets{0, 2, 6}), Error);
}

TEST(BiasTwin, BackwardIsTheDerivative) {
  const Offsets offsets{0, 3, 3, 8};
  const int64_t out = 5;
  const auto numbers = [](size_t n, uint64_t seed) {
    std::vector<double> v(n);
    for (size_t i = 0; i < n; ++i) v[i] = normal(RngKey::from_seed(seed), i);
    return v;
  };
  const auto b = numbers(15, 1), weight = numbers(8, 2), dy = numbers(40, 3), vb = numbers(15, 4),
             vw = numbers(8, 5);
  std::vector<Dual<double>> b_dual, w_dual;
  for (size_t i = 0; i < b.size(); ++i) b_dual.emplace_back(b[i], vb[i]);
  for (size_t i = 0; i < weight.size(); ++i) w_dual.emplace_back(weight[i], vw[i]);
  const auto y = bias_forward_twin(b_dual, w_dual, offsets, out);
  double want = 0;
  for (size_t i = 0; i < y.size(); ++i) want += dy[i] * y[i].d;
  const auto d = bias_backward_twin(dy, b, weight, offsets, out);
  const double got = std::inner_product(vb.begin(), vb.end(), d.bias.begin(), 0.0) +
                     std::inner_product(vw.begin(), vw.end(), d.weight.begin(), 0.0);
  EXPECT_NEAR(got, want, kTwinDual * norm(dy));
  EXPECT_GT(std::abs(want), 1e-3);
}

}  // namespace
}  // namespace moe::test::bias_test
