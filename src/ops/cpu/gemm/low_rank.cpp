#include "ops/cpu/gemm/low_rank.h"

#include <array>

#include "ops/cpu/gemm/packed.h"

namespace moe::ops {
namespace {

// The groups that a half meets: those of its bank, or all rows as one.
class Groups {
 public:
  Groups(const Param& half, Offsets all, int64_t rows)
      : one_{0, rows}, of_(half.value.rank == 3 ? all : Offsets(one_)) {}
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  operator Offsets() const { return of_; }  // NOLINT: it stands for them

 private:
  std::array<int64_t, 2> one_;
  Offsets of_;
};

// A half as products take it. While it is trained, its packed copies are made anew in scratch at
// each use: every step would anyway, and layouts pad a narrow half to several times its size, so
// that kept copies of a layer's experts would be the larger part of what adapters take.
class Passing {
 public:
  explicit Passing(Param& half) : half_(half) {
    if (half.grad.empty()) return;
    passing_.name = half.name;
    passing_.bind(half.value);
    packed_weight(passing_).budget = std::make_shared<CopyBudget>(0);
  }
  operator Param&() { return half_.grad.empty() ? half_ : passing_; }  // NOLINT: it stands for it

 private:
  Param& half_;
  Param passing_;
};

// to = s rows half^T, half [r,n] one matrix that all rows meet: as narrow as it is, it is not
// packed (narrow_product.h).
void through_narrow(Run& run, Tensor to, GatheredRows rows, Param& half, float s) {
  const ArenaScope scope(run.scratch);
  const std::array<int64_t, 2> all = {0, rows.rows()};
  Tensor sums = run.scratch.alloc(DType::f32, {to.rows(), to.cols()});
  matmul_forward_f32(run, sums, rows, half, all);
  scale(run, to, sums, s);
}

// s x a^T [R,r], in scratch.
Tensor through_a(Run& run, GatheredRows x, const LowRankTerm& term, Offsets offsets, bool wide) {
  Tensor t = run.scratch.alloc(wide ? DType::f32 : x.x.dtype, {x.rows(), term.b->value.cols()});
  if (term.a->value.rank == 2) {
    through_narrow(run, t, x, *term.a, term.scale);
    return t;
  }
  Passing a(*term.a);
  if (wide) matmul_forward_f32(run, t, x, a, offsets);
  else matmul_forward(run, t, x, a, offsets);
  scale(run, t, t, term.scale);
  return t;
}

// s dy b [R,r], in scratch.
Tensor through_b(Run& run, GatheredRows dy, const LowRankTerm& term, Offsets offsets) {
  const Tensor b = term.b->value;
  Tensor t = run.scratch.alloc(dy.x.dtype, {dy.rows(), b.cols()});
  if (b.rank == 2) {
    const ArenaScope scope(run.scratch);
    Tensor turned = run.scratch.alloc(DType::f32, {b.cols(), b.rows()});
    for (int64_t o = 0; o < b.rows(); ++o)
      for (int64_t k = 0; k < b.cols(); ++k) turned.row<float>(k)[o] = b.row<float>(o)[k];
    Param half;
    half.name = term.b->name;
    half.bind(turned);
    through_narrow(run, t, dy, half, term.scale);
    return t;
  }
  Passing passing(*term.b);
  matmul_dx(run, t, dy, passing, offsets);
  scale(run, t, t, term.scale);
  return t;
}

}  // namespace

void term_forward(Run& run, Tensor y, GatheredRows x, const LowRankTerm& term, Offsets offsets,
                  TermTo to) {
  const ArenaScope scope(run.scratch);
  const Tensor t = through_a(run, x, term, offsets, to.wide);
  const Groups groups(*term.b, offsets, x.rows());
  Passing b(*term.b);
  if (to.add) matmul_forward_acc(run, y, t, b, groups);
  else matmul_forward(run, y, t, b, groups);
}

void term_backward(Run& run, Tensor dx, GatheredRows dy, const LowRankTerm& term, Offsets offsets,
                   bool add) {
  const ArenaScope scope(run.scratch);
  const Tensor t = through_b(run, dy, term, offsets);
  const Groups groups(*term.a, offsets, dy.rows());
  Passing a(*term.a);
  if (add) matmul_dx_acc(run, dx, t, a, groups);
  else matmul_dx(run, dx, t, a, groups);
}

void term_dw(Run& run, const LowRankTerm& term, GatheredRows dy, GatheredRows x, Offsets offsets) {
  const ArenaScope scope(run.scratch);
  if (x.rows() == 0) return;
  if (!term.b->grad.empty())
    matmul_dw(run, *term.b, dy, through_a(run, x, term, offsets, dy.x.dtype == DType::f32),
              Groups(*term.b, offsets, x.rows()));
  if (!term.a->grad.empty())
    matmul_dw(run, *term.a, through_b(run, dy, term, offsets), x,
              Groups(*term.a, offsets, x.rows()));
}

}  // namespace moe::ops
