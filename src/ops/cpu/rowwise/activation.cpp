// The hidden layer of an expert: activation, gate and combine weight in one pass. Values a row has
// in bf16 are widened, computed in f32 and rounded once. The formulas are in activation-inl.h.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/rowwise/activation-inl.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

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
