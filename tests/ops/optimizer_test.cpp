// Sum of squares and AdamW against plain double arithmetic, with the same bits for any number of threads.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test {
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
      : value(draw(arena, DType::f32, {n}, 1)),
        m(arena.alloc_zeroed(DType::f32, {n})),
        v(arena.alloc_zeroed(DType::f32, {n})),
        grad(arena.alloc(DType::f32, {n})) {}
  Tensor value, m, v, grad;  // [n]
};

TEST(AdamW, TenStepsAgreeWithTwin) {
  for (int64_t n : {1, 7, 63, 65, 384, 50007}) {
    moe::Run run(2);
    Arena arena;
    const State state(arena, n);
    auto value = values(state.value), m = values(state.m), v = values(state.v);
    const auto start = value;
    for (int64_t step = 1; step <= 10; ++step) {
      const Tensor grad = draw(arena, DType::f32, {n}, static_cast<uint64_t>(100 + step), 0.01f);
      fill(state.grad, values(grad));
      const ops::AdamW opt{1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, step, 0.5f};
      ops::adamw_step(run, state.value, state.m, state.v, state.grad, opt);
      twin::adamw_step(value, m, v, values(grad), opt);
      EXPECT_EQ(norm(values(state.grad)), 0) << "the gradient is set to zero";
    }
    const std::string what = label("adamw", {}, n);
    expect_near(state.value, value, tolerance(DType::f32), what + " value");
    expect_near(state.m, m, tolerance(DType::f32), what + " m");
    expect_near(state.v, v, tolerance(DType::f32), what + " v");
    EXPECT_GT(relative_error(value, start), 1e-3) << what;
  }
}

// Worked by hand for the first step: mhat = g, vhat = g^2, so the value moves by lr towards -sign(g) after its decay.
TEST(AdamW, FirstStepMovesByTheLearningRate) {
  moe::Run run(1);
  Arena arena;
  const State state(arena, 3);
  fill(state.value, {1, -2, 4});
  fill(state.grad, {0.5, -0.25, 0});
  ops::adamw_step(run, state.value, state.m, state.v, state.grad, {0.125f, 0.9f, 0.95f, 0, 0.5f, 1, 1});
  EXPECT_NEAR(get(state.value, 0, 0), 1 * 0.9375 - 0.125, 1e-6);
  EXPECT_NEAR(get(state.value, 0, 1), -2 * 0.9375 + 0.125, 1e-6);
  EXPECT_TRUE(std::isnan(get(state.value, 0, 2))) << "0 / 0 without eps is not hidden";
}

TEST(AdamW, SameForAnyThreads) {
  expect_same_for_any_threads(
      [arena = std::make_shared<Arena>()](moe::Run& run) {
        const State state(*arena, 100003);
        for (int64_t step = 1; step <= 3; ++step) {
          fill(state.grad, values(draw(*arena, DType::f32, {100003}, static_cast<uint64_t>(step))));
          ops::adamw_step(run, state.value, state.m, state.v, state.grad, {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, step, 1});
        }
        return state.value;
      },
      "adamw");
}

TEST(AdamW, WhatDoesNotFitIsNamed) {
  moe::Run run(1);
  Arena arena;
  const State state(arena, 8), other(arena, 7);
  EXPECT_THROW(ops::adamw_step(run, state.value, state.m, state.v, state.grad, {1e-3f, 0.9f, 0.999f, 1e-8f, 0, 0, 1}), Error);
  try {
    ops::adamw_step(run, state.value, state.m, other.v, state.grad, {1e-3f, 0.9f, 0.999f, 1e-8f, 0, 1, 1});
    FAIL() << "moments of another shape were taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("v f32 [7]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moe::test
