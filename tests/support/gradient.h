// The exact gradient of a scalar function by forward-mode differentiation, one coordinate at a
// time: what a hand-written backward is held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "support/dual.h"

namespace moe::test {

using DualVector = std::vector<Dual<double>>;

inline DualVector constants(const std::vector<double>& x) { return DualVector(x.begin(), x.end()); }

// d loss(x) / dx at x.  loss: DualVector -> Dual<double>
template <class F>
std::vector<double> dual_gradient(const std::vector<double>& x, F&& loss) {
  std::vector<double> gradient(x.size());
  DualVector at = constants(x);
  for (size_t i = 0; i < x.size(); ++i) {
    at[i].d = 1;
    gradient[i] = loss(at).d;
    at[i].d = 0;
  }
  return gradient;
}

// <a, r>: turns a tensor of outputs into a scalar whose gradient with respect to the outputs is r.
template <class T>
T inner(const std::vector<T>& a, const std::vector<double>& r) {
  T sum(0.0);
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * T(r[i]);
  return sum;
}

// Standard normal doubles times `scale`.
inline std::vector<double> drawn(size_t count, uint64_t seed, double scale = 1) {
  std::vector<double> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = scale * normal(RngKey::from_seed(seed), i);
  return x;
}

}  // namespace moe::test
