// Cross-entropy over rows of f32 logits, and the divergence from a teacher's. The maximum is taken
// out before any exponential, so no logit overflows.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/loss.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "core/error.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// lse = m + log(sum_v e^(x_v - m)), m = max_v x_v
float LogSumExp(const float* x, int64_t cols) noexcept {
  const DF32 d;
  const float most = MaxColumns(d, x, cols);
  const VF32 shift = hn::Set(d, most);
  const float sum = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    return Keep(d, Exp(d, hn::Sub(Load(d, x + c, part), shift)), part);
  });
  return most + std::log(sum);
}

void CrossEntropyRows(float* nll, float* lse, Tensor logits, const int32_t* targets, int64_t begin,
                      int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = logits.row<float>(r);
    lse[r] = LogSumExp(x, logits.cols());
    nll[r] = targets[r] == kIgnoreTarget ? 0.0f : lse[r];
    if (targets[r] >= 0) nll[r] -= x[targets[r]];
  }
}

// dlogits_v = scale (e^(x_v - lse) - [v = target])
template <class A>
void CrossEntropyRowBackward(A* dx, const float* x, float lse, int32_t target, float scale,
                             int64_t cols) noexcept {
  const DF32 d;
  if (target == kIgnoreTarget) {
    ForColumns(d, cols,
               [&](int64_t c, auto part) HWY_ATTR { Store(hn::Zero(d), d, dx + c, part); });
    return;
  }
  // Taken before dx is written, which may be x. expm1 keeps the digits of a target that is nearly
  // certain.
  const float at_target =
      target < 0 ? 0.0f
                 : scale * static_cast<float>(std::expm1(static_cast<double>(x[target]) - lse));
  const VF32 shift = hn::Set(d, lse), factor = hn::Set(d, scale);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::Mul(factor, Exp(d, hn::Sub(Load(d, x + c, part), shift))), d, dx + c, part);
  });
  if (target < 0) return;
  if constexpr (std::is_same_v<A, bf16>) dx[target] = to_bf16(at_target);
  else dx[target] = at_target;
}

void CrossEntropyRowsBackward(Tensor dlogits, Tensor logits, const float* lse,
                              const int32_t* targets, float scale, const float* weights,
                              int64_t begin, int64_t end) {
  WithFloat(dlogits.dtype, [&](auto of_a) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      CrossEntropyRowBackward(dlogits.row<decltype(of_a)>(r), logits.row<float>(r), lse[r],
                              targets[r], weights == nullptr ? scale : scale * weights[r],
                              logits.cols());
    }
  });
}

// sum_v p_v ((t_v - lse_t) - (s_v - lse_s)): differences of logits first, so that a teacher who
// agrees gives exactly 0.
float Divergence(const float* teacher, float teacher_lse, const float* student, float student_lse,
                 int64_t cols) noexcept {
  const DF32 d;
  const VF32 of_teacher = hn::Set(d, teacher_lse), of_student = hn::Set(d, student_lse);
  return SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 log_p = hn::Sub(Load(d, teacher + c, part), of_teacher),
               log_q = hn::Sub(Load(d, student + c, part), of_student);
    return Keep(d, hn::Mul(Exp(d, log_p), hn::Sub(log_p, log_q)), part);
  });
}

void DivergenceRows(float* kl, float* teacher_lse, Tensor teacher, Tensor logits, const float* lse,
                    const int32_t* targets, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* t = teacher.row<float>(r);
    teacher_lse[r] = LogSumExp(t, teacher.cols());
    kl[r] = targets[r] == kIgnoreTarget
                ? 0.0f
                : Divergence(t, teacher_lse[r], logits.row<float>(r), lse[r], logits.cols());
  }
}

// dlogits_v = scale (q_v - share p_v - (1 - share) [v = target])
template <class A>
void DivergenceRowBackward(A* dx, const float* x, float lse, const float* t, float teacher_lse,
                           int32_t target, float scale, float share, int64_t cols) noexcept {
  const DF32 d;
  if (target == kIgnoreTarget) {
    ForColumns(d, cols,
               [&](int64_t c, auto part) HWY_ATTR { Store(hn::Zero(d), d, dx + c, part); });
    return;
  }
  // At the target, before dx is written, which may be x: (q - 1) - share (p - 1), each of which
  // keeps its digits.
  const double q1 = std::expm1(static_cast<double>(x[target]) - lse),
               p1 = std::expm1(static_cast<double>(t[target]) - teacher_lse);
  const float at_target = static_cast<float>(scale * (q1 - share * p1));
  const VF32 shift = hn::Set(d, lse), teacher_shift = hn::Set(d, teacher_lse),
             factor = hn::Set(d, scale), weight = hn::Set(d, share);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 p = Exp(d, hn::Sub(Load(d, t + c, part), teacher_shift)),
               q = Exp(d, hn::Sub(Load(d, x + c, part), shift));
    Store(hn::Mul(factor, hn::NegMulAdd(weight, p, q)), d, dx + c, part);
  });
  if constexpr (std::is_same_v<A, bf16>) dx[target] = to_bf16(at_target);
  else dx[target] = at_target;
}

void DivergenceRowsBackward(Tensor dlogits, Tensor logits, const float* lse, Tensor teacher,
                            const float* teacher_lse, const int32_t* targets, float scale,
                            float share, int64_t begin, int64_t end) {
  WithFloat(dlogits.dtype, [&](auto of_a) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      DivergenceRowBackward(dlogits.row<decltype(of_a)>(r), logits.row<float>(r), lse[r],
                            teacher.row<float>(r), teacher_lse[r], targets[r], scale, share,
                            logits.cols());
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(CrossEntropyRows);
HWY_EXPORT(CrossEntropyRowsBackward);
HWY_EXPORT(DivergenceRows);
HWY_EXPORT(DivergenceRowsBackward);

}  // namespace

void cross_entropy_forward(Run& run, Tensor nll, Tensor lse, Tensor logits,
                           std::span<const int32_t> targets) {
  choose_isa();
  check_cross_entropy_forward(run, nll, lse, logits, targets);
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(CrossEntropyRows)
                 (nll.as<float>(), lse.as<float>(), logits, targets.data(), begin, end);
               });
}

void cross_entropy_backward(Run& run, Tensor dlogits, Tensor logits, Tensor lse,
                            std::span<const int32_t> targets, float scale,
                            std::span<const float> weights) {
  choose_isa();
  check_cross_entropy_backward(run, dlogits, logits, lse, targets, weights);
  const float* const of_rows = weights.empty() ? nullptr : weights.data();
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(CrossEntropyRowsBackward)
                 (dlogits, logits, lse.as<float>(), targets.data(), scale, of_rows, begin, end);
               });
}

void divergence_forward(Run& run, Tensor kl, Tensor teacher_lse, Tensor teacher, Tensor logits,
                        Tensor lse, std::span<const int32_t> targets) {
  choose_isa();
  check_divergence_forward(run, kl, teacher_lse, teacher, logits, lse, targets);
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(DivergenceRows)
                 (kl.as<float>(), teacher_lse.as<float>(), teacher, logits, lse.as<float>(),
                  targets.data(), begin, end);
               });
}

void divergence_backward(Run& run, Tensor dlogits, Tensor logits, Tensor lse, Tensor teacher,
                         Tensor teacher_lse, std::span<const int32_t> targets, float scale,
                         float share) {
  choose_isa();
  check_divergence_backward(run, dlogits, logits, lse, teacher, teacher_lse, targets);
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(DivergenceRowsBackward)
                 (dlogits, logits, lse.as<float>(), teacher, teacher_lse.as<float>(),
                  targets.data(), scale, share, begin, end);
               });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
