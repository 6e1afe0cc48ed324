// Mamba-1's selective scan against its scalar twin: forward, every gradient, that a state goes on
// in pieces as in one, and that neither neighbours nor threads change a bit.
#include <algorithm>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twin_linear.h"

namespace moe::test::selective_scan_test {
namespace {

using twin::flat;
using twin::matrix;

struct Case {
  int64_t channels, states;
  std::vector<int64_t> bounds;
  int64_t rows() const { return bounds.back(); }
};
const std::vector<Case> kCases = {{3, 4, {0, 3}},
                                  {5, 1, {0, 2, 2, 6}},
                                  {2, 3, {0, 70, 72}},  // more than a chunk
                                  {67, 2, {0, 2}},      // more than a block
                                  {19, 5, {0, 3, 4}}};  // more than a vector

struct Input {
  Tensor x, dt, bc;
  Param a_log, dt_bias, skip;
  Input(Arena& memory, DType dtype, const Case& c)
      : x(draw(memory, dtype, {c.rows(), c.channels}, 1)),
        dt(draw(memory, dtype, {c.rows(), c.channels}, 2)),
        // as it stands behind what steps are made of
        bc(draw(memory, dtype, {c.rows(), 2 * c.states + 3}, 3).slice_cols(3, 3 + 2 * c.states)),
        a_log(draw_param(memory, {c.channels, c.states}, 4)),
        dt_bias(draw_param(memory, {c.channels}, 5)),
        skip(draw_param(memory, {c.channels}, 6)) {}
};

// What backward gives, in memory of its own.
struct Gradients {
  Tensor dx, ddt, dbc;
  Gradients(Arena& memory, moe::Run& run, const Case& c, Input& in, Tensor dy, Tensor chunks)
      : dx(memory.alloc(in.x.dtype, {c.rows(), c.channels})),
        ddt(memory.alloc(in.x.dtype, {c.rows(), c.channels})),
        dbc(memory.alloc(in.x.dtype, {c.rows(), 2 * c.states})) {
    for (Param* param : {&in.a_log, &in.dt_bias, &in.skip}) {  // what stands there counts as zero
      std::fill_n(param->grad.as<float>(), param->grad.numel(), 7.0f);
      param->grad_is_zero = true;
    }
    ops::selective_scan_backward(run, dx, ddt, dbc, in.a_log, in.dt_bias, in.skip, dy, chunks, in.x,
                                 in.dt, in.bc, c.bounds);
  }
};

Tensor forward(Arena& memory, moe::Run& run, const Case& c, const Input& in, Tensor chunks) {
  const Tensor y = memory.alloc(in.x.dtype, {c.rows(), c.channels});
  ops::selective_scan_forward(run, y, chunks, in.x, in.dt, in.bc, in.a_log, in.dt_bias, in.skip,
                              c.bounds, {});
  return y;
}

Tensor chunks_of(Arena& memory, const Case& c) {
  return memory.alloc(DType::f32, {ops::delta_chunks(c.bounds), c.channels * c.states});
}

class SelectiveScanOp : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(SelectiveScanOp, ItsOutputAndItsGradients) {
  for (const Case& c : kCases) {
    Input in(memory, dtype, c);
    const Tensor dy = draw(memory, dtype, {c.rows(), c.channels}, 7), chunks = chunks_of(memory, c),
                 y = forward(memory, run, c, in, chunks);
    const std::vector<double> at[] = {values(in.x),
                                      values(in.dt),
                                      values(in.bc),
                                      values(in.a_log.value),
                                      values(in.dt_bias.value),
                                      values(in.skip.value)};
    const auto twin_of = [&](const auto& x) {
      return flat(twin::selective_scan(matrix(x[0], c.channels), matrix(x[1], c.channels),
                                       matrix(x[2], 2 * c.states), x[3], x[4], x[5], c.bounds));
    };
    expect_near(y, twin_of(at), tolerance(dtype), "y");
    const Gradients grads(memory, run, c, in, dy, chunks);
    const std::vector<double> r = values(dy);
    const Tensor got[] = {grads.dx,      grads.ddt,       grads.dbc,
                          in.a_log.grad, in.dt_bias.grad, in.skip.grad};
    for (size_t i = 0; i < 6; ++i) {
      DualVector dual[6];
      for (size_t j = 0; j < 6; ++j) dual[j] = constants(at[j]);
      const std::vector<double> want = dual_gradient(at[i], [&](const DualVector& x) {
        dual[i] = x;
        return inner(twin_of(dual), r);
      });
      expect_near(got[i], want, tolerance(dtype), "gradient " + std::to_string(i));
    }
  }
}

// Steps far below and far above 1: the first are e^dt, the others dt.
TEST_P(SelectiveScanOp, SmallAndLargeSteps) {
  const Case c = {21, 2, {0, 2}};
  Input in(memory, dtype, c);
  for (int64_t i = 0; i < c.channels; ++i) {
    in.dt_bias.value.as<float>()[i] = static_cast<float>(4 * (i - 10));
    in.a_log.value.row<float>(i)[0] = -3;
  }
  const std::vector<double> want =
      flat(twin::selective_scan(matrix(values(in.x), c.channels), matrix(values(in.dt), c.channels),
                                matrix(values(in.bc), 2 * c.states), values(in.a_log.value),
                                values(in.dt_bias.value), values(in.skip.value), c.bounds));
  expect_near(forward(memory, run, c, in, {}), want, tolerance(dtype), "y");
}

TEST_P(SelectiveScanOp, AStateGoesOn) {
  const Case c = {83, 16, {0, 150}};
  const Input in(memory, dtype, c);
  const Tensor whole = forward(memory, run, c, in, {}),
               pieces = memory.alloc(dtype, {150, c.channels});
  std::vector<float> kept(static_cast<size_t>(c.channels * c.states));
  float* const state[] = {kept.data()};
  for (const auto& [begin, end] : {std::pair{0, 70}, {70, 71}, {71, 72}, {72, 150}}) {
    const int64_t bounds[] = {0, end - begin};
    const auto of = [first = begin, last = end](Tensor t) { return t.slice_rows(first, last); };
    ops::selective_scan_forward(run, of(pieces), {}, of(in.x), of(in.dt), of(in.bc), in.a_log,
                                in.dt_bias, in.skip, bounds, state);
  }
  EXPECT_EQ(values(pieces), values(whole));
}

TEST_P(SelectiveScanOp, NeighboursAndThreadsChangeNoBit) {
  const Case c = {131, 4, {0, 66, 66, 69, 80}};
  Input in(memory, dtype, c);
  const Tensor dy = draw(memory, dtype, {c.rows(), c.channels}, 7), chunks = chunks_of(memory, c);
  const std::vector<double> y = values(forward(memory, run, c, in, chunks));
  const Gradients grads(memory, run, c, in, dy, chunks);
  const std::vector<double> a_log = values(in.a_log.grad);
  moe::Run other(2);
  EXPECT_EQ(values(forward(memory, other, c, in, chunks)), y);
  const Gradients again(memory, other, c, in, dy, chunks);
  EXPECT_EQ(values(again.dx), values(grads.dx));
  EXPECT_EQ(values(again.ddt), values(grads.ddt));
  EXPECT_EQ(values(again.dbc), values(grads.dbc));
  EXPECT_EQ(values(in.a_log.grad), a_log);
  // The third sequence alone.
  Input alone(memory, dtype, c);
  const Case of = {c.channels, c.states, {0, 3}};
  for (Tensor* t : {&alone.x, &alone.dt, &alone.bc}) *t = t->slice_rows(66, 69);
  const Tensor few = chunks_of(memory, of);
  const std::vector<double> got = values(forward(memory, run, of, alone, few));
  EXPECT_EQ(got, std::vector<double>(y.begin() + 66 * c.channels, y.begin() + 69 * c.channels));
  const Gradients own(memory, run, of, alone, dy.slice_rows(66, 69), few);
  EXPECT_EQ(values(own.dx), values(grads.dx.slice_rows(66, 69)));
  EXPECT_EQ(values(own.dbc), values(grads.dbc.slice_rows(66, 69)));
}

INSTANTIATE_TEST_SUITE_P(All, SelectiveScanOp,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(SelectiveScanErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Case c = {3, 4, {0, 2}};
  const Input in(memory, DType::f32, c);
  const Tensor y = memory.alloc(DType::f32, {2, 3});
  EXPECT_THROW(ops::selective_scan_forward(run, y, {}, in.x, in.dt, y, in.a_log, in.dt_bias,
                                           in.skip, c.bounds, {}),
               Error);
  EXPECT_THROW(ops::selective_scan_forward(run, y, {}, in.x, in.dt, in.bc, in.dt_bias, in.dt_bias,
                                           in.skip, c.bounds, {}),
               Error);
}

}  // namespace
}  // namespace moe::test::selective_scan_test
