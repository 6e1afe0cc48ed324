// xIELU against its twin, whose derivatives dual numbers give: what it leaves, the gradient of what
// it sees, and those of the two numbers that are trained.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/rowwise.h"
#include "support/twin_xielu.h"

namespace moe::test::xielu_test {
namespace {

// The numbers of one activation.
struct Numbers {
  Numbers(Arena& arena, double p, double n, double b, double e)
      : alpha_p(draw_param(arena, {1}, 1)),
        alpha_n(draw_param(arena, {1}, 2)),
        beta(draw_param(arena, {1}, 3)),
        eps(draw_param(arena, {1}, 4)) {
    fill(alpha_p.value, {p});
    fill(alpha_n.value, {n});
    fill(beta.value, {b});
    fill(eps.value, {e});
  }
  void forward(moe::Run& run, const Tensor& hidden, const Tensor& up) const {
    ops::xielu_forward(run, hidden, up, alpha_p, alpha_n, beta, eps);
  }
  void backward(moe::Run& run, const Tensor& dup, const Tensor& hidden, const Tensor& dhidden,
                const Tensor& up) {
    ops::xielu_backward(run, dup, hidden, alpha_p, alpha_n, dhidden, up, beta, eps);
  }

  Param alpha_p, alpha_n, beta, eps;
};

struct Wanted {
  std::vector<double> hidden, dup;
  double dalpha_p = 0, dalpha_n = 0;
};

Wanted wanted(const Numbers& numbers, const std::vector<double>& up,
              const std::vector<double>& dhidden) {
  using D = Dual<double>;
  const double p = get(numbers.alpha_p.value, 0, 0), n = get(numbers.alpha_n.value, 0, 0),
               beta = get(numbers.beta.value, 0, 0), eps = get(numbers.eps.value, 0, 0);
  Wanted out;
  for (size_t i = 0; i < up.size(); ++i) {
    const D of_x = twin::xielu(D(up[i], 1), D(p), D(n), beta, eps);
    out.hidden.push_back(of_x.v);
    out.dup.push_back(dhidden[i] * of_x.d);
    out.dalpha_p += dhidden[i] * twin::xielu(D(up[i]), D(p, 1), D(n), beta, eps).d;
    out.dalpha_n += dhidden[i] * twin::xielu(D(up[i]), D(p), D(n, 1), beta, eps).d;
  }
  return out;
}

TEST(Xielu, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : kWidths)
    for (DType dtype : kFloats)
      for (double eps : {-1e-6, -0.75}) {
        const std::string what = label("xielu", {dtype}, cols) + fmt::format(", eps {}", eps);
        moe::Run run(2);
        Arena arena;
        const int64_t rows = 41;
        Numbers numbers(arena, 0.7, -1.2, 0.4, eps);
        fill(numbers.alpha_p.grad, {3});
        fill(numbers.alpha_n.grad, {-2});
        const Fenced up(arena, dtype, rows, cols, 1, 2), dhidden(arena, dtype, rows, cols, 2),
            hidden(arena, dtype, rows, cols), dup(arena, dtype, rows, cols),
            again(arena, dtype, rows, cols);
        const Wanted want = wanted(numbers, values(up.view), values(dhidden.view));
        EXPECT_TRUE(want.dalpha_p != 0 && want.dalpha_n != 0);
        numbers.forward(run, hidden.view, up.view);
        expect_near(hidden.view, want.hidden, tolerance(dtype), what + " hidden");
        numbers.backward(run, dup.view, again.view, dhidden.view, up.view);
        expect_near(dup.view, want.dup, tolerance(dtype), what + " dup");
        // Sums are of f32 whatever the rows are.
        expect_near(numbers.alpha_p.grad, {3 + want.dalpha_p}, kTwinF32, what + " dalpha_p");
        expect_near(numbers.alpha_n.grad, {-2 + want.dalpha_n}, kTwinF32, what + " dalpha_n");
        EXPECT_TRUE(same_bits(again.view, hidden.view))
            << what << ": hidden recomputed differs from the forward";
        EXPECT_EQ(get(numbers.beta.grad, 0, 0), 0);
        EXPECT_EQ(get(numbers.eps.grad, 0, 0), 0);
        // The same in place: dup over up, hidden over dhidden.
        numbers.backward(run, up.view, dhidden.view, dhidden.view, up.view);
        EXPECT_TRUE(same_bits(up.view, dup.view) && same_bits(dhidden.view, hidden.view))
            << what << " in place";
        expect_near(numbers.alpha_p.grad, {3 + 2 * want.dalpha_p}, kTwinF32, what + " in place");
        EXPECT_TRUE(up.intact() && dhidden.intact() && hidden.intact() && dup.intact() &&
                    again.intact())
            << what;
      }
}

TEST(Xielu, ByHand) {
  moe::Run run(1);
  Arena arena;
  Numbers numbers(arena, 0, 0, 0.5, -1e-6);  // p = ln 2, n = 1/2 + ln 2
  const Tensor x = arena.alloc(DType::f32, {1, 6}), y = arena.alloc(DType::f32, {1, 6}),
               dx = arena.alloc(DType::f32, {1, 6}), ones = arena.alloc(DType::f32, {1, 6});
  fill(x, {-2, -1e30, 0, 1.5, NAN, -200});
  fill(ones, std::vector<double>(6, 1));
  numbers.forward(run, y, x);
  const double p = std::log(2.0), n = 0.5 + std::log(2.0);
  EXPECT_NEAR(get(y, 0, 0), n * (std::exp(-2.0) + 1) - 1, 1e-6);
  EXPECT_NEAR(get(y, 0, 1), (n - 0.5) * 1e30, 1e24);
  EXPECT_NEAR(get(y, 0, 2), 0, 2e-6);
  EXPECT_NEAR(get(y, 0, 3), p * 2.25 + 0.75, 1e-6);
  EXPECT_TRUE(std::isnan(get(y, 0, 4)));
  EXPECT_NEAR(get(y, 0, 5), n * 199 - 100, 1e-4);
  numbers.backward(run, dx, y, ones, x);
  EXPECT_NEAR(get(dx, 0, 0), n * (std::exp(-2.0) - 1) + 0.5, 1e-6);
  EXPECT_NEAR(get(dx, 0, 2), 0.5 - n, 1e-6);  // eps is held, and x is what is left
  EXPECT_NEAR(get(dx, 0, 3), 3 * p + 0.5, 1e-6);
  EXPECT_NEAR(get(dx, 0, 5), 0.5 - n, 1e-6);
}

// By norms of whole tensors numbers near 0 do not count; by their own they have all their bits.
TEST(Xielu, NumbersNearZeroKeepTheirBits) {
  moe::Run run(1);
  Arena arena;
  const std::vector<double> near = {-3e-6, -1e-4, -1e-3, -0.01, -0.1, -0.3, -0.499, -0.501, -0.7};
  const auto cols = static_cast<int64_t>(near.size());
  const auto row = [&] { return arena.alloc(DType::f32, {1, cols}); };
  Numbers numbers(arena, 0.7, -1.2, 0, -1e-6);  // beta 0: nothing stands beside what bends
  const Tensor x = row(), y = row(), dx = row(), ones = row();
  fill(x, near);
  fill(ones, std::vector<double>(near.size(), 1));
  numbers.backward(run, dx, y, ones, x);
  const double n = std::log1p(std::exp(get(numbers.alpha_n.value, 0, 0)));
  for (int64_t i = 0; i < cols; ++i) {
    const double of = get(x, 0, i), grown = std::expm1(of), bend = grown - of;
    EXPECT_NEAR(get(y, 0, i), n * bend, 2e-6 * n * bend) << of;
    EXPECT_NEAR(get(dx, 0, i), n * grown, -1e-6 * n * grown) << of;
  }
}

TEST(Xielu, LawOfRows) {
  for (DType dtype : kFloats) {
    Arena arena;
    const int64_t cols = 385;
    Numbers numbers(arena, 0.7, -1.2, 0.4, -1e-6);
    const Tensor ups = draw(arena, dtype, {300, cols}, 1),
                 grads = draw(arena, dtype, {300, cols}, 2);
    expect_law_of_rows(
        [&](moe::Run& run, std::span<const int32_t> which) {
          const Tensor up = pick(run.saved, ups, which), grad = pick(run.saved, grads, which),
                       hidden = pick(run.saved, ups, which);
          numbers.forward(run, hidden, up);
          numbers.backward(run, up, grad, grad, up);
          return join(run.saved, {hidden, up, grad});
        },
        label("xielu", {dtype}, cols));
  }
}

TEST(Xielu, ThreadsChangeNoBitOfWhatIsTrained) {
  Arena arena;
  const Tensor ups = draw(arena, DType::f32, {300, 385}, 1),
               grads = draw(arena, DType::f32, {300, 385}, 2);
  expect_same_for_any_threads(
      [&](moe::Run& run) {
        Numbers numbers(arena, 0.7, -1.2, 0.4, -1e-6);
        numbers.backward(run, arena.alloc(DType::f32, {300, 385}),
                         arena.alloc(DType::f32, {300, 385}), grads, ups);
        return join(arena,
                    {numbers.alpha_p.grad.reshape({1, 1}), numbers.alpha_n.grad.reshape({1, 1})});
      },
      "xielu");
}

TEST(Xielu, WhatIsFrozenGetsNoGradient) {
  moe::Run run(1);
  Arena arena;
  Numbers numbers(arena, 0.7, -1.2, 0.4, -1e-6);
  numbers.alpha_p.grad = {};
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), dx = arena.alloc(DType::f32, {3, 8});
  numbers.backward(run, dx, arena.alloc(DType::f32, {3, 8}), x, x);
  EXPECT_NE(get(numbers.alpha_n.grad, 0, 0), 0);
  EXPECT_TRUE(numbers.alpha_p.grad.empty());
}

TEST(Xielu, ShapesThatDoNotFitAreNamed) {
  moe::Run run(1);
  Arena arena;
  Numbers numbers(arena, 0, 0, 0.5, 0);
  const Tensor x = draw(arena, DType::f32, {3, 8}, 1), narrow = draw(arena, DType::bf16, {3, 8}, 1);
  EXPECT_THROW(numbers.forward(run, narrow, x), Error);
  EXPECT_THROW(numbers.backward(run, x, x, narrow, x), Error);
  numbers.beta = draw_param(arena, {2}, 1);
  EXPECT_THROW(numbers.forward(run, x, x), Error);
}

}  // namespace
}  // namespace moe::test::xielu_test
