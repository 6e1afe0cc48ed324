#include "convert/cholesky.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/double_product.h"

namespace moe {
namespace {

using ops::Doubles;

constexpr int64_t kBlock = 96;

Doubles square(double* data, int64_t n) { return {data, n, n, n, 1}; }

// The lower half of a becomes its factor. False where there is none.
bool factorise_block(Doubles a) {
  for (int64_t j = 0; j < a.rows; ++j) {
    double* row = a.data + j * a.row;
    for (int64_t i = 0; i <= j; ++i) {
      const double* above = a.data + i * a.row;
      double sum = row[i];
      for (int64_t k = 0; k < i; ++k) sum -= row[k] * above[k];
      if (i < j) row[i] = sum / above[i];
      else if (!(sum > 0) || !std::isfinite(sum)) return false;
      else row[j] = std::sqrt(sum);
    }
  }
  return true;
}

// to [m,m] becomes -1 times the inverse of the lower half of l.
void invert_block(double* to, Doubles l) {
  const int64_t m = l.rows;
  std::fill_n(to, m * m, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    const double* row = l.data + i * l.row;
    double* out = to + i * m;
    for (int64_t k = 0; k < i; ++k)
      for (int64_t j = 0; j <= k; ++j) out[j] += row[k] * to[k * m + j];
    for (int64_t j = 0; j < i; ++j) out[j] = -out[j] / row[i];
    out[i] = -1 / row[i];
  }
}

// b = -(minus b), minus [m,m].  b [m,k] or, where minus is on its right, [k,m]
void replace(int threads, Doubles b, Doubles minus, bool right = false) {
  std::vector<double> was(static_cast<size_t>(b.rows * b.cols));
  for (int64_t i = 0; i < b.rows; ++i)
    for (int64_t j = 0; j < b.cols; ++j) {
      was[static_cast<size_t>(i * b.cols + j)] = b.data[i * b.row + j * b.col];
      b.data[i * b.row + j * b.col] = 0;
    }
  const Doubles old{was.data(), b.rows, b.cols, b.cols, 1};
  if (right) ops::subtract_product(threads, b, old, minus);
  else ops::subtract_product(threads, b, minus, old);
}

// f(first, size) of the blocks of n, in their order or the other way round.
template <class F>
void each_block(int64_t n, bool back, F&& f) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = (back ? blocks - 1 - i : i) * kBlock;
    f(first, std::min(kBlock, n - first));
  }
}

}  // namespace

Cholesky::Cholesky(int threads, std::vector<double> a, int64_t n)
    : threads_(threads),
      n_(n),
      l_(std::move(a)),
      inverses_(static_cast<size_t>((n + kBlock - 1) / kBlock * kBlock * kBlock)),
      succeeded_(true) {
  const Doubles l = square(l_.data(), n);
  each_block(n, false, [&](int64_t at, int64_t m) {
    if (!succeeded_) return;
    const int64_t behind = at + m, rest = n - behind;
    const Doubles own = l.block(at, at, m, m), below = l.block(behind, at, rest, m);
    succeeded_ = factorise_block(own);
    if (!succeeded_) return;
    double* inverse = inverses_.data() + at * kBlock;
    invert_block(inverse, own);
    if (rest == 0) return;
    replace(threads, below, square(inverse, m).transposed(), true);
    ops::subtract_product(threads, l.block(behind, behind, rest, rest), below, below.transposed(),
                          ops::Written::lower);
  });
}

void Cholesky::solve_lower(std::vector<double>& b, int64_t k) const {
  const Doubles l = square(const_cast<double*>(l_.data()), n_), x{b.data(), n_, k, k, 1};
  each_block(n_, false, [&](int64_t at, int64_t m) {
    const int64_t behind = at + m;
    const Doubles inverse = square(const_cast<double*>(inverses_.data()) + at * kBlock, m),
                  own = x.block(at, 0, m, k);
    replace(threads_, own, inverse);
    ops::subtract_product(threads_, x.block(behind, 0, n_ - behind, k),
                          l.block(behind, at, n_ - behind, m), own);
  });
}

void Cholesky::solve(std::vector<double>& b, int64_t k) const {
  solve_lower(b, k);
  const Doubles l = square(const_cast<double*>(l_.data()), n_), x{b.data(), n_, k, k, 1};
  each_block(n_, true, [&](int64_t at, int64_t m) {
    const Doubles inverse = square(const_cast<double*>(inverses_.data()) + at * kBlock, m),
                  own = x.block(at, 0, m, k);
    replace(threads_, own, inverse.transposed());
    ops::subtract_product(threads_, x.block(0, 0, at, k), l.block(at, 0, m, at).transposed(), own);
  });
}

}  // namespace moe
