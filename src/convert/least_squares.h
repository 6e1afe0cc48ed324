// Least squares by normal equations: the sums over tokens by the engine's products, the systems by
// a Cholesky factorisation in double (cholesky.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tensor/run.h"

namespace moe {

// a^T b, summed in f32.  a [N,K], b [N,P], of one dtype or of two; the result [K,P] f32 lies in
// `memory`
Tensor inner_products(Run&, Arena& memory, Tensor a, Tensor b);

// rhs becomes x of (gram + diag(ridge)) x = rhs. Fails when that is not positive definite: a ridge
// above 0 on every variable makes it so. rhs [n,k] f32; gram [n,n] f32, symmetric; ridge [n]
void solve_ridge(Run&, Tensor rhs, Tensor gram, std::span<const double> ridge);

// Linear maps with a bias from one set of inputs, whose system is factorised once. The map
// minimises
//   sum_n ||w x_n + bias - y_n||^2 + ridge * mean(diag C) * N * ||w||^2,
//     C the covariance of x; the bias costs nothing.
class LinearFit {
 public:
  LinearFit(Run&, Tensor x, double ridge);  // x [N,D] A; viewed until the last fit
  ~LinearFit();
  LinearFit(const LinearFit&) = delete;
  LinearFit& operator=(const LinearFit&) = delete;
  // w [K,D], bias [K] f32; y [N,K] f32 or bf16
  void fit(Run&, Tensor w, Tensor bias, Tensor y) const;

 private:
  struct System;
  std::unique_ptr<System> system_;
};

}  // namespace moe
