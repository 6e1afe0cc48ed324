// The scalar twin of gates: a number of a gate weighs as many of x as there are for each, by its
// sigmoid or by log(1 + e^z).
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "support/twin_router.h"

namespace moe::test::twin {

// x [N,G*W], z [N,G]
template <class T>
std::vector<T> head_gates(std::vector<T> x, const std::vector<T>& z, bool softplus) {
  using std::exp, std::log;
  const size_t width = x.size() / z.size();
  for (size_t i = 0; i < x.size(); ++i) {
    const T& at = z[i / width];
    x[i] = x[i] * (softplus ? log(T(1.0) + exp(at)) : sigmoid(at));
  }
  return x;
}

}  // namespace moe::test::twin
