// Softmax of rows and its logsumexp against the formulas in double and on dual numbers, with logits
// as large as f32 takes them.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"

namespace moe::test::softmax_test {
namespace {

template <class T>
struct Twin {
  std::vector<T> s, lse;  // [N,E], [N]
};
template <class T>
Twin<T> softmax_twin(const std::vector<T>& z, size_t cols) {
  using std::exp, std::log;
  Twin<T> twin;
  for (size_t n = 0; n < z.size(); n += cols) {
    T sum(0.0);
    for (size_t e = n; e < n + cols; ++e) sum += exp(z[e]);
    for (size_t e = n; e < n + cols; ++e) twin.s.push_back(exp(z[e]) / sum);
    twin.lse.push_back(log(sum));
  }
  return twin;
}

TEST(Softmax, ForwardAgreesWithTheFormulaInEveryLayout) {
  for (int64_t cols : kWidths) {
    moe::Run run(2);
    Arena arena;
    const int64_t rows = 67;
    const Fenced z(arena, DType::f32, rows, cols, 1, 3), s(arena, DType::f32, rows, cols);
    const Tensor lse = arena.alloc(DType::f32, {rows}), other = arena.alloc(DType::f32, {rows});
    const auto want = softmax_twin(values(z.view), static_cast<size_t>(cols));
    ops::softmax_forward(run, s.view, lse, z.view);
    expect_near(s.view, want.s, tolerance(DType::f32), label("softmax", {}, cols));
    expect_near(lse, want.lse, tolerance(DType::f32), label("logsumexp", {}, cols));
    ops::softmax_forward(run, {}, other, z.view);
    EXPECT_TRUE(same_bits(lse, other)) << "lse alone";
    ops::softmax_forward(run, z.view, {}, z.view);
    EXPECT_TRUE(same_bits(z.view, s.view)) << "in place";
    EXPECT_TRUE(z.intact() && s.intact());
  }
}

TEST(Softmax, BackwardsAgreeWithDual) {
  for (int64_t cols : {2, 7, 16, 33}) {
    moe::Run run(2);
    Arena arena;
    const int64_t rows = 3;
    const Fenced z(arena, DType::f32, rows, cols, 1, 2), s(arena, DType::f32, rows, cols),
        ds(arena, DType::f32, rows, cols, 2), dz(arena, DType::f32, rows, cols);
    const Tensor lse = arena.alloc(DType::f32, {rows}), dlse = draw(arena, DType::f32, {rows}, 3);
    ops::softmax_forward(run, s.view, lse, z.view);
    const auto of_s = [&](const DualVector& at) {
      return inner(softmax_twin(at, static_cast<size_t>(cols)).s, values(ds.view));
    };
    const auto of_lse = [&](const DualVector& at) {
      return inner(softmax_twin(at, static_cast<size_t>(cols)).lse, values(dlse));
    };
    const std::string what = fmt::format("{} columns", cols);
    const auto want = dual_gradient(values(z.view), of_s),
               want_lse = dual_gradient(values(z.view), of_lse);
    auto both = want;
    for (size_t i = 0; i < both.size(); ++i) both[i] += want_lse[i];
    ops::softmax_backward(run, dz.view, ds.view, {}, s.view);
    expect_near(dz.view, want, kTwinF32, what);
    ops::logsumexp_backward_acc(run, dz.view, dlse, z.view, lse);
    expect_near(dz.view, both, kTwinF32, what + ", logsumexp added");
    ops::softmax_backward(run, dz.view, ds.view, dlse, s.view);
    expect_near(dz.view, both, kTwinF32, what + ", both at once");
    ops::softmax_backward(run, ds.view, ds.view, dlse, s.view);
    EXPECT_TRUE(same_bits(ds.view, dz.view)) << "in place";
    EXPECT_TRUE(s.intact() && ds.intact() && dz.intact());
  }
}

TEST(Softmax, LargeLogitsDoNotOverflow) {
  moe::Run run(1);
  Arena arena;
  const Tensor z = arena.alloc(DType::f32, {4, 3}), s = arena.alloc(DType::f32, {4, 3}),
               lse = arena.alloc(DType::f32, {4});
  fill(z, {1e30, 0, -1e30, 3e4, 3e4, -INFINITY, -1e4, -1e4, -1e4, 0, 0, 0});
  ops::softmax_forward(run, s, lse, z);
  EXPECT_EQ(values(s), (std::vector<double>{1, 0, 0, 0.5, 0.5, 0, 1.0f / 3, 1.0f / 3, 1.0f / 3,
                                            1.0f / 3, 1.0f / 3, 1.0f / 3}));
  EXPECT_EQ(get(lse, 0, 0), 1e30f);
  EXPECT_NEAR(get(lse, 0, 2), -1e4 + std::log(3.0), 1e-3);
}

TEST(Softmax, OneNaNOrInfinityMakesItsRowNaNAndNoOther) {
  moe::Run run(1);
  Arena arena;
  for (float broken : {NAN, INFINITY})
    for (int64_t at : {0, 5, 32}) {
      const Tensor z = draw(arena, DType::f32, {2, 33}, 1), s = arena.alloc(DType::f32, {2, 33}),
                   lse = arena.alloc(DType::f32, {2});
      set(z, 1, at, broken);
      ops::softmax_forward(run, s, lse, z);
      for (int64_t e = 0; e < 33; ++e) {
        EXPECT_TRUE(std::isfinite(get(s, 0, e)));
        EXPECT_TRUE(std::isnan(get(s, 1, e))) << at;
      }
      EXPECT_TRUE(std::isnan(get(lse, 0, 1)));
    }
}

TEST(Softmax, LawOfRows) {
  Arena arena;
  const Tensor pool = draw(arena, DType::f32, {300, 65}, 1, 4),
               slopes = draw(arena, DType::f32, {300, 65}, 2),
               of_lse = draw(arena, DType::f32, {300, 1}, 3);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const int64_t n = static_cast<int64_t>(which.size());
        const Tensor z = pick(run.saved, pool, which), ds = pick(run.saved, slopes, which),
                     dlse = pick(run.saved, of_lse, which);
        const Tensor s = run.saved.alloc(DType::f32, {n, 65}),
                     lse = run.saved.alloc(DType::f32, {n, 1});
        ops::softmax_forward(run, s, lse, z);
        ops::softmax_backward(run, ds, ds, dlse, s);
        const Tensor dz = copy_of(run.saved, ds);
        ops::logsumexp_backward_acc(run, dz, dlse, z, lse);
        return join(run.saved, {s, lse, ds, dz});
      },
      "softmax");
}

TEST(Softmax, WhatDoesNotFitIsRefused) {
  moe::Run run(1);
  Arena arena;
  const Tensor z = draw(arena, DType::f32, {2, 8}, 1), narrow = draw(arena, DType::f32, {2, 7}, 1),
               half = draw(arena, DType::bf16, {2, 8}, 1), lse = arena.alloc(DType::f32, {2}),
               three = arena.alloc(DType::f32, {3});
  EXPECT_THROW(ops::softmax_forward(run, narrow, lse, z), Error);
  EXPECT_THROW(ops::softmax_forward(run, {}, lse, half), Error);
  EXPECT_THROW(ops::softmax_forward(run, {}, three, z), Error);
  EXPECT_THROW(ops::softmax_backward(run, z, narrow, {}, z), Error);
  EXPECT_THROW(ops::softmax_backward(run, z, z, three, z), Error);
  EXPECT_THROW(ops::logsumexp_backward_acc(run, z, three, z, lse), Error);
  EXPECT_THROW(ops::logsumexp_backward_acc(run, z, lse, narrow, lse), Error);
}

}  // namespace
}  // namespace moe::test::softmax_test
