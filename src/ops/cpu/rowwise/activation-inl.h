// Activations of vectors of f32 and their derivatives, compiled once for each instruction set: silu
// x s with s = 1/(1+e^-x): s (1 + x (1 - s)); gelu x Phi(x): Phi + x phi(x), phi the normal
// density; gelu_tanh x/2 (1 + t), t = tanh(k (x + 0.044715 x^3)), k = sqrt(2/pi): (1 + t)/2 + x/2
// (1 - t^2) k (1 + 0.134145 x^2); relu: [x > 0]; swiglu_oai m s with m = min(x, 7), s =
// 1/(1+e^(-1.702 m)): [x <= 7] s (1 + 1.702 m (1 - s)); sigmoid s: s (1 - s);
// relu2 max(x, 0)^2: 2 max(x, 0); swiglu_10 silu(min(x, 10)): [x <= 10] of silu's.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ROWWISE_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ROWWISE_ACTIVATION_INL_H_
#undef MOE_OPS_CPU_ROWWISE_ACTIVATION_INL_H_
#else
#define MOE_OPS_CPU_ROWWISE_ACTIVATION_INL_H_
#endif

#include "ops/cpu/simd-inl.h"
#include "ops/ops.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// At which an activation holds its gate, and `up` on both sides; 0: it does not.
constexpr float LimitOf(Act act) {
  return act == Act::swiglu_oai ? 7 : act == Act::swiglu_10 ? 10 : 0;
}

// The value of an activation, and its derivative where `slope` is given.
template <Act act>
HWY_INLINE VF32 Activate(DF32 d, VF32 x, VF32* slope) {
  const VF32 one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  if constexpr (act == Act::silu) {
    const VF32 s = Sigmoid(d, x), y = hn::Mul(x, s);
    if (slope != nullptr) *slope = hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
    return y;
  } else if constexpr (act == Act::gelu) {
    const VF32 phi = hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.707106781f))), half);
    if (slope != nullptr) {
      const VF32 density =
          hn::Mul(hn::Set(d, 0.398942280f), Exp(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f))));
      *slope = hn::MulAdd(x, density, phi);
    }
    return hn::Mul(x, phi);
  } else if constexpr (act == Act::gelu_tanh) {
    // Held at 1e4, where t is +-1 and the bracket with t^2 is 0, so that no square overflows and
    // makes 0 * infinity.
    const VF32 k = hn::Set(d, 0.797884561f), square = hn::Min(hn::Mul(x, x), hn::Set(d, 1e4f));
    const VF32 t = Tanh(d, hn::Mul(hn::Mul(k, x), hn::MulAdd(square, hn::Set(d, 0.044715f), one)));
    const VF32 side = hn::MulAdd(half, t, half);  // (1 + t) / 2
    if (slope != nullptr) {
      const VF32 inner = hn::Mul(k, hn::MulAdd(square, hn::Set(d, 0.134145f), one));
      *slope = hn::MulAdd(hn::Mul(hn::Mul(half, x), hn::NegMulAdd(t, t, one)), inner, side);
    }
    return hn::Mul(x, side);
  } else if constexpr (act == Act::swiglu_oai) {
    const VF32 limit = hn::Set(d, LimitOf(act)), alpha = hn::Set(d, 1.702f);
    const VF32 m = hn::IfThenElse(hn::Gt(x, limit), limit, x);  // keeps NaN
    const VF32 am = hn::Mul(alpha, m), s = Sigmoid(d, am);
    if (slope != nullptr)
      *slope =
          hn::IfThenZeroElse(hn::Gt(x, limit), hn::Mul(s, hn::MulAdd(am, hn::Sub(one, s), one)));
    return hn::Mul(m, s);
  } else if constexpr (act == Act::swiglu_10) {
    const VF32 limit = hn::Set(d, LimitOf(act));
    const VF32 m = hn::IfThenElse(hn::Gt(x, limit), limit, x), s = Sigmoid(d, m);  // keeps NaN
    if (slope != nullptr)
      *slope =
          hn::IfThenZeroElse(hn::Gt(x, limit), hn::Mul(s, hn::MulAdd(m, hn::Sub(one, s), one)));
    return hn::Mul(m, s);
  } else if constexpr (act == Act::sigmoid) {
    const VF32 s = Sigmoid(d, x);
    if (slope != nullptr) *slope = hn::Mul(s, hn::Sub(one, s));
    return s;
  } else if constexpr (act == Act::relu2) {
    const VF32 m = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // keeps NaN
    if (slope != nullptr) *slope = hn::Add(m, m);
    return hn::Mul(m, m);
  } else {
    if (slope != nullptr) *slope = hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), one);
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // keeps NaN
  }
}

// What an activated gate is multiplied by, and its derivative where `slope` is given.
template <Act act>
HWY_INLINE VF32 Beside(DF32 d, VF32 up, VF32* slope) {
  if constexpr (LimitOf(act) > 0) {
    const VF32 limit = hn::Set(d, LimitOf(act)), one = hn::Set(d, 1.0f);
    const auto over = hn::Gt(up, limit), under = hn::Lt(up, hn::Neg(limit));
    if (slope != nullptr) *slope = hn::IfThenZeroElse(hn::Or(over, under), one);
    const VF32 held = hn::IfThenElse(over, limit, hn::IfThenElse(under, hn::Neg(limit), up));
    return act == Act::swiglu_oai ? hn::Add(held, one) : held;
  } else {
    if (slope != nullptr) *slope = hn::Set(d, 1.0f);
    return up;
  }
}

template <Act act>
struct Of {
  static constexpr Act value = act;
};
template <class F>
HWY_INLINE void WithAct(Act act, F&& f) {
  switch (act) {
    case Act::silu: return f(Of<Act::silu>());
    case Act::gelu: return f(Of<Act::gelu>());
    case Act::gelu_tanh: return f(Of<Act::gelu_tanh>());
    case Act::relu: return f(Of<Act::relu>());
    case Act::swiglu_oai: return f(Of<Act::swiglu_oai>());
    case Act::sigmoid: return f(Of<Act::sigmoid>());
    case Act::relu2: return f(Of<Act::relu2>());
    case Act::swiglu_10: return f(Of<Act::swiglu_10>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
