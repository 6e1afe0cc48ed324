// Sum of squares and AdamW against plain double arithmetic, with the same bits for any number of
// threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::optimizer_test {
namespace {

TEST(SumSquares, IsExactToDoubleAndTheSameForAnyThreads) {
  for (int64_t n : {1, 7, 63, 65, 4095, 4096, 4097, 100003}) {
    for (DType dtype : kFloats) {
      Arena arena;
      const Tensor x = draw(arena, dtype, {n}, 1);
      double want = 0;
      for (double v : values(x)) want += v * v;
      moe::Run one(1);
      const double got = ops::sum_squares(one, x);
      EXPECT_NEAR(got, want, 1e-13 * want) << n;
      for (int threads : {2, 3, 5}) {
        moe::Run run(threads);
        EXPECT_EQ(ops::sum_squares(run, x), got) << n << " on " << threads;
      }
    }
  }
}

TEST(SumSquares, LargeNumbersFitAndBadOnesShow) {
  moe::Run run(2);
  Arena arena;
  const Tensor x = arena.alloc_zeroed(DType::f32, {5, 1000});
  EXPECT_EQ(ops::sum_squares(run, x), 0);
  set(x, 3, 7, 3e38f);
  EXPECT_NEAR(ops::sum_squares(run, x), 9e76, 1e70);
  for (int64_t at : {0, 4, 4999}) {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      const float before = x.as<float>()[at];
      x.as<float>()[at] = bad;
      EXPECT_FALSE(std::isfinite(ops::sum_squares(run, x)));
      x.as<float>()[at] = before;
    }
  }
  EXPECT_THROW(ops::sum_squares(run, x.slice_cols(0, 10)), Error);
}

struct State {
  State(Arena& arena, int64_t n)
      : m(arena.alloc_zeroed(DType::f32, {n})), v(arena.alloc_zeroed(DType::f32, {n})) {
    param.value = draw(arena, DType::f32, {n}, 1);
    param.grad = arena.alloc(DType::f32, {n});
  }
  void give(const std::vector<double>& gradient) {
    param.grad_is_zero = false;
    fill(param.grad, gradient);
  }
  Param param;  // [n]
  Tensor m, v;  // [n]
};

TEST(AdamW, TenStepsAgreeWithTwin) {
  for (int64_t n : {1, 7, 63, 65, 384, 50007}) {
    moe::Run run(2);
    Arena arena;
    State state(arena, n);
    auto value = values(state.param.value), m = values(state.m), v = values(state.v);
    const auto start = value;
    for (int64_t step = 1; step <= 10; ++step) {
      const Tensor grad = draw(arena, DType::f32, {n}, static_cast<uint64_t>(100 + step), 0.01f);
      state.give(values(grad));
      const ops::AdamW opt{1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, step, 0.5f};
      ops::adamw_step(run, state.param, state.m, state.v, opt);
      twin::adamw_step(value, m, v, values(grad), opt);
      EXPECT_TRUE(state.param.grad_is_zero);
      ops::settle_grad(run, state.param);
      EXPECT_EQ(norm(values(state.param.grad)), 0);
    }
    const std::string what = label("adamw", {}, n);
    expect_near(state.param.value, value, tolerance(DType::f32), what + " value");
    expect_near(state.m, m, tolerance(DType::f32), what + " m");
    expect_near(state.v, v, tolerance(DType::f32), what + " v");
    EXPECT_GT(relative_error(value, start), 1e-3) << what;
  }
}

// Worked by hand for the first step: mhat = g, vhat = g^2, so the value moves by lr towards
// -sign(g) after its decay.
TEST(AdamW, FirstStepMovesByTheLearningRate) {
  moe::Run run(1);
  Arena arena;
  State state(arena, 3);
  fill(state.param.value, {1, -2, 4});
  state.give({0.5, -0.25, 0});
  ops::adamw_step(run, state.param, state.m, state.v, {0.125f, 0.9f, 0.95f, 0, 0.5f, 1, 1});
  EXPECT_NEAR(get(state.param.value, 0, 0), 1 * 0.9375 - 0.125, 1e-6);
  EXPECT_NEAR(get(state.param.value, 0, 1), -2 * 0.9375 + 0.125, 1e-6);
  EXPECT_TRUE(std::isnan(get(state.param.value, 0, 2))) << "0 / 0 without eps is not hidden";
}

// The copies that products had packed follow the master; the next product, of any dtype and
// direction, uses what a new packing would give, bit for bit.
TEST(AdamW, RefreshesPackedCopies) {
  for (const auto& [experts, out, in] :
       {std::array<int64_t, 3>{1, 5, 7}, {1, 8, 384}, {3, 130, 65}, {2, 200, 96}}) {
    moe::Run run(2);
    Arena arena;
    Param fused = draw_param(arena, {experts, out, in}, 1), plain;
    plain.value = arena.alloc(DType::f32, {experts, out, in});
    const Tensor m = arena.alloc_zeroed(DType::f32, {experts, out, in}),
                 v = arena.alloc_zeroed(DType::f32, {experts, out, in});
    std::vector<int64_t> offsets;
    for (int64_t e = 0; e <= experts; ++e) offsets.push_back(9 * e);
    const auto products = [&, experts = experts, out = out, in = in](Param& w) {
      std::vector<double> all;
      for (DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = draw(arena, dtype, {9 * experts, in}, 2),
                     dy = draw(arena, dtype, {9 * experts, out}, 3);
        const Tensor y = arena.alloc(DType::f32, {9 * experts, out}),
                     dx = arena.alloc(DType::f32, {9 * experts, in});
        ops::matmul_forward(run, y, x, w, offsets);
        ops::matmul_dx(run, dx, dy, w, offsets);
        for (const Tensor& t : {y, dx})
          for (double number : values(t)) all.push_back(number);
      }
      return all;
    };
    const std::vector<double> before = products(fused);
    fill(fused.grad, values(draw(arena, DType::f32, {experts * out, in}, 4)));
    ops::adamw_step(run, fused, m, v, {1e-1f, 0.9f, 0.999f, 1e-8f, 0.1f, 1, 1});
    std::memcpy(plain.value.data, fused.value.data, static_cast<size_t>(fused.value.bytes()));
    EXPECT_NE(products(fused), before);
    EXPECT_EQ(products(fused), products(plain)) << out << " x " << in;
  }
}

TEST(AdamW, SameForAnyThreads) {
  expect_same_for_any_threads(
      [arena = std::make_shared<Arena>()](moe::Run& run) {
        State state(*arena, 100003);
        for (int64_t step = 1; step <= 3; ++step) {
          state.give(values(draw(*arena, DType::f32, {100003}, static_cast<uint64_t>(step))));
          ops::adamw_step(run, state.param, state.m, state.v,
                          {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, step, 1});
        }
        return state.param.value;
      },
      "adamw");
}

// A parameter moved in parts has the bits of one moved at once, and its gradient stays.
TEST(AdamW, PartsAreMovedAsTheWhole) {
  moe::Run run(1);
  Arena arena;
  const ops::AdamW opt{1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 1, 0.5f};
  State whole(arena, 1003), parts(arena, 1003);
  for (State* state : {&whole, &parts}) state->give(values(draw(arena, DType::f32, {1003}, 5)));
  ops::adamw_step(run, whole.param, whole.m, whole.v, opt);
  const std::vector<double> grad = values(parts.param.grad);
  for (const auto& [begin, count] : {std::pair(0, 333), {333, 1}, {334, 669}}) {
    const auto part = [begin = begin, count = count](const Tensor& t) {
      return Tensor(t.as<float>() + begin, DType::f32, {count});
    };
    ops::adamw_step(run, part(parts.param.value), part(parts.m), part(parts.v),
                    part(parts.param.grad), opt);
  }
  EXPECT_EQ(values(parts.param.value), values(whole.param.value));
  EXPECT_EQ(values(parts.m), values(whole.m));
  EXPECT_EQ(values(parts.v), values(whole.v));
  EXPECT_EQ(values(parts.param.grad), grad);
}

TEST(AdamW, WhatDoesNotFitIsNamed) {
  moe::Run run(1);
  Arena arena;
  State state(arena, 8), other(arena, 7);
  EXPECT_THROW(
      ops::adamw_step(run, state.param, state.m, state.v, {1e-3f, 0.9f, 0.999f, 1e-8f, 0, 0, 1}),
      Error);
  try {
    ops::adamw_step(run, state.param, state.m, other.v, {1e-3f, 0.9f, 0.999f, 1e-8f, 0, 1, 1});
    FAIL() << "moments of another shape were taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("v f32 [7]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moe::test::optimizer_test
