// The scalar twin of activations, and of what an activated gate is multiplied by, templated on the
// number type: dual numbers and jets give their exact derivatives.
#pragma once

#include <cmath>
#include <numbers>

#include "ops/ops.h"
#include "support/dual.h"
#include "support/jet.h"

namespace moe::test::twin {

inline double limit_of(ops::Act act) {
  return act == ops::Act::swiglu_oai ? 7 : act == ops::Act::swiglu_10 ? 10 : 0;
}

template <class T>
T activate(T x, ops::Act act) {
  using std::exp, std::erf, std::tanh;
  const T held = limit_of(act) > 0 && value_of(x) > limit_of(act) ? T(limit_of(act)) : x;
  switch (act) {
    case ops::Act::silu: return x / (T(1.0) + exp(-x));
    case ops::Act::sigmoid: return T(1.0) / (T(1.0) + exp(-x));
    case ops::Act::gelu: return T(0.5) * x * (T(1.0) + erf(x / T(std::numbers::sqrt2)));
    case ops::Act::gelu_tanh:
      return T(0.5) * x *
             (T(1.0) + tanh(T(std::sqrt(2 / std::numbers::pi)) * (x + T(0.044715) * x * x * x)));
    case ops::Act::relu: return value_of(x) > 0 ? x : T(0.0);
    case ops::Act::relu2: return value_of(x) > 0 ? x * x : T(0.0);
    case ops::Act::swiglu_oai: return held / (T(1.0) + exp(T(-1.702) * held));
    case ops::Act::swiglu_10: return held / (T(1.0) + exp(-held));
  }
  return x;
}

template <class T>
T beside(T up, ops::Act act) {
  const double limit = limit_of(act);
  if (limit == 0) return up;
  const T held = value_of(up) > limit ? T(limit) : value_of(up) < -limit ? T(-limit) : up;
  return held + T(act == ops::Act::swiglu_oai ? 1.0 : 0.0);
}

}  // namespace moe::test::twin
