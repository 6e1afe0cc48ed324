// Newton-Schulz as products that a GPU has: X is a bank of weights to itself. Where a matrix has
// more rows than columns X^T X is the smaller square, so nothing is ever transposed.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cuda/functions.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int64_t kNumbersAtOnce = int64_t{1} << 24;  // of a bank's matrices: bounds the scratch

// Matrices of x [E,O,I], and their sides.
struct Sides {
  explicit Sides(const Tensor& x) : experts(x.shape[0]), rows(x.shape[1]), cols(x.cols()) {}
  int64_t square() const { return std::min(rows, cols); }
  bool is_tall() const { return rows > cols; }

  int64_t experts, rows, cols;
};

// A matrix, or a bank of them, as products take it.
struct Matrices {
  Matrices(const Tensor& numbers, const Sides& s, int64_t rows)
      : rows_of_all(numbers.reshape({s.experts * rows, numbers.cols()})) {
    param.name = "a matrix that is orthogonalised";
    param.value = numbers.reshape({s.experts, rows, numbers.cols()});
    for (int64_t e = 0; e <= s.experts; ++e) offsets.push_back(e * rows);
  }

  Param param;                   // [E,R,C]
  Tensor rows_of_all;            // [E*R,C]
  std::vector<int64_t> offsets;  // [E + 1]
};

// The device's: a run's own may be the CPU's, as in the tests.
Arena& scratch_of(Run& run) { return run.device->scratch(); }

// x in the dtype of the run's products; a copy lies in scratch.
Tensor in_compute(Run& run, const Tensor& x) {
  if (run.compute == x.dtype) return x;
  const Tensor copy = scratch_of(run).alloc(run.compute, {x.rows(), x.cols()});
  cast(run, copy, x);
  return copy;
}

void normalise(Run& run, const Tensor& x, const Sides& s) {
  std::vector<Tensor> all;
  for (int64_t e = 0; e < s.experts; ++e) all.push_back(x.at(e));
  std::vector<double> squares(all.size());
  sums_of_squares(run, squares, std::span<const Tensor>(all));
  for (size_t e = 0; e < all.size(); ++e)
    scale(run, all[e], all[e], static_cast<float>(1 / (std::sqrt(squares[e]) + kLeastNorm)));
}

// gram = X X^T, or X^T X where X is tall.
void multiply_by_itself(Run& run, Matrices& gram, Matrices& x, const Sides& s) {
  const ArenaScope scope(scratch_of(run));
  const Tensor rows = in_compute(run, x.rows_of_all);
  if (s.is_tall()) {
    gram.param.bind_grad(gram.param.value);
    matmul_dw(run, gram.param, rows, rows, x.offsets);
  } else {
    matmul_forward(run, gram.rows_of_all, rows, x.param, x.offsets);
  }
  gram.param.touched();
}

// y = P X, or X P where X is tall; P is symmetric.
void multiply_by_square(Run& run, const Tensor& y, Matrices& p, Matrices& x, const Sides& s) {
  const ArenaScope scope(scratch_of(run));
  if (s.is_tall()) matmul_forward(run, y, in_compute(run, x.rows_of_all), p.param, x.offsets);
  else matmul_dx(run, y, in_compute(run, p.rows_of_all), x.param, p.offsets);
}

void iterate(Run& run, const Tensor& x, std::span<const NewtonSchulz> steps) {
  const ArenaScope scope(scratch_of(run));
  const Sides s(x);
  normalise(run, x, s);
  const int64_t n = s.square();
  const auto squares = [&] { return scratch_of(run).alloc(DType::f32, {s.experts * n, n}); };
  Matrices matrix(x, s, s.rows), gram(squares(), s, n), polynomial(squares(), s, n);
  const Tensor y = scratch_of(run).alloc(DType::f32, {s.experts * s.rows, s.cols});
  for (const NewtonSchulz& of : steps) {
    multiply_by_itself(run, gram, matrix, s);
    {
      const ArenaScope of_rows(scratch_of(run));
      matmul_forward(run, polynomial.rows_of_all, in_compute(run, gram.rows_of_all), gram.param,
                     gram.offsets);
    }
    add_scaled(run, polynomial.rows_of_all, gram.rows_of_all, polynomial.rows_of_all, of.b, of.c);
    polynomial.param.touched();
    multiply_by_square(run, y, polynomial, matrix, s);
    add_scaled(run, matrix.rows_of_all, matrix.rows_of_all, y, of.a, 1);
    matrix.param.touched();
  }
}

}  // namespace

void newton_schulz(Run& run, List<Tensor> all, std::span<const NewtonSchulz> steps) {
  check_newton_schulz(all, steps);
  for (const Tensor& x : all) {
    if (x.numel() == 0) continue;
    const int64_t experts = x.matrices(), rows = x.rows() / experts, cols = x.cols(),
                  one = rows * cols, at_once = std::max<int64_t>(1, kNumbersAtOnce / one);
    for (int64_t e = 0; e < experts; e += at_once)
      iterate(
          run,
          Tensor(x.as<float>() + e * one, DType::f32, {std::min(at_once, experts - e), rows, cols}),
          steps);
  }
}

}  // namespace moe::ops::cuda
