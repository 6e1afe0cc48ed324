// Cross-entropy over rows of f32 logits. The maximum is taken out before any exponential, so no logit overflows.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/loss.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "core/error.h"
#include "ops/cpu/check.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/ops.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// lse = m + log(sum_v e^(x_v - m)), m = max_v x_v
float LogSumExp(const float* x, int64_t cols) noexcept {
  const DF32 d;
  const float most = MaxColumns(d, x, cols);
  const VF32 shift = hn::Set(d, most);
  const float sum = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR { return Keep(d, Exp(d, hn::Sub(Load(d, x + c, part), shift)), part); });
  return most + std::log(sum);
}

void CrossEntropyRows(float* nll, float* lse, Tensor logits, const int32_t* targets, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = logits.row<float>(r);
    lse[r] = LogSumExp(x, logits.cols());
    nll[r] = targets[r] == kIgnoreTarget ? 0.0f : lse[r] - x[targets[r]];
  }
}

// dlogits_v = scale (e^(x_v - lse) - [v = target])
template <class A>
void CrossEntropyRowBackward(A* dx, const float* x, float lse, int32_t target, float scale, int64_t cols) noexcept {
  const DF32 d;
  if (target == kIgnoreTarget) {
    ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR { Store(hn::Zero(d), d, dx + c, part); });
    return;
  }
  // Taken before dx is written, which may be x. expm1 keeps the digits of a target that is nearly certain.
  const float at_target = scale * static_cast<float>(std::expm1(static_cast<double>(x[target]) - lse));
  const VF32 shift = hn::Set(d, lse), factor = hn::Set(d, scale);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR { Store(hn::Mul(factor, Exp(d, hn::Sub(Load(d, x + c, part), shift))), d, dx + c, part); });
  if constexpr (std::is_same_v<A, bf16>) dx[target] = to_bf16(at_target);
  else dx[target] = at_target;
}

void CrossEntropyRowsBackward(Tensor dlogits, Tensor logits, const float* lse, const int32_t* targets, float scale, int64_t begin, int64_t end) {
  WithFloat(dlogits.dtype, [&](auto of_a) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      CrossEntropyRowBackward(dlogits.row<decltype(of_a)>(r), logits.row<float>(r), lse[r], targets[r], scale, logits.cols());
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(CrossEntropyRows);
HWY_EXPORT(CrossEntropyRowsBackward);

void need_targets(const char* op, const Tensor& logits, std::span<const int32_t> targets) {
  if (static_cast<int64_t>(targets.size()) != logits.rows()) fail("{}: {} targets for logits {}", op, targets.size(), describe(logits));
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] != kIgnoreTarget && (targets[n] < 0 || targets[n] >= logits.cols())) {
      fail("{}: target {} of row {} is not a column of logits {}", op, targets[n], n, describe(logits));
    }
  }
}

}  // namespace

void cross_entropy_forward(Run& run, Tensor nll, Tensor lse, Tensor logits, std::span<const int32_t> targets) {
  choose_isa();
  const char* op = "cross_entropy_forward";
  need(!logits.empty() && logits.dtype == DType::f32 && logits.cols() > 0, op, "logits [N,V] f32", {{"logits", logits}});
  need(is_vector(nll, logits.rows()) && is_vector(lse, logits.rows()), op, "nll and lse [N] f32", {{"nll", nll}, {"lse", lse}, {"logits", logits}});
  need_targets(op, logits, targets);
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(nll.as<float>(), lse.as<float>(), logits, targets.data(), begin, end);
  });
}

void cross_entropy_backward(Run& run, Tensor dlogits, Tensor logits, Tensor lse, std::span<const int32_t> targets, float scale) {
  choose_isa();
  const char* op = "cross_entropy_backward";
  need(same_matrix(dlogits, logits) && logits.dtype == DType::f32 && is_float(dlogits), op, "logits [N,V] f32 and dlogits of its shape, f32 or bf16",
       {{"dlogits", dlogits}, {"logits", logits}});
  need(is_vector(lse, logits.rows()), op, "lse [N] f32", {{"lse", lse}, {"logits", logits}});
  need(dlogits.data != logits.data || dlogits.dtype == DType::f32, op, "memory of its own for bf16 dlogits", {{"dlogits", dlogits}, {"logits", logits}});
  need_targets(op, logits, targets);
  parallel_for(run.threads, logits.rows(), row_grain(logits.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyRowsBackward)(dlogits, logits, lse.as<float>(), targets.data(), scale, begin, end);
  });
}

}  // namespace moe::ops
#endif  // HWY_ONCE
