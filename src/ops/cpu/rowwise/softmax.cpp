// Softmax and logsumexp over rows of f32 logits with their adjoints. The maximum is taken out
// before any exponential, so no logit overflows; a row with a NaN or +inf is NaN throughout.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/softmax.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// s_c = e^(z_c - m) / sum, lse = m + log(sum), m = max_c z_c. Divided, not multiplied by the
// reciprocal: equal logits then have equal scores that add up to 1 where 1 / cols is a number of
// f32.  s may be null, or z
float SoftmaxRow(float* s, const float* z, int64_t cols) noexcept {
  const DF32 d;
  const float most = MaxColumns(d, z, cols);
  const VF32 shift = hn::Set(d, most);
  const float sum = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 e = Keep(d, Exp(d, hn::Sub(Load(d, z + c, part), shift)), part);
    if (s != nullptr) Store(e, d, s + c, part);
    return e;
  });
  if (s != nullptr) {
    const VF32 whole = hn::Set(d, sum);
    ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Div(Load(d, s + c, part), whole), d, s + c, part);
    });
  }
  return most + std::log(sum);
}

void SoftmaxRows(Tensor s, float* lse, Tensor z, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const float l = SoftmaxRow(s.empty() ? nullptr : s.row<float>(n), z.row<float>(n), z.cols());
    if (lse != nullptr) lse[n] = l;
  }
}

// dz_c = s_c (ds_c - <ds, s> + dlse)
void SoftmaxRowsBackward(Tensor dz, Tensor ds, const float* dlse, Tensor s, int64_t begin,
                         int64_t end) {
  const DF32 d;
  for (int64_t n = begin; n < end; ++n) {
    const float *dy = ds.row<float>(n), *y = s.row<float>(n);
    float* dx = dz.row<float>(n);
    const float dot = SumColumns(d, s.cols(), [&](int64_t c, auto part) HWY_ATTR {
      return hn::Mul(Load(d, dy + c, part), Load(d, y + c, part));
    });
    const VF32 shift = hn::Set(d, dlse != nullptr ? dot - dlse[n] : dot);
    ForColumns(d, s.cols(), [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::Mul(Load(d, y + c, part), hn::Sub(Load(d, dy + c, part), shift)), d, dx + c, part);
    });
  }
}

// dz_c += dlse e^(z_c - lse)
void LogSumExpRowsBackward(Tensor dz, const float* dlse, Tensor z, const float* lse, int64_t begin,
                           int64_t end) {
  const DF32 d;
  for (int64_t n = begin; n < end; ++n) {
    const float* x = z.row<float>(n);
    float* dx = dz.row<float>(n);
    const VF32 shift = hn::Set(d, lse[n]), factor = hn::Set(d, dlse[n]);
    ForColumns(d, z.cols(), [&](int64_t c, auto part) HWY_ATTR {
      Store(hn::MulAdd(factor, Exp(d, hn::Sub(Load(d, x + c, part), shift)), Load(d, dx + c, part)),
            d, dx + c, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SoftmaxRows);
HWY_EXPORT(SoftmaxRowsBackward);
HWY_EXPORT(LogSumExpRowsBackward);

// An exponential, and what a short row costs beside its elements, weigh as much as eight elements
// of a copy.
int64_t softmax_grain(int64_t cols) { return row_grain(8 * cols); }
const float* values_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

}  // namespace

void softmax_forward(Run& run, Tensor s, Tensor lse, Tensor z) {
  choose_isa();
  check_softmax_forward(s, lse, z);
  parallel_for(run.threads, z.rows(), softmax_grain(z.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(SoftmaxRows)
                 (s, lse.empty() ? nullptr : lse.as<float>(), z, begin, end);
               });
}

void softmax_backward(Run& run, Tensor dz, Tensor ds, Tensor dlse, Tensor s) {
  choose_isa();
  check_softmax_backward(dz, ds, dlse, s);
  parallel_for(run.threads, s.rows(), softmax_grain(s.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(SoftmaxRowsBackward)(dz, ds, values_of(dlse), s, begin, end);
               });
}

void logsumexp_backward_acc(Run& run, Tensor dz, Tensor dlse, Tensor z, Tensor lse) {
  choose_isa();
  check_logsumexp_backward(dz, dlse, z, lse);
  parallel_for(run.threads, z.rows(), softmax_grain(z.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(LogSumExpRowsBackward)
                 (dz, dlse.as<float>(), z, lse.as<float>(), begin, end);
               });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
