// The products of Newton-Schulz are those of the engine: X is a bank of weights to itself. Where a
// matrix has more rows than columns X^T X is the smaller square, so nothing is ever transposed.
#include "train/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/parameters.h"
#include "ops/memory.h"
#include "ops/ops.h"

namespace moe {
namespace {

constexpr int kNewtonSchulzSteps = 5;
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr double kLeastNorm = 1e-7;

// Matrices of x [E,O,I] or [O,I], and their sides.
struct Sides {
  explicit Sides(const Tensor& x)
      : experts(x.rank == 3 ? x.shape[0] : 1), rows(x.shape[x.rank - 2]), cols(x.cols()) {}
  int64_t square() const { return std::min(rows, cols); }
  bool is_tall() const { return rows > cols; }

  int64_t experts, rows, cols;
};

// [E + 1]
std::vector<int64_t> offsets_of(int64_t experts, int64_t rows) {
  std::vector<int64_t> offsets;
  for (int64_t e = 0; e <= experts; ++e) offsets.push_back(e * rows);
  return offsets;
}

// x in the dtype of the run's products; a copy lies in scratch.
Tensor in_compute(Run& run, const Tensor& x) {
  if (run.compute == x.dtype) return x;
  const Tensor copy = run.scratch.alloc(run.compute, {x.rows(), x.cols()});
  ops::cast(run, copy, x);
  return copy;
}

void normalise(Run& run, const Tensor& x, const Sides& s) {
  for (int64_t e = 0; e < s.experts; ++e) {
    const Tensor matrix = x.rank == 3 ? x.at(e) : x;
    const double norm = std::sqrt(ops::sum_squares(run, matrix));
    ops::scale(run, matrix, matrix, static_cast<float>(1 / (norm + kLeastNorm)));
  }
}

// A matrix, or a bank of them, as products take it.
struct Operand {
  Operand(const Tensor& numbers, const Sides& s, int64_t rows)
      : rows_of_all(numbers.reshape({s.experts * rows, numbers.cols()})),
        offsets(offsets_of(s.experts, rows)) {
    param.name = "a matrix that is orthogonalised";
    param.value = numbers.reshape({s.experts, rows, numbers.cols()});
  }

  Param param;                   // [E,R,C]
  Tensor rows_of_all;            // [E*R,C]
  std::vector<int64_t> offsets;  // [E + 1]
};

// gram = X X^T, or X^T X where X is tall.
void multiply_by_itself(Run& run, Operand& gram, Operand& x, const Sides& s) {
  const ArenaScope scope(run.scratch);
  const Tensor rows = in_compute(run, x.rows_of_all);
  if (s.is_tall()) {
    gram.param.bind_grad(gram.param.value);
    ops::matmul_dw(run, gram.param, rows, rows, x.offsets);
  } else {
    ops::matmul_forward(run, gram.rows_of_all, rows, x.param, x.offsets);
  }
  gram.param.touched();
}

// y = P X, or X P where X is tall; P is symmetric.
void multiply_by_square(Run& run, const Tensor& y, Operand& p, Operand& x, const Sides& s) {
  const ArenaScope scope(run.scratch);
  if (s.is_tall()) ops::matmul_forward(run, y, in_compute(run, x.rows_of_all), p.param, x.offsets);
  else ops::matmul_dx(run, y, in_compute(run, p.rows_of_all), x.param, x.offsets);
}

}  // namespace

bool takes_muon(const Param& param, const TrainOptions& options) {
  return options.optimizer == OptimizerKind::muon && tunes_whole(options.tune, param.part) &&
         is_hidden_matrix(param);
}

void orthogonalise(Run& run, Tensor x) {
  const ArenaScope scope(run.scratch);
  const Sides s(x);
  normalise(run, x, s);
  const int64_t n = s.square();
  const auto squares = [&] { return run.scratch.alloc(DType::f32, {s.experts * n, n}); };
  Operand matrix(x, s, s.rows), gram(squares(), s, n), polynomial(squares(), s, n);
  const Tensor y = run.scratch.alloc(DType::f32, {s.experts * s.rows, s.cols});
  for (int i = 0; i < kNewtonSchulzSteps; ++i) {
    multiply_by_itself(run, gram, matrix, s);
    {
      const ArenaScope of_rows(run.scratch);
      ops::matmul_forward(run, polynomial.rows_of_all, in_compute(run, gram.rows_of_all),
                          gram.param, gram.offsets);
    }
    ops::add_scaled(run, polynomial.rows_of_all, gram.rows_of_all, polynomial.rows_of_all, kB, kC);
    polynomial.param.touched();
    multiply_by_square(run, y, polynomial, matrix, s);
    ops::add_scaled(run, matrix.rows_of_all, matrix.rows_of_all, y, kA, 1);
    matrix.param.touched();
  }
}

float muon_scale(int64_t rows, int64_t cols) {
  return static_cast<float>(0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))));
}

int64_t muon_matrices_at_once(int64_t rows, int64_t cols) {
  constexpr int64_t kNumbers = int64_t{1} << 20;
  return std::max<int64_t>(1, kNumbers / (rows * cols));
}

MuonBytes muon_bytes(const Param& param, DType compute) {
  const Sides s(param.value);
  const int64_t n = s.square(), f32 = bytes_of(DType::f32, 1),
                cast = compute == DType::f32 ? 0 : bytes_of(compute, 1),
                at_once = std::min(s.experts, muon_matrices_at_once(s.rows, s.cols));
  Param square;
  square.value = Tensor(nullptr, DType::f32, {n, n});
  const int64_t of_square = ops::forward_copy_bytes(square, compute).all,
                of_matrix = ops::forward_copy_bytes(param, compute).expert;
  return {at_once * (2 * f32 * n * n + (f32 + cast) * s.rows * s.cols),
          at_once * (s.is_tall() ? 2 * of_square : of_square + 2 * of_matrix)};
}

}  // namespace moe
