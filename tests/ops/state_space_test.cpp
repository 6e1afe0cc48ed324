// Mamba-2's state space against its scalar twin: forward, every gradient, and that a state goes on
// in pieces as in one.
#include <algorithm>

#include "core/error.h"
#include "ops/ops.h"
#include "support/check.h"
#include "support/gradient.h"
#include "support/twin_linear.h"

namespace moe::test::state_space_test {
namespace {

using twin::flat;
using twin::matrix;

struct Case {
  ops::StateHeads heads;
  std::vector<int64_t> bounds;
  int64_t channels() const { return out() + 2 * heads.groups * heads.states; }
  int64_t out() const { return heads.heads * heads.width; }
};
const std::vector<Case> kCases = {{{1, 1, 3, 4}, {0, 3}},
                                  {{4, 2, 3, 5}, {0, 2, 2, 6}},
                                  {{2, 1, 2, 3}, {0, 70}},   // more than a chunk
                                  {{2, 2, 1, 37}, {0, 4}}};  // more than a vector

struct Input {
  Tensor xbc, dt;
  Param a_log, dt_bias, skip;
  Input(Arena& memory, DType dtype, const Case& c)
      : xbc(draw(memory, dtype, {c.bounds.back(), c.channels()}, 1)),
        dt(draw(memory, DType::f32, {c.bounds.back(), c.heads.heads}, 2)),
        a_log(draw_param(memory, {c.heads.heads}, 3)),
        dt_bias(draw_param(memory, {c.heads.heads}, 4)),
        skip(draw_param(memory, {c.heads.heads}, 5)) {}
};

class StateSpaceOp : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  moe::Run run{std::get<1>(GetParam())};
  Arena memory;
};

TEST_P(StateSpaceOp, ItsOutputAndItsGradients) {
  for (const Case& c : kCases) {
    Input in(memory, dtype, c);
    const int64_t rows = c.bounds.back(), heads = c.heads.heads;
    const Tensor y = memory.alloc(dtype, {rows, c.out()}),
                 dy = draw(memory, dtype, {rows, c.out()}, 6),
                 chunks = memory.alloc(DType::f32,
                                       {ops::delta_chunks(c.bounds), c.out() * c.heads.states}),
                 dxbc = memory.alloc(dtype, {rows, c.channels()}),
                 ddt = memory.alloc(DType::f32, {rows, heads});
    ops::state_space_forward(run, y, chunks, in.xbc, in.dt, in.a_log, in.dt_bias, in.skip, c.heads,
                             c.bounds, {});
    const std::vector<double> at[] = {values(in.xbc), values(in.dt), values(in.a_log.value),
                                      values(in.dt_bias.value), values(in.skip.value)};
    const auto twin_of = [&](const auto& x) {
      return flat(twin::state_space(matrix(x[0], c.channels()), matrix(x[1], heads), x[2], x[3],
                                    x[4], c.heads, c.bounds));
    };
    expect_near(y, twin_of(at), tolerance(dtype), "y");
    for (Param* param : {&in.a_log, &in.dt_bias, &in.skip}) {  // what stands there counts as zero
      std::fill_n(param->grad.as<float>(), heads, 7.0f);
      param->grad_is_zero = true;
    }
    ops::state_space_backward(run, dxbc, ddt, in.a_log, in.dt_bias, in.skip, dy, chunks, in.xbc,
                              in.dt, c.heads, c.bounds);
    const std::vector<double> r = values(dy);
    const Tensor got[] = {dxbc, ddt, in.a_log.grad, in.dt_bias.grad, in.skip.grad};
    for (size_t i = 0; i < 5; ++i) {
      DualVector dual[5];
      for (size_t j = 0; j < 5; ++j) dual[j] = constants(at[j]);
      const std::vector<double> want = dual_gradient(at[i], [&](const DualVector& x) {
        dual[i] = x;
        return inner(twin_of(dual), r);
      });
      expect_near(got[i], want, tolerance(dtype), "gradient " + std::to_string(i));
    }
  }
}

TEST_P(StateSpaceOp, AStateGoesOn) {
  const Case c = {{4, 2, 3, 37}, {0, 150}};
  const Input in(memory, dtype, c);
  const Tensor whole = memory.alloc(dtype, {150, c.out()}),
               pieces = memory.alloc(dtype, {150, c.out()});
  ops::state_space_forward(run, whole, {}, in.xbc, in.dt, in.a_log, in.dt_bias, in.skip, c.heads,
                           c.bounds, {});
  std::vector<float> kept(static_cast<size_t>(c.out() * c.heads.states));
  float* const state[] = {kept.data()};
  for (const auto& [begin, end] : {std::pair{0, 70}, {70, 71}, {71, 72}, {72, 150}}) {
    const int64_t bounds[] = {0, end - begin};
    ops::state_space_forward(run, pieces.slice_rows(begin, end), {}, in.xbc.slice_rows(begin, end),
                             in.dt.slice_rows(begin, end), in.a_log, in.dt_bias, in.skip, c.heads,
                             bounds, state);
  }
  EXPECT_EQ(values(pieces), values(whole));
}

INSTANTIATE_TEST_SUITE_P(All, StateSpaceOp,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(1, 3)));

TEST(StateSpaceErrors, NameTheOpAndTheShapes) {
  Arena memory;
  moe::Run run(1);
  const Case c = {{2, 1, 3, 4}, {0, 2}};
  const Input in(memory, DType::f32, c);
  const Tensor y = memory.alloc(DType::f32, {2, c.out()});
  EXPECT_THROW(ops::state_space_forward(run, y, {}, in.xbc, y, in.a_log, in.dt_bias, in.skip,
                                        c.heads, c.bounds, {}),
               Error);
}

}  // namespace
}  // namespace moe::test::state_space_test
