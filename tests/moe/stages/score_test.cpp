// The score stages against their formulas on dual numbers, and on the golden logits of a worked
// example (ties to the lower index, four tokens, four experts).
#include "moe/stages/score.h"

#include <fmt/format.h>

#include "support/check.h"
#include "support/gradient.h"

namespace moe::test::score_test {
namespace {

// s = score(z), row by row.  z [N,E]
template <class T>
std::vector<T> score_twin(const std::vector<T>& z, size_t experts, const ScoreStage& stage) {
  using std::exp, std::log, std::sqrt;
  std::vector<T> s = z;
  for (size_t n = 0; n < z.size(); n += experts) {
    T sum(0.0);
    for (size_t e = n; e < n + experts; ++e) sum += exp(z[e]);
    for (size_t e = n; e < n + experts; ++e) {
      if (std::holds_alternative<SoftmaxScore>(stage)) s[e] = exp(z[e]) / sum;
      if (std::holds_alternative<SigmoidScore>(stage)) s[e] = T(1.0) / (T(1.0) + exp(-z[e]));
      if (std::holds_alternative<SqrtSoftplusScore>(stage)) s[e] = sqrt(log(T(1.0) + exp(z[e])));
    }
  }
  return s;
}

// log(sum of exp(z)) of each row.  z [N,E]
template <class T>
std::vector<T> lse_twin(const std::vector<T>& z, size_t experts) {
  using std::exp, std::log;
  std::vector<T> lse;
  for (size_t n = 0; n < z.size(); n += experts) {
    T sum(0.0);
    for (size_t e = n; e < n + experts; ++e) sum += exp(z[e]);
    lse.push_back(log(sum));
  }
  return lse;
}

const ScoreStage kStages[] = {SoftmaxScore{}, SigmoidScore{}, RawScore{}, SqrtSoftplusScore{}};

TEST(Score, EveryMemberMatchesItsTwinForwardAndBackward) {
  for (const ScoreStage& stage : kStages)
    for (const auto& [tokens, experts] : {std::pair<int64_t, int64_t>{1, 2}, {3, 5}, {17, 64}}) {
      moe::Run run(1);
      const Tensor z = draw(run.saved, DType::f32, {tokens, experts}, 5, 2),
                   s = run.saved.alloc(DType::f32, {tokens, experts}),
                   ds = draw(run.saved, DType::f32, {tokens, experts}, 6),
                   dz = run.saved.alloc(DType::f32, {tokens, experts}),
                   lse = run.saved.alloc(DType::f32, {tokens}),
                   dlse = draw(run.saved, DType::f32, {tokens}, 7);
      const std::string what =
          fmt::format("stage {} of {} tokens, {} experts", stage.index(), tokens, experts);
      score_forward(run, s, lse, z, stage);
      expect_near(s, score_twin(values(z), static_cast<size_t>(experts), stage), kTwinF32, what);
      expect_near(lse, lse_twin(values(z), static_cast<size_t>(experts)), kTwinF32, what + " lse");
      const std::vector<double> r = values(ds), q = values(dlse);
      const auto of_scores = [&, experts = experts](const DualVector& at) {
        return inner(score_twin(at, static_cast<size_t>(experts), stage), r);
      };
      const auto of_both = [&, experts = experts](const DualVector& at) {
        return of_scores(at) + inner(lse_twin(at, static_cast<size_t>(experts)), q);
      };
      const bool of_logits = std::holds_alternative<SqrtSoftplusScore>(stage);
      score_backward(run, dz, ds, {}, s, of_logits ? z : Tensor{}, {}, stage);
      expect_near(dz, dual_gradient(values(z), of_scores), kTwinF32, what + " backward");
      score_backward(run, dz, ds, dlse, s, z, lse, stage);
      expect_near(dz, dual_gradient(values(z), of_both), kTwinF32, what + " backward of both");
      score_backward(run, ds, ds, dlse, s, z, lse, stage);
      EXPECT_TRUE(same_bits(dz, ds)) << what << " in place";
    }
}

TEST(Score, OneExpertHasSoftmaxOneAndNoGradient) {
  moe::Run run(1);
  float z[] = {3, -80}, s[2], ds[] = {1, 2}, dz[2];
  score_forward(run, Tensor(s, DType::f32, {2, 1}), {}, Tensor(z, DType::f32, {2, 1}),
                SoftmaxScore{});
  EXPECT_EQ(s[0], 1);
  EXPECT_EQ(s[1], 1);
  score_backward(run, Tensor(dz, DType::f32, {2, 1}), Tensor(ds, DType::f32, {2, 1}), {},
                 Tensor(s, DType::f32, {2, 1}), {}, {}, SoftmaxScore{});
  EXPECT_EQ(dz[0], 0);
  EXPECT_EQ(dz[1], 0);
}

TEST(Score, LargeLogitsDoNotOverflow) {
  moe::Run run(1);
  float z[] = {1000, 999, -1000, 0}, s[4];
  for (const ScoreStage& stage : kStages) {
    score_forward(run, Tensor(s, DType::f32, {1, 4}), {}, Tensor(z, DType::f32, {1, 4}), stage);
    for (float x : s) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(Score, GoldenSoftmax) {
  moe::Run run(1);
  float z[] = {2, 1, 0, -1, 1.5f, 1.5f, 0.5f, 0, 3, -1, 2, 0, 0.2f, 0.1f, 0, 2.2f}, s[16];
  const double want[] = {.643914, .236883, .087144, .032059, .385950, .385950, .141983, .086117,
                         .696387, .012755, .256187, .034671, .098886, .089476, .080961, .730676};
  score_forward(run, Tensor(s, DType::f32, {4, 4}), {}, Tensor(z, DType::f32, {4, 4}),
                SoftmaxScore{});
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(s[i], want[i], 6e-7);
}

// Threads, and the law of rows: a row alone has the bits it has among others.
TEST(Score, ARowHasTheSameBitsForAnyThreadsAndNeighbours) {
  moe::Run one(1), two(2);
  for (const ScoreStage& stage : kStages) {
    const Tensor z = draw(one.saved, DType::f32, {301, 24}, 9),
                 a = one.saved.alloc(DType::f32, {301, 24}),
                 b = one.saved.alloc(DType::f32, {301, 24});
    score_forward(one, a, {}, z, stage);
    score_forward(two, b, {}, z, stage);
    EXPECT_TRUE(same_bits(a, b));
    for (int64_t n : {0, 150, 300})
      score_forward(one, b.slice_rows(n, n + 1), {}, z.slice_rows(n, n + 1), stage);
    EXPECT_TRUE(same_bits(a, b));
  }
}

}  // namespace
}  // namespace moe::test::score_test
