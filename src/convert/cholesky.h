// Systems of equations of a symmetric positive definite matrix, in double: A = L L^T, block by
// block (LAPACK's dpotrf), the products by the engine.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

class Cholesky {
 public:
  // a [n,n]; only its lower half is read. Factorised in its place.
  Cholesky(int threads, std::vector<double> a, int64_t n);
  // False where the matrix is not positive definite, or holds what is not finite.
  bool succeeded() const { return succeeded_; }
  // b [n,k] becomes A^-1 b.
  void solve(std::vector<double>& b, int64_t k) const;
  // b [n,k] becomes L^-1 b.
  void solve_lower(std::vector<double>& b, int64_t k) const;

 private:
  int threads_;
  int64_t n_;
  std::vector<double> l_;         // [n,n]: L in the lower half
  std::vector<double> inverses_;  // of the blocks on the diagonal, times -1
  bool succeeded_ = false;
};

}  // namespace moe
