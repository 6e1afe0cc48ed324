// The hidden layer of an expert: activation, gate and combine weight in one pass. Values a row has
// in bf16 are widened, computed in f32 and rounded once. Activations and derivatives: silu x s with
// s = 1/(1+e^-x): s (1 + x (1 - s)); gelu x Phi(x): Phi + x phi(x), phi the normal density;
// gelu_tanh x/2 (1 + t), t = tanh(k (x + 0.044715 x^3)), k = sqrt(2/pi): (1 + t)/2 + x/2 (1 - t^2)
// k (1 + 0.134145 x^2); relu: [x > 0]; swiglu_oai m s with m = min(x, 7), s = 1/(1+e^(-1.702 m)):
// [x <= 7] s (1 + 1.702 m (1 - s)); sigmoid s: s (1 - s).
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/activation.cpp"
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

constexpr float kLimit = 7;  // of swiglu_oai

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
    const VF32 limit = hn::Set(d, kLimit), alpha = hn::Set(d, 1.702f);
    const VF32 m = hn::IfThenElse(hn::Gt(x, limit), limit, x);  // keeps NaN
    const VF32 am = hn::Mul(alpha, m), s = Sigmoid(d, am);
    if (slope != nullptr)
      *slope =
          hn::IfThenZeroElse(hn::Gt(x, limit), hn::Mul(s, hn::MulAdd(am, hn::Sub(one, s), one)));
    return hn::Mul(m, s);
  } else if constexpr (act == Act::sigmoid) {
    const VF32 s = Sigmoid(d, x);
    if (slope != nullptr) *slope = hn::Mul(s, hn::Sub(one, s));
    return s;
  } else {
    if (slope != nullptr) *slope = hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), one);
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // keeps NaN
  }
}

// What an activated gate is multiplied by, and its derivative where `slope` is given.
template <Act act>
HWY_INLINE VF32 Beside(DF32 d, VF32 up, VF32* slope) {
  if constexpr (act == Act::swiglu_oai) {
    const VF32 limit = hn::Set(d, kLimit), one = hn::Set(d, 1.0f);
    const auto over = hn::Gt(up, limit), under = hn::Lt(up, hn::Neg(limit));
    if (slope != nullptr) *slope = hn::IfThenZeroElse(hn::Or(over, under), one);
    return hn::Add(hn::IfThenElse(over, limit, hn::IfThenElse(under, hn::Neg(limit), up)), one);
  } else {
    if (slope != nullptr) *slope = hn::Set(d, 1.0f);
    return up;
  }
}

// h = weight act(gate) beside(up), or weight act(up) without a gate
template <Act act, class A>
void ActRow(A* hidden, const A* gate, const A* up, float weight, int64_t cols) noexcept {
  const DF32 d;
  const VF32 w = hn::Set(d, weight);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 u = Load(d, up + c, part);
    const VF32 h = gate != nullptr ? hn::Mul(Activate<act>(d, Load(d, gate + c, part), nullptr),
                                             Beside<act>(d, u, nullptr))
                                   : Activate<act>(d, u, nullptr);
    Store(hn::Mul(w, h), d, hidden + c, part);
  });
}

// With a = act(gate), b = beside(up), h = a b, and e = weight dhidden:  dup = e a b';  dgate = e b
// act'(gate);  hidden = weight h.  Returns sum_f dhidden h. Without a gate h = act(up) and dup = e
// act'(up).
template <Act act, class A>
float ActRowBackward(A* dgate, A* dup, A* hidden, const A* dhidden, const A* gate, const A* up,
                     float weight, int64_t cols) noexcept {
  const DF32 d;
  const VF32 w = hn::Set(d, weight);
  return SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 u = Load(d, up + c, part), dh = Load(d, dhidden + c, part);
    const VF32 e = hn::Mul(w, dh);
    VF32 slope, h;
    if (gate != nullptr) {
      const VF32 a = Activate<act>(d, Load(d, gate + c, part), &slope);
      VF32 beside_slope;
      const VF32 b = Beside<act>(d, u, &beside_slope);
      h = hn::Mul(a, b);
      Store(hn::Mul(hn::Mul(e, b), slope), d, dgate + c, part);
      Store(hn::Mul(hn::Mul(e, a), beside_slope), d, dup + c, part);
    } else {
      h = Activate<act>(d, u, &slope);
      Store(hn::Mul(e, slope), d, dup + c, part);
    }
    Store(hn::Mul(w, h), d, hidden + c, part);
    return hn::Mul(dh, h);  // beyond the row dh is 0
  });
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
  }
}

template <class A>
HWY_INLINE A* RowOrNull(const Tensor& t, int64_t r) {
  return t.empty() ? nullptr : t.row<A>(r);
}

void ActRows(Tensor hidden, Tensor gate, Tensor up, const float* weight, Act act, int64_t begin,
             int64_t end) {
  WithFloat(up.dtype, [&](auto of_a) HWY_ATTR {
    WithAct(act, [&](auto of_act) HWY_ATTR {
      using A = decltype(of_a);
      for (int64_t r = begin; r < end; ++r) {
        ActRow<decltype(of_act)::value, A>(hidden.row<A>(r), RowOrNull<A>(gate, r), up.row<A>(r),
                                           weight != nullptr ? weight[r] : 1.0f, up.cols());
      }
    });
  });
}

void ActRowsBackward(Tensor dgate, Tensor dup, Tensor hidden, float* dweight, Tensor dhidden,
                     Tensor gate, Tensor up, const float* weight, Act act, int64_t begin,
                     int64_t end) {
  WithFloat(up.dtype, [&](auto of_a) HWY_ATTR {
    WithAct(act, [&](auto of_act) HWY_ATTR {
      using A = decltype(of_a);
      for (int64_t r = begin; r < end; ++r) {
        const float sum = ActRowBackward<decltype(of_act)::value, A>(
            RowOrNull<A>(dgate, r), dup.row<A>(r), hidden.row<A>(r), dhidden.row<A>(r),
            RowOrNull<A>(gate, r), up.row<A>(r), weight != nullptr ? weight[r] : 1.0f, up.cols());
        if (dweight != nullptr) dweight[r] = sum;
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(ActRows);
HWY_EXPORT(ActRowsBackward);

// Exponentials make an element worth several of a plain op.
int64_t act_grain(int64_t cols) { return std::max<int64_t>(1, row_grain(cols) / 4); }

}  // namespace

void ffn_act_forward(Run& run, Tensor hidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  choose_isa();
  check_ffn_act_forward(hidden, gate, up, weight);
  const float* w = weight.empty() ? nullptr : weight.as<float>();
  parallel_for(run.threads, up.rows(), act_grain(up.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ActRows)(hidden, gate, up, w, act, begin, end);
  });
}

void ffn_act_backward(Run& run, Tensor dgate, Tensor dup, Tensor hidden, Tensor dweight,
                      Tensor dhidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  choose_isa();
  check_ffn_act_backward(dgate, dup, hidden, dweight, dhidden, gate, up, weight);
  const float* w = weight.empty() ? nullptr : weight.as<float>();
  float* dw = dweight.empty() ? nullptr : dweight.as<float>();
  parallel_for(run.threads, up.rows(), act_grain(up.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ActRowsBackward)
    (dgate, dup, hidden, dw, dhidden, gate, up, w, act, begin, end);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
