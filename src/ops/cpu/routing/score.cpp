// The square root of softplus, by elements (ops/routing.h). With t = e^-|z| no power overflows, and
//   s = sqrt(max(z, 0) + log(1 + t)),  ds/dz = sigmoid(z) / (2 s),  sigmoid(z) = [z < 0] t, or 1,
//   over 1 + t.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/routing/score.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// log(1 + t) for t in [0, 1]: 2 atanh(q) with q = t / (2 + t), whose series ends where q = 1/3
// makes the next term 2e-9 of the whole.
HWY_INLINE VF32 LogOnePlus(DF32 d, VF32 t) {
  const VF32 q = hn::Div(t, hn::Add(t, hn::Set(d, 2.0f))), square = hn::Mul(q, q);
  VF32 sum = hn::Set(d, 2.0f / 15);
  for (float odd = 13; odd > 0; odd -= 2) sum = hn::MulAdd(sum, square, hn::Set(d, 2 / odd));
  return hn::Mul(q, sum);
}

void SqrtSoftplusRows(Tensor s, Tensor z, int64_t begin, int64_t end) {
  const DF32 d;
  for (int64_t n = begin; n < end; ++n) {
    const float* x = z.row<float>(n);
    float* y = s.row<float>(n);
    ForColumns(d, z.cols(), [&](int64_t c, auto part) HWY_ATTR {
      const VF32 v = Load(d, x + c, part);
      const VF32 above = hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v);  // keeps NaN
      const VF32 rest = LogOnePlus(d, Exp(d, hn::Neg(hn::Abs(v))));
      Store(hn::Sqrt(hn::Add(above, rest)), d, y + c, part);
    });
  }
}

void SqrtSoftplusRowsBackward(Tensor dz, Tensor ds, Tensor s, Tensor z, int64_t begin,
                              int64_t end) {
  const DF32 d;
  const VF32 one = hn::Set(d, 1.0f);
  for (int64_t n = begin; n < end; ++n) {
    const float *dy = ds.row<float>(n), *y = s.row<float>(n), *x = z.row<float>(n);
    float* dx = dz.row<float>(n);
    ForColumns(d, z.cols(), [&](int64_t c, auto part) HWY_ATTR {
      const VF32 v = Load(d, x + c, part), score = Load(d, y + c, part),
                 t = Exp(d, hn::Neg(hn::Abs(v)));
      const VF32 sigmoid = hn::Div(hn::IfThenElse(hn::Lt(v, hn::Zero(d)), t, one), hn::Add(one, t));
      // Where s has come to 0 the slope has long been nothing.
      const VF32 slope =
          hn::IfThenElseZero(hn::Gt(score, hn::Zero(d)), hn::Div(sigmoid, hn::Add(score, score)));
      Store(hn::Mul(Load(d, dy + c, part), slope), d, dx + c, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SqrtSoftplusRows);
HWY_EXPORT(SqrtSoftplusRowsBackward);

// An exponential and a logarithm weigh as much as sixteen elements of a copy.
int64_t score_grain(int64_t cols) { return row_grain(16 * cols); }

}  // namespace

void sqrt_softplus_forward(Run& run, Tensor s, Tensor z) {
  choose_isa();
  check_sqrt_softplus_forward(s, z);
  parallel_for(run.threads, z.rows(), score_grain(z.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SqrtSoftplusRows)(s, z, begin, end);
  });
}

void sqrt_softplus_backward(Run& run, Tensor dz, Tensor ds, Tensor s, Tensor z) {
  choose_isa();
  check_sqrt_softplus_backward(dz, ds, s, z);
  parallel_for(run.threads, z.rows(), score_grain(z.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(SqrtSoftplusRowsBackward)(dz, ds, s, z, begin, end);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
