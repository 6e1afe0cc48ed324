// xIELU (ops.h). With b(x) = x^2 where x > 0 and e^min(x, eps) - 1 - x elsewhere, and a = p or n on
// the side on which x lies,
//   h = a b + beta x,  dx = dh (a b' + beta),  b' = 2 x, or [x < eps] e^x - 1;
//   dalpha_p = sigmoid(alpha_p) sum over x > 0 of dh b,  dalpha_n likewise over the others.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/xielu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/rowwise/xielu.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// e^x - 1 - x down to x = -1/2 by its series, x^2 (1/2! + x/3! + ... + x^6/8!): near 0 a difference
// of numbers near 1 would leave nothing of it but their rounding.
HWY_INLINE VF32 XieluTail(DF32 d, VF32 x) {
  VF32 sum = hn::Set(d, 1.0f / 40320);
  sum = hn::MulAdd(sum, x, hn::Set(d, 1.0f / 5040));
  sum = hn::MulAdd(sum, x, hn::Set(d, 1.0f / 720));
  sum = hn::MulAdd(sum, x, hn::Set(d, 1.0f / 120));
  sum = hn::MulAdd(sum, x, hn::Set(d, 1.0f / 24));
  sum = hn::MulAdd(sum, x, hn::Set(d, 1.0f / 6));
  sum = hn::MulAdd(sum, x, hn::Set(d, 0.5f));
  return hn::Mul(hn::Mul(x, x), sum);
}

// b, and b' where `slope` is given. With m = min(x, eps) what b is elsewhere is (e^m - 1 - m) +
// (m - x), of which the second is 0 but between eps and 0.
template <class M>
HWY_INLINE VF32 XieluBend(DF32 d, VF32 x, M positive, float eps, VF32* slope) {
  const VF32 one = hn::Set(d, 1.0f), limit = hn::Set(d, eps);
  const auto below = hn::Lt(x, limit);
  const VF32 m = hn::IfThenElse(below, x, limit), tail = XieluTail(d, m);
  const auto near_zero = hn::Gt(m, hn::Set(d, -0.5f));
  const VF32 grown = hn::IfThenElse(near_zero, hn::Add(tail, m), hn::Sub(Exp(d, m), one));
  if (slope != nullptr)
    *slope = hn::IfThenElse(positive, hn::Add(x, x), hn::IfThenElse(below, grown, hn::Neg(one)));
  const VF32 rest = hn::IfThenElse(near_zero, tail, hn::Sub(grown, m));
  return hn::IfThenElse(positive, hn::Mul(x, x), hn::Add(rest, hn::Sub(m, x)));  // keeps NaN
}

template <class A>
void XieluRow(A* hidden, const A* up, const XieluFactors& f, int64_t cols) noexcept {
  const DF32 d;
  const VF32 p = hn::Set(d, f.p), n = hn::Set(d, f.n), beta = hn::Set(d, f.beta);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 x = Load(d, up + c, part);
    const auto positive = hn::Gt(x, hn::Zero(d));
    const VF32 b = XieluBend(d, x, positive, f.eps, nullptr);
    Store(hn::MulAdd(hn::IfThenElse(positive, p, n), b, hn::Mul(beta, x)), d, hidden + c, part);
  });
}

template <class A>
XieluSums XieluRowBackward(A* dup, A* hidden, const A* dhidden, const A* up, const XieluFactors& f,
                           int64_t cols) noexcept {
  const DF32 d;
  const VF32 p = hn::Set(d, f.p), n = hn::Set(d, f.n), beta = hn::Set(d, f.beta);
  VF32 negative = hn::Zero(d);
  XieluSums sums;
  // Beyond the row dh is 0.
  sums.p = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 x = Load(d, up + c, part), dh = Load(d, dhidden + c, part);
    const auto positive = hn::Gt(x, hn::Zero(d));
    VF32 slope;
    const VF32 b = XieluBend(d, x, positive, f.eps, &slope);
    const VF32 a = hn::IfThenElse(positive, p, n), share = hn::Mul(dh, b);
    Store(hn::Mul(dh, hn::MulAdd(a, slope, beta)), d, dup + c, part);
    Store(hn::MulAdd(a, b, hn::Mul(beta, x)), d, hidden + c, part);
    negative = hn::Add(negative, hn::IfThenZeroElse(positive, share));
    return hn::IfThenElseZero(positive, share);
  });
  sums.n = SumLanesFixed(d, negative);
  return sums;
}

void XieluRows(Tensor hidden, Tensor up, const XieluFactors& f, int64_t begin, int64_t end) {
  WithFloat(up.dtype, [&](auto of_a) HWY_ATTR {
    using A = decltype(of_a);
    for (int64_t r = begin; r < end; ++r) XieluRow<A>(hidden.row<A>(r), up.row<A>(r), f, up.cols());
  });
}

void XieluRowsBackward(Tensor dup, Tensor hidden, XieluSums* sums, Tensor dhidden, Tensor up,
                       const XieluFactors& f, int64_t begin, int64_t end) {
  WithFloat(up.dtype, [&](auto of_a) HWY_ATTR {
    using A = decltype(of_a);
    for (int64_t r = begin; r < end; ++r)
      sums[r] = XieluRowBackward<A>(dup.row<A>(r), hidden.row<A>(r), dhidden.row<A>(r),
                                    up.row<A>(r), f, up.cols());
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(XieluRows);
HWY_EXPORT(XieluRowsBackward);

// An exponential makes an element worth several of a plain op.
int64_t xielu_grain(int64_t cols) { return std::max<int64_t>(1, row_grain(cols) / 4); }

bool is_like(const Tensor& t, const Tensor& up) {
  return same_matrix(t, up) && t.dtype == up.dtype;
}

XieluFactors factors_of(const char* op, const Param& alpha_p, const Param& alpha_n,
                        const Param& beta, const Param& eps) {
  need(is_vector(alpha_p.value, 1) && is_vector(alpha_n.value, 1) && is_vector(beta.value, 1) &&
           is_vector(eps.value, 1),
       op, "alpha_p, alpha_n, beta and eps [1] f32",
       {{"alpha_p", alpha_p.value},
        {"alpha_n", alpha_n.value},
        {"beta", beta.value},
        {"eps", eps.value}});
  const float b = *beta.value.as<float>();
  return {.p = softplus(*alpha_p.value.as<float>()),
          .n = b + softplus(*alpha_n.value.as<float>()),
          .beta = b,
          .eps = *eps.value.as<float>()};
}

// The slope of a softplus.
double share_of(const Param& alpha) {
  return sigmoid(static_cast<double>(*alpha.value.as<float>()));
}

}  // namespace

void xielu_forward(Run& run, Tensor hidden, Tensor up, const Param& alpha_p, const Param& alpha_n,
                   const Param& beta, const Param& eps) {
  choose_isa();
  need(is_float(up) && is_like(hidden, up), "xielu_forward", "up f32 or bf16, hidden like up",
       {{"hidden", hidden}, {"up", up}});
  const XieluFactors f = factors_of("xielu_forward", alpha_p, alpha_n, beta, eps);
  parallel_for(run.threads, up.rows(), xielu_grain(up.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(XieluRows)(hidden, up, f, begin, end);
               });
}

void xielu_backward(Run& run, Tensor dup, Tensor hidden, Param& alpha_p, Param& alpha_n,
                    Tensor dhidden, Tensor up, const Param& beta, const Param& eps) {
  choose_isa();
  need(is_float(up) && is_like(dup, up) && is_like(hidden, up) && is_like(dhidden, up),
       "xielu_backward", "up f32 or bf16, dup, hidden and dhidden like up",
       {{"dup", dup}, {"hidden", hidden}, {"dhidden", dhidden}, {"up", up}});
  const XieluFactors f = factors_of("xielu_backward", alpha_p, alpha_n, beta, eps);
  std::vector<XieluSums> sums(static_cast<size_t>(up.rows()));
  parallel_for(run.threads, up.rows(), xielu_grain(up.cols()),
               [&](int64_t begin, int64_t end, int) {
                 HWY_DYNAMIC_DISPATCH(XieluRowsBackward)
                 (dup, hidden, sums.data(), dhidden, up, f, begin, end);
               });
  // In the order of the rows, so that threads change no bit.
  double p = 0, n = 0;
  for (const XieluSums& of_row : sums) {
    p += static_cast<double>(of_row.p);
    n += static_cast<double>(of_row.n);
  }
  for (const auto& [alpha, sum] : {std::pair(&alpha_p, p), std::pair(&alpha_n, n)}) {
    if (alpha->grad.empty()) continue;
    settle_grad(run, *alpha);
    *alpha->grad.as<float>() += static_cast<float>(share_of(*alpha) * sum);
  }
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
