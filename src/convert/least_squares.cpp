#include "convert/least_squares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "convert/cholesky.h"
#include "core/error.h"
#include "ops/ops.h"

namespace moe {
namespace {

std::vector<double> in_double(Tensor x) { return {x.as<float>(), x.as<float>() + x.numel()}; }

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
  std::vector<double> a = in_double(gram);
  for (int64_t i = 0; i < n; ++i)
    a[static_cast<size_t>(i * n + i)] += ridge[static_cast<size_t>(i)];
  const Cholesky factor(run.threads, std::move(a), n);
  if (!factor.succeeded())
    fail(
        "a least-squares system of {} variables is not positive definite; are activations of this "
        "model not finite?",
        n);
  std::vector<double> x = in_double(rhs);
  factor.solve(x, rhs.cols());
  std::transform(x.begin(), x.end(), rhs.as<float>(),
                 [](double value) { return static_cast<float>(value); });
}

struct LinearFit::System {
  Tensor x;                    // [N,D]
  std::vector<double> mean;    // [D] of x
  std::vector<double> taken;   // [D] what was taken off the tokens to give x
  std::vector<float> centred;  // x, where something was
  std::optional<Cholesky> factor;

  bool factorise(Run& run, double ridge) {
    ArenaScope scope(run.scratch);
    const double n = static_cast<double>(x.rows());
    mean = column_means(x);
    const size_t d = mean.size();
    std::vector<double> gram = in_double(inner_products(run, run.scratch, x, x));  // [D,D]
    double trace = 0;
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) gram[i * d + j] -= n * mean[i] * mean[j];
      trace += gram[i * d + i];
    }
    // The second term keeps the system solvable for tokens that are all alike.
    for (size_t i = 0; i < d; ++i)
      gram[i * d + i] += ridge * trace / static_cast<double>(d) + 1e-12 * n;
    factor.emplace(run.threads, std::move(gram), static_cast<int64_t>(d));
    return factor->succeeded();
  }
  void centre() {
    const int64_t d = x.cols();
    taken = mean;
    centred.resize(static_cast<size_t>(x.numel()));
    for (int64_t n = 0; n < x.rows(); ++n)
      for (int64_t i = 0; i < d; ++i) {
        const float value = x.dtype == DType::bf16 ? to_f32(x.row<bf16>(n)[i]) : x.row<float>(n)[i];
        centred[static_cast<size_t>(n * d + i)] =
            static_cast<float>(static_cast<double>(value) - taken[static_cast<size_t>(i)]);
      }
    x = Tensor(centred.data(), DType::f32, {x.rows(), d});
  }
};

LinearFit::LinearFit(Run& run, Tensor x, double ridge) : system_(std::make_unique<System>()) {
  system_->x = x;
  system_->taken.resize(static_cast<size_t>(x.cols()), 0);
  if (system_->factorise(run, ridge)) return;
  // What sets tokens apart that are nearly alike is lost in f32 sums of their own products.
  system_->centre();
  if (!system_->factorise(run, ridge))
    fail("a linear fit of {} variables has no solution; are activations of this model not finite?",
         x.cols());
}

LinearFit::~LinearFit() = default;

void LinearFit::fit(Run& run, Tensor w, Tensor bias, Tensor y) const {
  ArenaScope scope(run.scratch);
  const Tensor x = system_->x;
  const auto d = static_cast<size_t>(x.cols()), k = static_cast<size_t>(y.cols());
  const double n = static_cast<double>(x.rows());
  const std::vector<double>&mx = system_->mean, &taken = system_->taken;
  const std::vector<double> my = column_means(y);
  std::vector<double> map = in_double(inner_products(run, run.scratch, x, y));  // [D,K]
  for (size_t i = 0; i < d; ++i)
    for (size_t e = 0; e < k; ++e) map[i * k + e] -= n * mx[i] * my[e];
  system_->factor->solve(map, y.cols());
  for (size_t e = 0; e < k; ++e) {
    double at_mean = my[e];
    for (size_t i = 0; i < d; ++i) {
      at_mean -= map[i * k + e] * (mx[i] + taken[i]);
      w.as<float>()[e * d + i] = static_cast<float>(map[i * k + e]);
    }
    bias.as<float>()[e] = static_cast<float>(at_mean);
  }
}

}  // namespace moe
