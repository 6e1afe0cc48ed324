// Gates of heads against their formula, and their gradients against dual numbers.
#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twin_router.h"

namespace moe::test::head_gates_test {
namespace {

constexpr int64_t kHeads = 3, kWidth = 11;

template <class T>
std::vector<T> twin_gated(const std::vector<T>& o, const std::vector<T>& gate) {
  std::vector<T> y;
  for (size_t i = 0; i < o.size(); ++i)
    y.push_back(o[i] * twin::sigmoid(gate[i / static_cast<size_t>(kWidth)]));
  return y;
}

class HeadGates : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(HeadGates, WeighWhatHeadsGive) {
  constexpr int64_t kRows = 70;
  // A view of a wider tensor: rows lie apart.
  const Tensor o = draw(memory, dtype, {kRows, kHeads * kWidth + 4}, 1)
                       .slice_cols(2, 2 + kHeads * kWidth),
               gate = draw(memory, DType::f32, {kRows, kHeads}, 2),
               dy = draw(memory, dtype, {kRows, kHeads * kWidth}, 3),
               y = memory.alloc(dtype, {kRows, kHeads * kWidth}),
               do_ = memory.alloc(dtype, {kRows, kHeads * kWidth}),
               dgate = memory.alloc(DType::f32, {kRows, kHeads});
  const std::vector<double> given = values(o), gates = values(gate), r = values(dy);
  const std::vector<double> want = twin_gated(given, gates);
  ops::head_gates_forward(run, y, o, gate);
  expect_near(y, want, tolerance(dtype), "y");
  fill(y, std::vector<double>(want.size(), 7));
  ops::head_gates_backward(run, do_, dgate, y, dy, o, gate);
  expect_near(y, want, tolerance(dtype), "y again");
  std::vector<double> want_do, want_dgate(gates.size());
  for (size_t i = 0; i < given.size(); ++i) {
    const size_t head = i / static_cast<size_t>(kWidth);
    const double s = twin::sigmoid(gates[head]);
    want_do.push_back(s * r[i]);
    want_dgate[head] += s * (1 - s) * r[i] * given[i];
  }
  expect_near(do_, want_do, tolerance(dtype), "do");
  expect_near(dgate, want_dgate, tolerance(dtype), "dgate");

  // In place of dy, and of o.
  ops::head_gates_backward(run, dy, dgate, y, dy, o, gate);
  expect_near(dy, want_do, tolerance(dtype), "do in place");
  ops::head_gates_forward(run, o, o, gate);
  expect_near(o, want, tolerance(dtype), "y in place");
}

INSTANTIATE_TEST_SUITE_P(All, HeadGates,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(HeadGatesOf, TheFormulaHasThatGradient) {
  Arena memory;
  const std::vector<double> o = values(draw(memory, DType::f32, {2, kHeads * kWidth}, 1)),
                            gate = values(draw(memory, DType::f32, {2, kHeads}, 2)),
                            r = values(draw(memory, DType::f32, {2, kHeads * kWidth}, 3));
  const auto loss = [&](const DualVector& of_o, const DualVector& of_gate) {
    return inner(twin_gated(of_o, of_gate), r);
  };
  moe::Run run(1);
  const auto put = [&](const std::vector<double>& x, int64_t cols) {
    const Tensor t = memory.alloc(DType::f32, {2, cols});
    fill(t, x);
    return t;
  };
  const Tensor do_ = put(o, kHeads * kWidth), dgate = put(gate, kHeads),
               y = put(o, kHeads * kWidth);
  ops::head_gates_backward(run, do_, dgate, y, put(r, kHeads * kWidth), put(o, kHeads * kWidth),
                           put(gate, kHeads));
  expect_near(do_,
              dual_gradient(o, [&](const DualVector& at) { return loss(at, constants(gate)); }),
              kTwinF32, "do");
  expect_near(dgate,
              dual_gradient(gate, [&](const DualVector& at) { return loss(constants(o), at); }),
              kTwinF32, "dgate");
}

TEST(HeadGatesOf, GatesFarFromZero) {
  Arena memory;
  moe::Run run(1);
  const Tensor o = memory.alloc(DType::f32, {1, 2}), gate = memory.alloc(DType::f32, {1, 2});
  fill(o, {3, 3});
  fill(gate, {-200, 200});
  ops::head_gates_forward(run, o, o, gate);
  EXPECT_EQ(values(o), (std::vector<double>{0, 3}));
}

TEST(HeadGatesErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Tensor o = draw(memory, DType::f32, {2, 6}, 1), half = draw(memory, DType::bf16, {2, 6}, 1),
               gate = draw(memory, DType::f32, {2, 4}, 2),
               fits = draw(memory, DType::f32, {2, 3}, 3);
  EXPECT_THROW(ops::head_gates_forward(run, o, o, gate), Error);
  EXPECT_THROW(ops::head_gates_forward(run, o, half, fits), Error);
  EXPECT_THROW(ops::head_gates_backward(run, o, gate, o, o, o, fits), Error);
}

}  // namespace
}  // namespace moe::test::head_gates_test
