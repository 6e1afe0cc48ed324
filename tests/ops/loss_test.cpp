// Cross-entropy and the divergence from a teacher against their twins, with logits as large as f32
// takes them.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "support/gradient.h"
#include "support/rowwise.h"
#include "support/twins_rowwise.h"

namespace moe::test::loss_test {
namespace {

// Every seventh target is ignored.
std::vector<int32_t> drawn_targets(int64_t rows, int64_t cols) {
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < rows; ++r)
    targets.push_back(r % 7 == 3 ? ops::kIgnoreTarget
                                 : static_cast<int32_t>(
                                       uniform_index(RngKey::from_seed(5), static_cast<uint64_t>(r),
                                                     static_cast<uint64_t>(cols))));
  return targets;
}

TEST(CrossEntropy, TwinBackwardAgreesWithDual) {
  const auto targets = drawn_targets(5, 6);
  const auto logits = drawn(5 * 6, 1);
  const auto loss = [&](const DualVector& at) {
    Dual<double> sum;
    for (const Dual<double>& nll : twin::cross_entropy_forward(at, targets, 6).nll) sum += nll;
    return sum * Dual<double>(0.25);
  };
  expect_near(twin::cross_entropy_backward(logits, targets, 6, 0.25), dual_gradient(logits, loss),
              kTwinDual, "dlogits");
}

TEST(CrossEntropy, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : {2, 7, 63, 65, 384, 5003})
    for (DType dtype : kFloats) {
      const std::string what = label("cross_entropy", {dtype}, cols);
      moe::Run run(2);
      Arena arena;
      const int64_t rows = 41;
      const auto targets = drawn_targets(rows, cols);
      const Fenced logits(arena, DType::f32, rows, cols, 1, 3), dlogits(arena, dtype, rows, cols);
      const Tensor nll = arena.alloc(DType::f32, {rows}), lse = arena.alloc(DType::f32, {rows});
      ops::cross_entropy_forward(run, nll, lse, logits.view, targets);
      const auto want =
          twin::cross_entropy_forward(values(logits.view), targets, static_cast<size_t>(cols));
      expect_near(nll, want.nll, tolerance(DType::f32), what + " nll");
      expect_near(lse, want.lse, tolerance(DType::f32), what + " lse");
      EXPECT_EQ(get(nll, 0, 3), 0) << "an ignored target";
      ops::cross_entropy_backward(run, dlogits.view, logits.view, lse, targets, 0.125f);
      const auto want_grad = twin::cross_entropy_backward(values(logits.view), targets,
                                                          static_cast<size_t>(cols), 0.125);
      expect_near(dlogits.view, want_grad, tolerance(dtype), what + " dlogits");
      for (int64_t c = 0; c < cols; ++c)
        EXPECT_EQ(get(dlogits.view, 3, c), 0) << "an ignored target";
      if (dtype == DType::f32) {
        ops::cross_entropy_backward(run, logits.view, logits.view, lse, targets, 0.125f);
        EXPECT_TRUE(same_bits(logits.view, dlogits.view)) << what << " in place";
      }
      EXPECT_TRUE(logits.intact() && dlogits.intact()) << what;
    }
}

TEST(CrossEntropy, RowsCountByTheirWeights) {
  constexpr int64_t kRows = 41, kCols = 65;
  const auto targets = drawn_targets(kRows, kCols);
  std::vector<float> weights;
  for (int64_t r = 0; r < kRows; ++r) weights.push_back(static_cast<float>(r % 5 - 2) / 4);
  for (DType dtype : kFloats) {
    moe::Run run(2);
    Arena arena;
    const Tensor logits = draw(arena, DType::f32, {kRows, kCols}, 1),
                 dlogits = arena.alloc(dtype, {kRows, kCols}),
                 nll = arena.alloc(DType::f32, {kRows}), lse = arena.alloc(DType::f32, {kRows});
    ops::cross_entropy_forward(run, nll, lse, logits, targets);
    ops::cross_entropy_backward(run, dlogits, logits, lse, targets, 0.125f, weights);
    expect_near(dlogits,
                twin::cross_entropy_backward(values(logits), targets, kCols, 0.125, weights),
                tolerance(dtype), "weighted dlogits");
    weights.pop_back();
    EXPECT_THROW(ops::cross_entropy_backward(run, dlogits, logits, lse, targets, 1, weights),
                 Error);
    weights.push_back(0.25f);
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  moe::Run run(1);
  Arena arena;
  const Tensor logits = arena.alloc(DType::f32, {4, 3}), nll = arena.alloc(DType::f32, {4}),
               lse = arena.alloc(DType::f32, {4});
  fill(logits, {1e30, 0, -1e30, 3e4, 3e4, -3e4, -1e4, -1e4, -1e4, 0, 0, 0});
  const std::vector<int32_t> targets = {0, 1, 2, 0};
  ops::cross_entropy_forward(run, nll, lse, logits, targets);
  EXPECT_EQ(get(nll, 0, 0), 0);
  EXPECT_NEAR(get(nll, 0, 1), std::log(2.0), 2e-3);  // 30000 has steps of 0.002 in f32
  EXPECT_NEAR(get(nll, 0, 2), std::log(3.0), 1e-3);
  EXPECT_NEAR(get(nll, 0, 3), std::log(3.0), 1e-6);
  ops::cross_entropy_backward(run, logits, logits, lse, targets, 1);
  for (double v : values(logits)) EXPECT_LE(std::abs(v), 1);
  EXPECT_EQ(get(logits, 0, 0), 0);
  EXPECT_NEAR(get(logits, 3, 0), -2.0 / 3, 1e-6);
}

TEST(CrossEntropy, OneColumnIsCertain) {
  moe::Run run(1);
  Arena arena;
  const Tensor logits = draw(arena, DType::f32, {3, 1}, 1), nll = arena.alloc(DType::f32, {3}),
               lse = arena.alloc(DType::f32, {3});
  const std::vector<int32_t> targets = {0, 0, 0};
  ops::cross_entropy_forward(run, nll, lse, logits, targets);
  EXPECT_TRUE(same_bits(lse, logits.reshape({3})));
  EXPECT_EQ(norm(values(nll)), 0);
}

TEST(CrossEntropy, NaNReachesTheLoss) {
  moe::Run run(1);
  Arena arena;
  for (int64_t at : {0, 5, 64}) {
    const Tensor logits = draw(arena, DType::f32, {1, 65}, 1), nll = arena.alloc(DType::f32, {1}),
                 lse = arena.alloc(DType::f32, {1});
    set(logits, 0, at, NAN);
    const std::vector<int32_t> targets = {1};
    ops::cross_entropy_forward(run, nll, lse, logits, targets);
    EXPECT_TRUE(std::isnan(get(nll, 0, 0))) << at;
  }
}

TEST(CrossEntropy, LawOfRows) {
  Arena arena;
  const Tensor pool = draw(arena, DType::f32, {300, 385}, 1, 4);
  const auto all = drawn_targets(300, 385);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const int64_t n = static_cast<int64_t>(which.size());
        std::vector<int32_t> targets;
        for (int32_t id : which) targets.push_back(all[static_cast<size_t>(id)]);
        const Tensor logits = pick(run.saved, pool, which),
                     nll = run.saved.alloc(DType::f32, {n, 1}),
                     lse = run.saved.alloc(DType::f32, {n, 1});
        ops::cross_entropy_forward(run, nll, lse, logits, targets);
        ops::cross_entropy_backward(run, logits, logits, lse, targets, 0.01f);
        return join(run.saved, {nll, lse, logits});
      },
      "cross_entropy");
}

// What a part of the vocabulary gives where the target stands in another part: the whole's columns.
TEST(CrossEntropy, PartsOfTheVocabularyAreThoseOfTheWhole) {
  moe::Run run(2);
  Arena arena;
  constexpr int64_t kRows = 9, kCols = 40, kCut = 17;
  const auto targets = drawn_targets(kRows, kCols);
  const Tensor logits = draw(arena, DType::f32, {kRows, kCols}, 2),
               nll = arena.alloc(DType::f32, {kRows}), lse = arena.alloc(DType::f32, {kRows}),
               whole = arena.alloc(DType::f32, {kRows, kCols}),
               parts = arena.alloc(DType::f32, {kRows, kCols}),
               part_nll = arena.alloc(DType::f32, {kRows}),
               part_lse = arena.alloc(DType::f32, {kRows});
  ops::cross_entropy_forward(run, nll, lse, logits, targets);
  ops::cross_entropy_backward(run, whole, logits, lse, targets, 0.5f);
  for (const auto& [begin, end] : {std::pair{int64_t{0}, kCut}, std::pair{kCut, kCols}}) {
    std::vector<int32_t> own = targets;
    for (int32_t& t : own)
      if (t >= 0)
        t = t < begin || t >= end ? ops::kTargetElsewhere : t - static_cast<int32_t>(begin);
    const Tensor part = logits.slice_cols(begin, end);
    ops::cross_entropy_forward(run, part_nll, part_lse, part, own);
    for (int64_t r = 0; r < kRows; ++r)
      if (own[static_cast<size_t>(r)] == ops::kTargetElsewhere)
        EXPECT_EQ(get(part_nll, 0, r), get(part_lse, 0, r)) << r;
    ops::cross_entropy_backward(run, parts.slice_cols(begin, end), part, lse, own, 0.5f);
  }
  EXPECT_EQ(values(parts), values(whole));
}

TEST(CrossEntropy, TargetsOutsideTheVocabularyAreNamed) {
  moe::Run run(1);
  Arena arena;
  const Tensor logits = draw(arena, DType::f32, {2, 8}, 1), nll = arena.alloc(DType::f32, {2}),
               lse = arena.alloc(DType::f32, {2});
  const std::vector<int32_t> high = {0, 8}, negative = {-3, 0}, three = {0, 0, 0}, fine = {0, 1};
  EXPECT_THROW(ops::cross_entropy_forward(run, nll, lse, logits, negative), Error);
  EXPECT_THROW(ops::cross_entropy_forward(run, nll, lse, logits, three), Error);
  EXPECT_THROW(
      ops::cross_entropy_backward(run, draw(arena, DType::bf16, {2, 7}, 1), logits, lse, fine, 1),
      Error);
  try {
    ops::cross_entropy_forward(run, nll, lse, logits, high);
    FAIL() << "a target outside the vocabulary was taken";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("target 8 of row 1 is not a column of logits f32 [2, 8]"),
        std::string::npos)
        << error.what();
  }
}

TEST(Divergence, TwinBackwardAgreesWithDual) {
  const auto targets = drawn_targets(5, 6);
  const auto logits = drawn(5 * 6, 1), teacher = drawn(5 * 6, 2);
  const auto loss = [&](const DualVector& at) {
    Dual<double> sum;
    for (const Dual<double>& nll : twin::cross_entropy_forward(at, targets, 6).nll)
      sum += Dual<double>(0.7) * nll;
    for (const Dual<double>& kl : twin::divergence_forward(teacher, at, targets, 6))
      sum += Dual<double>(0.3) * kl;
    return sum * Dual<double>(0.25);
  };
  expect_near(twin::divergence_backward(teacher, logits, targets, 6, 0.25, 0.3),
              dual_gradient(logits, loss), kTwinDual, "dlogits");
}

TEST(Divergence, ForwardAndBackwardAgreeWithTwin) {
  for (int64_t cols : {2, 7, 63, 65, 384, 5003})
    for (DType dtype : kFloats)
      for (float share : {0.3f, 1.0f}) {
        const std::string what = label("divergence", {dtype}, cols);
        moe::Run run(2);
        Arena arena;
        const int64_t rows = 41;
        const auto targets = drawn_targets(rows, cols);
        const Fenced logits(arena, DType::f32, rows, cols, 1, 3),
            teacher(arena, DType::f32, rows, cols, 2, 3), dlogits(arena, dtype, rows, cols);
        const Tensor nll = arena.alloc(DType::f32, {rows}), lse = arena.alloc(DType::f32, {rows});
        const Tensor kl = arena.alloc(DType::f32, {rows}),
                     teacher_lse = arena.alloc(DType::f32, {rows});
        ops::cross_entropy_forward(run, nll, lse, logits.view, targets);
        ops::divergence_forward(run, kl, teacher_lse, teacher.view, logits.view, lse, targets);
        const auto size = static_cast<size_t>(cols);
        expect_near(
            kl, twin::divergence_forward(values(teacher.view), values(logits.view), targets, size),
            tolerance(DType::f32), what + " kl");
        EXPECT_EQ(get(kl, 0, 3), 0) << "an ignored target";
        ops::divergence_backward(run, dlogits.view, logits.view, lse, teacher.view, teacher_lse,
                                 targets, 0.125f, share);
        expect_near(dlogits.view,
                    twin::divergence_backward(values(teacher.view), values(logits.view), targets,
                                              size, 0.125, share),
                    tolerance(dtype), what + " dlogits");
        for (int64_t c = 0; c < cols; ++c)
          EXPECT_EQ(get(dlogits.view, 3, c), 0) << "an ignored target";
        if (dtype == DType::f32) {
          ops::divergence_backward(run, logits.view, logits.view, lse, teacher.view, teacher_lse,
                                   targets, 0.125f, share);
          EXPECT_TRUE(same_bits(logits.view, dlogits.view)) << what << " in place";
        }
        EXPECT_TRUE(logits.intact() && teacher.intact() && dlogits.intact()) << what;
      }
}

TEST(Divergence, OfATeacherWhoAgreesIsExactlyZero) {
  moe::Run run(2);
  Arena arena;
  const Tensor logits = draw(arena, DType::f32, {30, 385}, 1, 4);
  const Tensor nll = arena.alloc(DType::f32, {30}), lse = arena.alloc(DType::f32, {30}),
               kl = arena.alloc(DType::f32, {30}), other = arena.alloc(DType::f32, {30});
  const auto targets = drawn_targets(30, 385);
  ops::cross_entropy_forward(run, nll, lse, logits, targets);
  ops::divergence_forward(run, kl, other, logits, logits, lse, targets);
  EXPECT_EQ(norm(values(kl)), 0);
  EXPECT_TRUE(same_bits(lse, other));
}

TEST(Divergence, LawOfRows) {
  Arena arena;
  const Tensor pool = draw(arena, DType::f32, {300, 385}, 1, 4),
               taught = draw(arena, DType::f32, {300, 385}, 2, 4);
  const auto all = drawn_targets(300, 385);
  expect_law_of_rows(
      [&](moe::Run& run, std::span<const int32_t> which) {
        const int64_t n = static_cast<int64_t>(which.size());
        std::vector<int32_t> targets;
        for (int32_t id : which) targets.push_back(all[static_cast<size_t>(id)]);
        const Tensor logits = pick(run.saved, pool, which),
                     teacher = pick(run.saved, taught, which);
        const Tensor nll = run.saved.alloc(DType::f32, {n, 1}),
                     lse = run.saved.alloc(DType::f32, {n, 1});
        const Tensor kl = run.saved.alloc(DType::f32, {n, 1}),
                     teacher_lse = run.saved.alloc(DType::f32, {n, 1});
        ops::cross_entropy_forward(run, nll, lse, logits, targets);
        ops::divergence_forward(run, kl, teacher_lse, teacher, logits, lse, targets);
        ops::divergence_backward(run, logits, logits, lse, teacher, teacher_lse, targets, 0.01f,
                                 0.4f);
        return join(run.saved, {kl, teacher_lse, logits});
      },
      "divergence");
}

TEST(Divergence, AnotherVocabularyIsRefused) {
  moe::Run run(1);
  Arena arena;
  const Tensor logits = draw(arena, DType::f32, {2, 8}, 1),
               teacher = draw(arena, DType::f32, {2, 9}, 1);
  const Tensor kl = arena.alloc(DType::f32, {2}), lse = arena.alloc(DType::f32, {2}),
               teacher_lse = arena.alloc(DType::f32, {2});
  EXPECT_THROW(ops::divergence_forward(run, kl, teacher_lse, teacher, logits, lse,
                                       std::vector<int32_t>{0, 1}),
               Error);
  EXPECT_THROW(ops::divergence_backward(run, logits, logits, lse, teacher, teacher_lse,
                                        std::vector<int32_t>{0, 1}, 1, 0.5f),
               Error);
}

}  // namespace
}  // namespace moe::test::loss_test
