#include "convert/input_products.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "convert/cholesky.h"
#include "convert/input_squares.h"
#include "convert/matrix_source.h"
#include "core/error.h"
#include "model/parameters.h"
#include "ops/ops.h"

namespace moe {
namespace {

constexpr double kDamping = 0.01, kFewRows = 0.1;

// What attention makes of a token counts as often as others look at it, and all look at the first
// one, of which these sums know nothing: queries, keys and values of other tokens would be made
// better and that one's worse. So of attention only the projection back.
bool is_compensated(const Param& w) {
  return is_weighed(w) && (w.part != Part::attention || w.kind == ParamKind::o);
}

bool has_products(const Param& param) {
  return param.is_matrix() && param.value.rank >= 2 && is_compensated(param);
}

// Whether the matrices of a bank have products of their own.
bool apart(const Param& w) { return w.value.rank == 3 && w.kind == ParamKind::down; }

}  // namespace

void InputProducts::observe(Run& run, std::span<const Param* const> weights,
                            const ops::GatheredRows& x, std::span<const int64_t> offsets) {
  then_.observe(run, weights, x, offsets);
  if (!is_compensated(*weights[0])) return;
  const int64_t cols = x.cols();
  const std::vector<int64_t> all = {0, offsets.back()};
  const std::span<const int64_t> bounds = apart(*weights[0]) ? offsets : std::span(all);
  std::shared_ptr<Sums>& sums = sums_[weights[0]];
  if (sums == nullptr) {
    sums = std::make_shared<Sums>();
    sums->rows.resize(bounds.size() - 1);
    sums->products = memory_.alloc_zeroed(DType::f32, {std::ssize(bounds) - 1, cols, cols});
  }
  for (const Param* w : weights) sums_[w] = sums;
  for (size_t m = 0; m + 1 < bounds.size(); ++m) sums->rows[m] += bounds[m + 1] - bounds[m];
  Param to;
  to.name = "products of inputs";
  to.value = to.grad = sums->products;
  ops::matmul_dw(run, to, x, x, bounds);
}

Tensor InputProducts::of(const FileTensor& tensor, int64_t m, int threads) {
  const MatrixSource source = source_of(tensor, m);
  const auto found = source.piece == nullptr ? sums_.end() : sums_.find(source.piece->param);
  if (found == sums_.end()) return {};
  const Sums& sums = *found->second;
  const int64_t n = sums.products.shape[2],
                matrix = std::ssize(sums.rows) == 1 ? 0 : static_cast<int64_t>(source.matrix);
  const int64_t rows = sums.rows[static_cast<size_t>(matrix)];
  if (rows == 0) return {};
  // Which column of the model's each column of the file is.
  std::vector<float> places(static_cast<size_t>(n));
  std::iota(places.begin(), places.end(), 0.0f);
  columns_to_file(places, *source.piece);
  Made wanted{&sums, matrix, {places.begin(), places.end()}};
  shares_.resize(static_cast<size_t>(n * n));
  const Tensor shares(shares_.data(), DType::f32, {n, n});
  if (wanted == made_) return shares;
  error_shares(shares, sums.products.at(matrix), rows, wanted.order, threads);
  made_ = std::move(wanted);
  return shares;
}

// H = R R^T with R upper triangular is the Cholesky factorisation of H with rows and columns turned
// about; then H^-1 = U^T U with U = R^-1, and shares[j,k] = U[j,k] / U[j,j].
void error_shares(Tensor shares, Tensor products, int64_t rows, std::span<const int64_t> order,
                  int threads) {
  const int64_t n = products.rows();
  std::vector<double> turned(static_cast<size_t>(n * n)), inverse(turned.size());
  const auto at = [n](int64_t i, int64_t k) { return static_cast<size_t>(i * n + k); };
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* from = products.row<float>(order[static_cast<size_t>(i)]);
    for (int64_t k = 0; k < n; ++k)
      turned[at(n - 1 - i, n - 1 - k)] = static_cast<double>(from[order[static_cast<size_t>(k)]]);
    mean += turned[at(n - 1 - i, n - 1 - i)] / static_cast<double>(n);
    inverse[at(i, i)] = 1;
  }
  std::fill_n(shares.as<float>(), n * n, 0.0f);
  if (!(mean > 0)) return;  // nothing but zeros was seen
  const double few = static_cast<double>(n) / static_cast<double>(rows);
  for (int64_t i = 0; i < n; ++i) turned[at(i, i)] += (kDamping + kFewRows * few) * mean;
  const Cholesky factor(threads, std::move(turned), n);
  if (!factor.succeeded())
    fail(
        "the inputs of a matrix of {} columns have no inverse; are activations of this model not "
        "finite?",
        n);
  factor.solve_lower(inverse, n);
  for (int64_t j = 0; j < n; ++j) {
    const double own = inverse[at(n - 1 - j, n - 1 - j)];
    for (int64_t k = j + 1; k < n; ++k)
      shares.row<float>(j)[k] = static_cast<float>(inverse[at(n - 1 - j, n - 1 - k)] / own);
  }
}

int64_t input_products_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const Param* param : model.params())
    if (has_products(*param)) {
      const int64_t cols = param->value.cols();
      bytes += (apart(*param) ? param->value.shape[0] : 1) * cols * cols * 4;
    }
  return bytes;
}

int64_t error_shares_bytes(const Model& model) {
  int64_t cols = 0;
  for (const Param* param : model.params())
    if (has_products(*param)) cols = std::max(cols, param->value.cols());
  // the shares, and in double the products and the inverse of their factor
  return cols * cols * (4 + 8 + 8);
}

}  // namespace moe
