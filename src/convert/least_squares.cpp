#include "convert/least_squares.h"

#include <Eigen/Cholesky>
#include <array>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"

namespace moe {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// [cols] mean of each column
std::vector<double> column_means(Tensor x) {
  std::vector<double> mean(static_cast<size_t>(x.cols()), 0);
  for (int64_t n = 0; n < x.rows(); ++n)
    for (int64_t c = 0; c < x.cols(); ++c)
      mean[static_cast<size_t>(c)] += static_cast<double>(
          x.dtype == DType::bf16 ? to_f32(x.row<bf16>(n)[c]) : x.row<float>(n)[c]);
  for (double& m : mean) m /= static_cast<double>(x.rows());
  return mean;
}

}  // namespace

Tensor inner_products(Run& run, Arena& memory, Tensor a, Tensor b) {
  const std::array<int64_t, 2> all = {0, a.rows()};
  Param sums;
  sums.name = "inner products";
  sums.value = sums.grad = memory.alloc_zeroed(DType::f32, {a.cols(), b.cols()});
  ops::matmul_dw(run, sums, a, b, all);
  return sums.grad;
}

void solve_ridge(Run& run, Tensor rhs, Tensor gram, std::span<const double> ridge) {
  const int64_t n = gram.rows();
  Eigen::setNbThreads(run.threads);
  Matrix a = View(gram.as<float>(), n, n).cast<double>();
  for (int64_t i = 0; i < n; ++i) a(i, i) += ridge[static_cast<size_t>(i)];
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(a);  // in place
  if (factor.info() != Eigen::Success)
    fail(
        "a least-squares system of {} variables is not positive definite; are activations of this "
        "model not finite?",
        n);
  View x(rhs.as<float>(), n, rhs.cols());
  Matrix b = x.cast<double>();
  factor.solveInPlace(b);
  x = b.cast<float>();
}

struct LinearFit::System {
  Tensor x;                  // [N,D]
  std::vector<double> mean;  // [D] of x
  Eigen::LLT<Matrix> factor;
};

LinearFit::LinearFit(Run& run, Tensor x, double ridge) : system_(std::make_unique<System>()) {
  ArenaScope scope(run.scratch);
  const int64_t d = x.cols();
  const double n = static_cast<double>(x.rows());
  system_->x = x;
  system_->mean = column_means(x);
  const Tensor sums = inner_products(run, run.scratch, x, x);  // [D,D]
  Matrix gram = View(sums.as<float>(), d, d).cast<double>();
  const Eigen::Map<const Eigen::VectorXd> mean(system_->mean.data(), d);
  gram -= n * mean * mean.transpose();
  // The second term keeps the system solvable for tokens that are all alike.
  gram.diagonal().array() += ridge * gram.diagonal().mean() + 1e-12 * n;
  Eigen::setNbThreads(run.threads);
  system_->factor.compute(gram);
  if (system_->factor.info() != Eigen::Success)
    fail("a linear fit of {} variables has no solution; are activations of this model not finite?",
         d);
}

LinearFit::~LinearFit() = default;

void LinearFit::fit(Run& run, Tensor w, Tensor bias, Tensor y) const {
  ArenaScope scope(run.scratch);
  const Tensor x = system_->x;
  const int64_t d = x.cols(), k = y.cols();
  const double n = static_cast<double>(x.rows());
  const std::vector<double> means = column_means(y);
  const Eigen::Map<const Eigen::VectorXd> mx(system_->mean.data(), d), my(means.data(), k);
  const Tensor cross = inner_products(run, run.scratch, x, y);  // [D,K]
  Matrix map = View(cross.as<float>(), d, k).cast<double>();
  map -= n * mx * my.transpose();
  Eigen::setNbThreads(run.threads);
  system_->factor.solveInPlace(map);
  View(w.as<float>(), k, d) = map.transpose().cast<float>();
  const Eigen::VectorXd at_mean = my - map.transpose() * mx;
  for (int64_t e = 0; e < k; ++e) bias.as<float>()[e] = static_cast<float>(at_mean(e));
}

}  // namespace moe
