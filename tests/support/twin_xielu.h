// The scalar twin of xIELU, templated on the number type: dual numbers and jets give its exact
// derivatives.
#pragma once

#include <cmath>

#include "support/dual.h"
#include "support/jet.h"

namespace moe::test::twin {

// p x^2 + beta x above 0, n (e^min(x, eps) - 1 - x) + beta x elsewhere; p = log(1 + e^alpha_p), n =
// beta + log(1 + e^alpha_n)
template <class T>
T xielu(T x, T alpha_p, T alpha_n, double beta, double eps) {
  using std::exp, std::log;
  const T p = log(T(1.0) + exp(alpha_p)), n = T(beta) + log(T(1.0) + exp(alpha_n));
  if (value_of(x) > 0) return p * x * x + T(beta) * x;
  const T least = value_of(x) < eps ? x : T(eps);
  return n * (exp(least) - T(1.0) - x) + T(beta) * x;
}

}  // namespace moe::test::twin
