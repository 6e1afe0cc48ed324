// RMS norm and layer norm against their twins, the twins' backward against dual numbers, the law of
// rows, and equality of runs.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::norm_test {
namespace {

constexpr float kEps = 1e-5f;
constexpr double kEpsWide = kEps;

Param weight_of(Arena& arena, int64_t cols, uint64_t seed) {
  Param w = draw_param(arena, {cols}, seed);
  for (int64_t c = 0; c < cols; ++c) w.value.as<float>()[c] += 1;
  return w;
}

TEST(Norm, WithoutAWeightIsOneOfOnes) {
  moe::Run run(2);
  const Tensor x = draw(run.saved, DType::f32, {5, 19}, 1),
               dy = draw(run.saved, DType::f32, {5, 19}, 2);
  Param ones, none;
  ones.value = run.saved.alloc(DType::f32, {19});
  for (int64_t c = 0; c < 19; ++c) ones.value.as<float>()[c] = 1;
  for (const bool layer : {false, true}) {
    std::vector<Tensor> out;
    for (Param* weight : {&ones, &none}) {
      const Tensor y = run.saved.alloc(DType::f32, {5, 19}),
                   dx = run.saved.alloc(DType::f32, {5, 19}),
                   mean = run.saved.alloc(DType::f32, {5}), rstd = run.saved.alloc(DType::f32, {5});
      Param bias;
      if (layer) {
        ops::layer_norm_forward(run, y, mean, rstd, x, *weight, bias, kEps);
        ops::layer_norm_backward(run, dx, *weight, bias, dy, x, mean, rstd);
      } else {
        ops::rms_norm_forward(run, y, rstd, x, *weight, kEps);
        ops::rms_norm_backward(run, dx, *weight, dy, x, rstd);
      }
      out.insert(out.end(), {y, dx});
    }
    EXPECT_TRUE(same_bits(out[0], out[2])) << layer;
    EXPECT_TRUE(same_bits(out[1], out[3])) << layer;
    EXPECT_GT(norm(values(out[1])), 0) << layer;
  }
  EXPECT_EQ(run.scratch.mark().used, 0u);
}

TEST(Norm, WhatIsAddedToTheWeightIsAsIfTheWeightHadIt) {
  moe::Run run(2);
  const Tensor x = draw(run.saved, DType::f32, {5, 19}, 1),
               dy = draw(run.saved, DType::f32, {5, 19}, 2);
  Param from_one = draw_param(run.saved, {19}, 3), whole = draw_param(run.saved, {19}, 3),
        bias = draw_param(run.saved, {19}, 4);
  for (int64_t c = 0; c < 19; ++c) whole.value.as<float>()[c] += 1;
  for (const bool layer : {false, true}) {
    std::vector<Tensor> out;
    for (Param* weight : {&from_one, &whole}) {
      const float offset = weight == &from_one ? 1 : 0;
      const Tensor y = run.saved.alloc(DType::f32, {5, 19}),
                   dx = run.saved.alloc(DType::f32, {5, 19}),
                   mean = run.saved.alloc(DType::f32, {5}), rstd = run.saved.alloc(DType::f32, {5});
      weight->grad = run.saved.alloc_zeroed(DType::f32, {19});
      if (layer) {
        ops::layer_norm_forward(run, y, mean, rstd, x, *weight, bias, kEps, offset);
        ops::layer_norm_backward(run, dx, *weight, bias, dy, x, mean, rstd, offset);
      } else {
        ops::rms_norm_forward(run, y, rstd, x, *weight, kEps, offset);
        ops::rms_norm_backward(run, dx, *weight, dy, x, rstd, offset);
      }
      out.insert(out.end(), {y, dx, weight->grad});
    }
    for (size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(same_bits(out[i], out[i + 3])) << (layer ? "layer " : "rms ") << i;
    EXPECT_GT(norm(values(out[0])), 0);
    EXPECT_GT(norm(values(out[1])), 0);
  }
}

TEST(NormTwin, RmsBackwardAgreesWithDual) {
  const size_t cols = 7;
  const auto x = drawn(3 * cols, 1), w = drawn(cols, 2), dy = drawn(3 * cols, 3);
  const auto got = twin::rms_norm_backward(dy, x, w, kEpsWide);
  expect_near(got.dx,
              dual_gradient(x,
                            [&](const DualVector& at) {
                              return inner(twin::rms_norm_forward(at, constants(w), kEpsWide), dy);
                            }),
              kTwinDual, "dx");
  expect_near(got.dweight,
              dual_gradient(w,
                            [&](const DualVector& at) {
                              return inner(twin::rms_norm_forward(constants(x), at, kEpsWide), dy);
                            }),
              kTwinDual, "dweight");
}

TEST(NormTwin, LayerBackwardAgreesWithDual) {
  const size_t cols = 7;
  const auto x = drawn(3 * cols, 1), w = drawn(cols, 2), b = drawn(cols, 4),
             dy = drawn(3 * cols, 3);
  const auto got = twin::layer_norm_backward(dy, x, w, kEpsWide);
  const auto loss = [&](const DualVector& x_, const DualVector& w_, const DualVector& b_) {
    return inner(twin::layer_norm_forward(x_, w_, b_, kEpsWide), dy);
  };
  expect_near(
      got.dx,
      dual_gradient(x, [&](const DualVector& at) { return loss(at, constants(w), constants(b)); }),
      kTwinDual, "dx");
  expect_near(
      got.dweight,
      dual_gradient(w, [&](const DualVector& at) { return loss(constants(x), at, constants(b)); }),
      kTwinDual, "dweight");
  expect_near(
      got.dbias,
      dual_gradient(b, [&](const DualVector& at) { return loss(constants(x), constants(w), at); }),
      kTwinDual, "dbias");
}

TEST(RmsNorm, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : kWidths)
    for (DType of_x : kFloats)
      for (DType of_y : kFloats)
        for (DType of_dx : kFloats) {
          const std::string what = label("rms_norm", {of_x, of_y, of_dx}, cols);
          moe::Run run(2);
          Arena arena;
          const int64_t rows = 37;
          const Fenced x(arena, of_x, rows, cols, 1), dy(arena, of_y, rows, cols, 2),
              y(arena, of_y, rows, cols), dx(arena, of_dx, rows, cols);
          const Tensor rstd = arena.alloc(DType::f32, {rows});
          Param w = weight_of(arena, cols, 3);
          ops::rms_norm_forward(run, y.view, rstd, x.view, w, kEps);
          expect_near(y.view, twin::rms_norm_forward(values(x.view), values(w.value), kEpsWide),
                      tolerance(of_y), what + " y");
          ops::rms_norm_backward(run, dx.view, w, dy.view, x.view, rstd);
          const auto want =
              twin::rms_norm_backward(values(dy.view), values(x.view), values(w.value), kEpsWide);
          // A row of width 1 is nearly its own scale: dx is what eps leaves of a cancellation, so
          // only its size can be held.
          if (cols > 1) expect_near(dx.view, want.dx, tolerance(of_dx), what + " dx");
          else
            EXPECT_LE(relative_error(values(dx.view), want.dx) * norm(want.dx),
                      1e-4 * norm(values(dy.view)))
                << what;
          expect_near(w.grad, want.dweight, tolerance(DType::f32), what + " dweight");
          EXPECT_TRUE(x.intact() && dy.intact() && y.intact() && dx.intact()) << what;
        }
}

TEST(LayerNorm, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : kWidths) {
    if (cols == 1) continue;  // y is the bias and dx is 0, see below
    for (DType of_x : kFloats)
      for (DType of_y : kFloats)
        for (DType of_dx : kFloats) {
          const std::string what = label("layer_norm", {of_x, of_y, of_dx}, cols);
          moe::Run run(2);
          Arena arena;
          const int64_t rows = 37;
          const Fenced x(arena, of_x, rows, cols, 1), dy(arena, of_y, rows, cols, 2),
              y(arena, of_y, rows, cols), dx(arena, of_dx, rows, cols);
          const Tensor mean = arena.alloc(DType::f32, {rows}),
                       rstd = arena.alloc(DType::f32, {rows});
          Param w = weight_of(arena, cols, 3), b = draw_param(arena, {cols}, 4);
          ops::layer_norm_forward(run, y.view, mean, rstd, x.view, w, b, kEps);
          expect_near(
              y.view,
              twin::layer_norm_forward(values(x.view), values(w.value), values(b.value), kEpsWide),
              tolerance(of_y), what + " y");
          ops::layer_norm_backward(run, dx.view, w, b, dy.view, x.view, mean, rstd);
          const auto want =
              twin::layer_norm_backward(values(dy.view), values(x.view), values(w.value), kEpsWide);
          expect_near(dx.view, want.dx, tolerance(of_dx), what + " dx");
          expect_near(w.grad, want.dweight, tolerance(DType::f32), what + " dweight");
          expect_near(b.grad, want.dbias, tolerance(DType::f32), what + " dbias");
          EXPECT_TRUE(x.intact() && dy.intact() && y.intact() && dx.intact()) << what;
        }
  }
}

TEST(LayerNorm, WidthOfOneGivesTheBias) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {5, 1}, 1), y = arena.alloc(DType::f32, {5, 1}),
               mean = arena.alloc(DType::f32, {5}), rstd = arena.alloc(DType::f32, {5});
  const Param w = draw_param(arena, {1}, 2), b = draw_param(arena, {1}, 3);
  ops::layer_norm_forward(run, y, mean, rstd, x, w, b, kEps);
  for (int64_t r = 0; r < 5; ++r) EXPECT_EQ(get(y, r, 0), get(b.value, 0, 0));
}

TEST(LayerNorm, BiasMayBeAbsentAndLargeMeansDoNotCancel) {
  moe::Run run(1);
  Arena arena;
  const int64_t cols = 384;
  Tensor x = draw(arena, DType::f32, {3, cols}, 1);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < cols; ++c) set(x, r, c, get(x, r, c) + 4096);
  const Tensor y = arena.alloc(DType::f32, {3, cols}), mean = arena.alloc(DType::f32, {3}),
               rstd = arena.alloc(DType::f32, {3}), dx = arena.alloc(DType::f32, {3, cols});
  Param w = weight_of(arena, cols, 2), none;
  ops::layer_norm_forward(run, y, mean, rstd, x, w, none, kEps);
  // The mean itself carries 4096 * 2^-24 = 2.4e-4 at most of rounding, against a deviation of 1.
  expect_near(y, twin::layer_norm_forward(values(x), values(w.value), {}, kEpsWide), 5e-4, "y");
  ops::layer_norm_backward(run, dx, w, none, y, x, mean, rstd);
  EXPECT_GT(norm(values(w.grad)), 0);
}

TEST(Norm, GradientsAccumulateAndFrozenWeightsGetNone) {
  moe::Run run(2);
  Arena arena;
  const int64_t rows = 200, cols = 65;
  const Tensor x = draw(arena, DType::f32, {rows, cols}, 1),
               y = arena.alloc(DType::f32, {rows, cols}),
               dx = arena.alloc(DType::f32, {rows, cols});
  const Tensor frozen_dx = arena.alloc(DType::f32, {rows, cols}),
               rstd = arena.alloc(DType::f32, {rows});
  Param w = weight_of(arena, cols, 3);
  ops::rms_norm_forward(run, y, rstd, x, w, kEps);
  ops::rms_norm_backward(run, dx, w, y, x, rstd);
  auto twice = values(w.grad);
  for (double& g : twice) g *= 2;
  ops::rms_norm_backward(run, dx, w, y, x, rstd);
  expect_near(w.grad, twice, tolerance(DType::f32), "two backward passes");
  w.grad = Tensor();
  ops::rms_norm_backward(run, frozen_dx, w, y, x, rstd);
  EXPECT_TRUE(same_bits(dx, frozen_dx));
}

TEST(Norm, WeightsMayBeBf16) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {3, 65}, 1), y = arena.alloc(DType::f32, {3, 65}),
               rstd = arena.alloc(DType::f32, {3});
  Param w;
  w.value = draw(arena, DType::bf16, {65}, 2);
  ops::rms_norm_forward(run, y, rstd, x, w, kEps);
  expect_near(y, twin::rms_norm_forward(values(x), values(w.value), kEpsWide),
              tolerance(DType::f32), "y");
}

TEST(Norm, RowsOfZerosAndLargeRowsStayFinite) {
  moe::Run run(1);
  Arena arena;
  Tensor x = arena.alloc_zeroed(DType::f32, {2, 65});
  for (int64_t c = 0; c < 65; ++c) set(x, 1, c, c % 2 == 0 ? 1e17f : -1e17f);
  const Tensor y = arena.alloc(DType::f32, {2, 65}), rstd = arena.alloc(DType::f32, {2}),
               mean = arena.alloc(DType::f32, {2});
  const Param w = weight_of(arena, 65, 1), none;
  ops::rms_norm_forward(run, y, rstd, x, w, kEps);
  for (int64_t c = 0; c < 65; ++c) {
    EXPECT_EQ(get(y, 0, c), 0);
    EXPECT_NEAR(get(y, 1, c), (c % 2 == 0 ? 1 : -1) * get(w.value, 0, c), 1e-5);
  }
  ops::layer_norm_forward(run, y, mean, rstd, x, w, none, kEps);
  for (double v : values(y)) EXPECT_TRUE(std::isfinite(v));
}

TEST(Norm, LawOfRows) {
  for (DType dtype : kFloats) {
    Arena arena;
    const int64_t cols = 385;
    const Tensor pool = draw(arena, dtype, {300, cols}, 1),
                 pool_dy = draw(arena, dtype, {300, cols}, 2);
    Param w = weight_of(arena, cols, 3), b = draw_param(arena, {cols}, 4);
    for (bool layer : {false, true}) {
      const auto rows = [&](moe::Run& run, std::span<const int32_t> which) {
        const int64_t n = static_cast<int64_t>(which.size());
        const Tensor x = pick(run.saved, pool, which), dy = pick(run.saved, pool_dy, which),
                     y = run.saved.alloc(dtype, {n, cols}), dx = run.saved.alloc(dtype, {n, cols});
        const Tensor mean = run.saved.alloc_zeroed(DType::f32, {n, 1}),
                     rstd = run.saved.alloc(DType::f32, {n, 1});
        if (layer) {
          ops::layer_norm_forward(run, y, mean, rstd, x, w, b, kEps);
          ops::layer_norm_backward(run, dx, w, b, dy, x, mean, rstd);
        } else {
          ops::rms_norm_forward(run, y, rstd, x, w, kEps);
          ops::rms_norm_backward(run, dx, w, dy, x, rstd);
        }
        return join(run.saved, {y, mean, rstd, dx});
      };
      expect_law_of_rows(rows, label(layer ? "layer_norm" : "rms_norm", {dtype}, cols));
    }
  }
}

TEST(Norm, SameThreadsGiveTheSameGradientBits) {
  Arena arena;
  const int64_t rows = 301, cols = 385;
  const Tensor x = draw(arena, DType::f32, {rows, cols}, 1),
               dy = draw(arena, DType::f32, {rows, cols}, 2),
               y = arena.alloc(DType::f32, {rows, cols});
  const Tensor mean = arena.alloc(DType::f32, {rows}), rstd = arena.alloc(DType::f32, {rows});
  Param w = weight_of(arena, cols, 3), b = draw_param(arena, {cols}, 4);
  for (int threads : {1, 2, 3}) {
    Tensor dw[2], db[2];
    for (int i : {0, 1}) {
      moe::Run run(threads);
      w.grad = dw[i] = arena.alloc_zeroed(DType::f32, {cols});
      b.grad = db[i] = arena.alloc_zeroed(DType::f32, {cols});
      ops::layer_norm_forward(run, y, mean, rstd, x, w, b, kEps);
      ops::layer_norm_backward(run, y, w, b, dy, x, mean, rstd);
    }
    EXPECT_TRUE(same_bits(dw[0], dw[1]) && same_bits(db[0], db[1])) << threads;
  }
}

TEST(Norm, ShapesThatDoNotFitAreNamed) {
  moe::Run run(1);
  Arena arena;
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), y = arena.alloc(DType::f32, {3, 7}),
               rstd = arena.alloc(DType::f32, {3});
  const Param w = weight_of(arena, 8, 3);
  try {
    ops::rms_norm_forward(run, y, rstd, x, w, kEps);
    FAIL() << "a wrong shape was taken";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rms_norm_forward"), std::string::npos) << text;
    EXPECT_NE(text.find("f32 [3, 7]"), std::string::npos) << text;
  }
  const Tensor integers = arena.alloc(DType::i32, {3, 8});
  EXPECT_THROW(ops::rms_norm_forward(run, integers, rstd, x, w, kEps), Error);
  EXPECT_THROW(ops::rms_norm_forward(run, x, arena.alloc(DType::f32, {2}), x, w, kEps), Error);
  EXPECT_THROW(ops::rms_norm_forward(run, x, rstd, x, weight_of(arena, 7, 1), kEps), Error);
}

}  // namespace
}  // namespace moe::test::norm_test
