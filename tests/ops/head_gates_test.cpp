// Gates against their twin, whose derivatives dual numbers give: of heads and of each number, by
// sigmoids and by log(1 + e^z).
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twin_gates.h"

namespace moe::test::head_gates_test {
namespace {

using ops::GateCurve;

struct Sizes {
  int64_t rows, gates, width;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {5, 3, 7}, {70, 4, 16}, {9, 33, 1}};

class HeadGates : public testing::TestWithParam<std::tuple<DType, int, GateCurve>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  GateCurve curve = std::get<2>(GetParam());
  Arena memory;
};

TEST_P(HeadGates, WeighAndHaveTheTwinsGradients) {
  const bool softplus = curve == GateCurve::softplus;
  for (const auto& [rows, gates, width] : kSizes) {
    const int64_t cols = gates * width;
    // Views of wider tensors: rows lie apart.
    const Tensor o = draw(memory, dtype, {rows, cols + 4}, 1).slice_cols(2, 2 + cols),
                 gate = draw(memory, DType::f32, {rows, gates + 2}, 2).slice_cols(1, 1 + gates),
                 dy = draw(memory, dtype, {rows, cols}, 3), y = memory.alloc(dtype, {rows, cols}),
                 do_ = memory.alloc(dtype, {rows, cols}),
                 dgate = memory.alloc(DType::f32, {rows, gates});
    const std::vector<double> o0 = values(o), z0 = values(gate), r = values(dy),
                              want = twin::head_gates(o0, z0, softplus);
    ops::head_gates_forward(run, y, o, gate, curve);
    expect_near(y, want, tolerance(dtype), "y");
    fill(y, std::vector<double>(want.size(), 7));
    ops::head_gates_backward(run, do_, dgate, y, dy, o, gate, curve);
    expect_near(y, want, tolerance(dtype), "y again");

    // Each number of o has one of y; each of a gate has those that it weighs.
    using D = Dual<double>;
    std::vector<D> os(o0.begin(), o0.end()), zs(z0.begin(), z0.end());
    std::vector<double> want_do, want_dgate(z0.size());
    for (D& v : os) v.d = 1;
    const std::vector<D> along_o = twin::head_gates(os, zs, softplus);
    for (size_t i = 0; i < along_o.size(); ++i) want_do.push_back(r[i] * along_o[i].d);
    for (D& v : os) v.d = 0;
    for (D& v : zs) v.d = 1;
    const std::vector<D> along_z = twin::head_gates(os, zs, softplus);
    for (size_t i = 0; i < along_z.size(); ++i)
      want_dgate[i / static_cast<size_t>(width)] += r[i] * along_z[i].d;
    EXPECT_GT(norm(want_dgate), 0);
    expect_near(do_, want_do, tolerance(dtype), "do");
    expect_near(dgate, want_dgate, tolerance(dtype), "dgate");

    // In place of dy, and of o.
    ops::head_gates_backward(run, dy, dgate, y, dy, o, gate, curve);
    expect_near(dy, want_do, tolerance(dtype), "do in place");
    ops::head_gates_forward(run, o, o, gate, curve);
    expect_near(o, want, tolerance(dtype), "y in place");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, HeadGates,
    testing::Combine(testing::Values(DType::f32, DType::bf16), testing::Values(1, 3),
                     testing::Values(GateCurve::sigmoid, GateCurve::softplus)));

TEST(HeadGatesOf, GatesFarFromZero) {
  Arena memory;
  moe::Run run(1);
  const Tensor o = memory.alloc(DType::f32, {1, 4}), gate = memory.alloc(DType::f32, {1, 4}),
               dgate = memory.alloc(DType::f32, {1, 4}), y = memory.alloc(DType::f32, {1, 4});
  fill(o, {3, 3, 3, 3});
  fill(gate, {-200, 200, 20.5, 0});
  ops::head_gates_forward(run, y, o, gate, GateCurve::sigmoid);
  expect_near(y, {0, 3, 3, 1.5}, 1e-6, "sigmoids");
  ops::head_gates_forward(run, y, o, gate, GateCurve::softplus);
  expect_near(y, {0, 600, 61.5, 3 * std::log(2.0)}, 1e-6, "softplus");
  fill(o, {1, 1, 1, 1});
  const Tensor ones = memory.alloc(DType::f32, {1, 4});
  fill(ones, {1, 1, 1, 1});
  ops::head_gates_backward(run, ones, dgate, y, ones, o, gate, GateCurve::softplus);
  expect_near(dgate, {0, 1, 1, 0.5}, 1e-6, "dgate");
}

// A row hangs on no other row, on their number or on the threads.
TEST(HeadGatesOf, RowsAloneAndAmongOthers) {
  Arena memory;
  moe::Run one(1), three(3);
  const Tensor o = draw(memory, DType::f32, {300, 24}, 1),
               gate = draw(memory, DType::f32, {300, 3}, 2),
               y = memory.alloc(DType::f32, {300, 24}), alone = memory.alloc(DType::f32, {1, 24});
  ops::head_gates_forward(three, y, o, gate, GateCurve::softplus);
  for (int64_t n = 0; n < 300; ++n) {
    ops::head_gates_forward(one, alone, o.slice_rows(n, n + 1), gate.slice_rows(n, n + 1),
                            GateCurve::softplus);
    EXPECT_EQ(values(alone), values(y.slice_rows(n, n + 1))) << n;
  }
}

TEST(HeadGatesErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Tensor o = draw(memory, DType::f32, {2, 6}, 1), half = draw(memory, DType::bf16, {2, 6}, 1),
               gate = draw(memory, DType::f32, {2, 4}, 2),
               fits = draw(memory, DType::f32, {2, 3}, 3);
  const GateCurve curve = GateCurve::sigmoid;
  EXPECT_THROW(ops::head_gates_forward(run, o, o, gate, curve), Error);
  EXPECT_THROW(ops::head_gates_forward(run, o, half, fits, curve), Error);
  EXPECT_THROW(ops::head_gates_backward(run, o, gate, o, o, o, fits, curve), Error);
}

}  // namespace
}  // namespace moe::test::head_gates_test
