// The hidden layer of an expert: activation, gate and combine weight in one pass. Values are
// widened, computed in f32 and rounded once. Activations and derivatives: silu x s with
// s = 1/(1+e^-x): s (1 + x (1 - s)); gelu x Phi(x): Phi + x phi(x), phi the normal density;
// gelu_tanh x/2 (1 + t), t = tanh(k (x + 0.044715 x^3)), k = sqrt(2/pi): (1 + t)/2 + x/2 (1 - t^2)
// k (1 + 0.134145 x^2); relu: [x > 0]; swiglu_oai m s with m = min(x, 7), s = 1/(1+e^(-1.702 m)):
// [x <= 7] s (1 + 1.702 m (1 - s)); sigmoid s: s (1 - s). Multiplications that are added are fused
// by name, so that forward and backward make the same bits of a hidden number.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr float kLimit = 7;  // of swiglu_oai

struct Curve {
  float value, slope;
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <Act act>
__device__ inline Curve activate(float x) {
  if constexpr (act == Act::silu) {
    const float s = sigmoid(x);
    return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
  } else if constexpr (act == Act::gelu) {
    const float phi = fmaf(0.5f, erff(x * 0.707106781f), 0.5f);
    const float density = 0.398942280f * expf(x * x * -0.5f);
    return {x * phi, fmaf(x, density, phi)};
  } else if constexpr (act == Act::gelu_tanh) {
    // Held at 1e4, where t is +-1 and the bracket with t^2 is 0, so that no square overflows and
    // makes 0 * infinity.
    const float k = 0.797884561f, square = fminf(x * x, 1e4f);
    const float t = tanhf(k * x * fmaf(square, 0.044715f, 1.0f));
    const float side = fmaf(0.5f, t, 0.5f);  // (1 + t) / 2
    const float inner = k * fmaf(square, 0.134145f, 1.0f);
    return {x * side, fmaf(0.5f * x * fmaf(-t, t, 1.0f), inner, side)};
  } else if constexpr (act == Act::swiglu_oai) {
    const float m = x > kLimit ? kLimit : x;  // keeps NaN
    const float am = 1.702f * m, s = sigmoid(am);
    return {m * s, x > kLimit ? 0.0f : s * fmaf(am, 1.0f - s, 1.0f)};
  } else if constexpr (act == Act::sigmoid) {
    const float s = sigmoid(x);
    return {s, s * (1.0f - s)};
  } else {
    return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // keeps NaN
  }
}

// What an activated gate is multiplied by.
template <Act act>
__device__ inline Curve beside(float up) {
  if constexpr (act == Act::swiglu_oai) {
    const bool over = up > kLimit, under = up < -kLimit;
    return {(over ? kLimit : under ? -kLimit : up) + 1.0f, over || under ? 0.0f : 1.0f};
  } else {
    return {up, 1.0f};
  }
}

constexpr int kSteps = 2;  // of a thread, on their way at once

// h = weight act(gate) beside(up), or weight act(up) without a gate
template <bool steps, Act act, class A>
__global__ void act_rows(Rows<A> hidden, Rows<A> gate, Rows<A> up, const float* weight,
                         int64_t rows, int64_t cols) {
  const OwnRow own(rows);
  if (!own.live) return;
  const float w = weight != nullptr ? weight[own.r] : 1.0f;
  Step<A> ups[kSteps], gates[kSteps];
  const auto look = [&](int k, int64_t c) {
    ups[k].load(up.row(own.r), c, cols, steps);
    if (!gate.empty()) gates[k].load(gate.row(own.r), c, cols, steps);
  };
  for_steps_at_once<kSteps>(cols, look, [&](int k, int64_t c) {
    const Step<A>&u = ups[k], &g = gates[k];
    float h[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (gate.empty()) h[i] = w * activate<act>(u[i]).value;
      else h[i] = w * (activate<act>(g[i]).value * beside<act>(u[i]).value);
    }
    Step<A>(h).store(hidden.row(own.r), c, cols, steps);
  });
}

template <class A>
struct ActGrads {
  Rows<A> dgate, dup, hidden;
  float* dweight;
};

// With a = act(gate), b = beside(up), h = a b, and e = weight dhidden:  dup = e a b';  dgate = e b
// act'(gate);  hidden = weight h;  dweight = sum_f dhidden h. Without a gate h = act(up) and dup =
// e act'(up).
template <bool steps, Act act, class A>
__global__ void act_rows_backward(ActGrads<A> out, Rows<A> dhidden, Rows<A> gate, Rows<A> up,
                                  const float* weight, int64_t rows, int64_t cols) {
  __shared__ float shared[33];
  const OwnRow own(rows);
  const float w = weight != nullptr ? weight[own.r] : 1.0f;
  float sum = 0;
  Step<A> ups[kSteps], gates[kSteps], grads[kSteps];
  const auto look = [&](int k, int64_t c) {
    ups[k].load(up.row(own.r), c, cols, steps);
    grads[k].load(dhidden.row(own.r), c, cols, steps);
    if (!gate.empty()) gates[k].load(gate.row(own.r), c, cols, steps);
  };
  for_steps_at_once<kSteps>(own.live ? cols : 0, look, [&](int k, int64_t c) {
    const Step<A>&u = ups[k], &g = gates[k], &dh = grads[k];
    float dgate[kStep] = {}, dup[kStep], hidden[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float e = w * dh[i];
      float h;
      if (gate.empty()) {
        const Curve a = activate<act>(u[i]);
        h = a.value;
        dup[i] = e * a.slope;
      } else {
        const Curve a = activate<act>(g[i]), b = beside<act>(u[i]);
        h = a.value * b.value;
        dgate[i] = e * b.value * a.slope;
        dup[i] = e * a.value * b.slope;
      }
      sum += dh[i] * h;  // beyond the row dh is 0
      hidden[i] = w * h;
    }
    Step<A>(dup).store(out.dup.row(own.r), c, cols, steps);
    Step<A>(hidden).store(out.hidden.row(own.r), c, cols, steps);
    if (!gate.empty()) Step<A>(dgate).store(out.dgate.row(own.r), c, cols, steps);
  });
  if (out.dweight == nullptr) return;
  sum = row_sum(sum, shared);
  if (own.live && threadIdx.x == 0) out.dweight[own.r] = sum;
}

template <Act act>
using Of = std::integral_constant<Act, act>;
template <class F>
void with_act(Act act, F&& f) {
  switch (act) {
    case Act::silu: return f(Of<Act::silu>());
    case Act::gelu: return f(Of<Act::gelu>());
    case Act::gelu_tanh: return f(Of<Act::gelu_tanh>());
    case Act::relu: return f(Of<Act::relu>());
    case Act::swiglu_oai: return f(Of<Act::swiglu_oai>());
    case Act::sigmoid: return f(Of<Act::sigmoid>());
  }
}

float* numbers_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

}  // namespace

void ffn_act_forward(Run& run, Tensor hidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  check_ffn_act_forward(hidden, gate, up, weight);
  const RowShape shape(up.cols(), steps_for(up.rows(), kSteps));
  const bool steps = rows_in_steps({hidden, up}) && (gate.empty() || rows_in_steps({gate}));
  with_float(up.dtype, [&](auto of_a) {
    with_act(act, [&](auto of_act) {
      using A = decltype(of_a);
      constexpr Act kAct = decltype(of_act)::value;
      launch(run, steps ? act_rows<true, kAct, A> : act_rows<false, kAct, A>,
             shape.blocks(up.rows()), shape.block(), 0, Rows<A>(hidden), Rows<A>(gate), Rows<A>(up),
             numbers_of(weight), up.rows(), up.cols());
    });
  });
}

void ffn_act_backward(Run& run, Tensor dgate, Tensor dup, Tensor hidden, Tensor dweight,
                      Tensor dhidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  check_ffn_act_backward(dgate, dup, hidden, dweight, dhidden, gate, up, weight);
  const RowShape shape(up.cols(), steps_for(up.rows(), kSteps));
  const bool steps =
      rows_in_steps({dup, hidden, dhidden, up}) && (gate.empty() || rows_in_steps({dgate, gate}));
  with_float(up.dtype, [&](auto of_a) {
    with_act(act, [&](auto of_act) {
      using A = decltype(of_a);
      constexpr Act kAct = decltype(of_act)::value;
      launch(run, steps ? act_rows_backward<true, kAct, A> : act_rows_backward<false, kAct, A>,
             shape.blocks(up.rows()), shape.block(), 0,
             ActGrads<A>{Rows<A>(dgate), Rows<A>(dup), Rows<A>(hidden), numbers_of(dweight)},
             Rows<A>(dhidden), Rows<A>(gate), Rows<A>(up), numbers_of(weight), up.rows(),
             up.cols());
    });
  });
}

}  // namespace moe::ops::cuda
