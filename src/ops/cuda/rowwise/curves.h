// Activations and derivatives: silu x s with s = 1/(1+e^-x): s (1 + x (1 - s)); gelu x Phi(x):
// Phi + x phi(x), phi the normal density; gelu_tanh x/2 (1 + t), t = tanh(k (x + 0.044715 x^3)),
// k = sqrt(2/pi): (1 + t)/2 + x/2 (1 - t^2) k (1 + 0.134145 x^2); relu: [x > 0]; swiglu_oai m s
// with m = min(x, 7), s = 1/(1+e^(-1.702 m)): [x <= 7] s (1 + 1.702 m (1 - s)); sigmoid s: s (1 -
// s); relu2 max(x, 0)^2: 2 max(x, 0); swiglu_10 silu(min(x, 10)): [x <= 10] of silu's.
// Multiplications that are added are fused by name, so that forward and backward make the same bits
// of a hidden number.
#pragma once

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

// At which an activation holds its gate, and `up` on both sides; 0: it does not.
constexpr float limit_of(Act act) {
  return act == Act::swiglu_oai ? 7 : act == Act::swiglu_10 ? 10 : 0;
}

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
    constexpr float kLimit = limit_of(act);
    const float m = x > kLimit ? kLimit : x;  // keeps NaN
    const float am = 1.702f * m, s = sigmoid(am);
    return {m * s, x > kLimit ? 0.0f : s * fmaf(am, 1.0f - s, 1.0f)};
  } else if constexpr (act == Act::swiglu_10) {
    constexpr float kLimit = limit_of(act);
    const float m = x > kLimit ? kLimit : x, s = sigmoid(m);  // keeps NaN
    return {m * s, x > kLimit ? 0.0f : s * fmaf(m, 1.0f - s, 1.0f)};
  } else if constexpr (act == Act::sigmoid) {
    const float s = sigmoid(x);
    return {s, s * (1.0f - s)};
  } else if constexpr (act == Act::relu2) {
    const float m = x < 0 ? 0.0f : x;  // keeps NaN
    return {m * m, m + m};
  } else {
    return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // keeps NaN
  }
}

// What an activated gate is multiplied by.
template <Act act>
__device__ inline Curve beside(float up) {
  if constexpr (limit_of(act) > 0) {
    constexpr float kLimit = limit_of(act), kMore = act == Act::swiglu_oai ? 1.0f : 0.0f;
    const bool over = up > kLimit, under = up < -kLimit;
    return {(over ? kLimit : under ? -kLimit : up) + kMore, over || under ? 0.0f : 1.0f};
  } else {
    return {up, 1.0f};
  }
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
    case Act::relu2: return f(Of<Act::relu2>());
    case Act::swiglu_10: return f(Of<Act::swiglu_10>());
  }
}

// activate(gate) beside(up), or activate(up) without a gate.
__device__ inline float hidden_of(Act act, bool gated, float gate, float up) {
  const auto of = [&]<Act one>(Of<one>) {
    return gated ? activate<one>(gate).value * beside<one>(up).value : activate<one>(up).value;
  };
  switch (act) {
    case Act::silu: return of(Of<Act::silu>());
    case Act::gelu: return of(Of<Act::gelu>());
    case Act::gelu_tanh: return of(Of<Act::gelu_tanh>());
    case Act::relu: return of(Of<Act::relu>());
    case Act::swiglu_oai: return of(Of<Act::swiglu_oai>());
    case Act::relu2: return of(Of<Act::relu2>());
    case Act::swiglu_10: return of(Of<Act::swiglu_10>());
    case Act::sigmoid: break;
  }
  return of(Of<Act::sigmoid>());
}

}  // namespace moe::ops::cuda
