#include "ops/cpu/gemm/low_rank.h"

#include <array>

#include "ops/cpu/gemm/packed.h"

namespace moe::ops {
namespace {

// Of a term that only some matrices of its bank have a pair in: the rows that meet one, packed.
class Picked {
 public:
  Picked(const LowRankTerm& term, Offsets offsets) : all_(term.experts.empty()), of_(offsets) {
    if (all_) return;
    packed_.push_back(0);
    for (const int64_t e : term.experts) {
      const auto at = static_cast<size_t>(e);
      for (int64_t r = offsets[at]; r < offsets[at + 1]; ++r)
        places_.push_back(static_cast<int32_t>(r));
      packed_.push_back(static_cast<int64_t>(places_.size()));
    }
    of_ = packed_;
  }
  Picked(const Picked&) = delete;
  Picked& operator=(const Picked&) = delete;
  bool all() const { return all_; }
  bool none() const { return of_.back() == 0; }
  Offsets offsets() const { return of_; }                         // [P+1] of the pairs
  const std::vector<int32_t>& places() const { return places_; }  // which row each of them is
  // Their rows; `list` keeps where they lie.
  GatheredRows of(GatheredRows rows, std::vector<int32_t>& list) const {
    if (all_) return rows;
    list = places_;
    for (int32_t& r : list) r = rows.listed() ? rows.row[static_cast<size_t>(r)] : r;
    return {rows.x, list};
  }

 private:
  bool all_;
  std::vector<int64_t> packed_;
  std::vector<int32_t> places_;
  Offsets of_;
};

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

// out [R,n] = or += what product(part [p,n] f32, rows [begin, begin + p) of those picked, their
// offsets) makes of them, a piece at a time, so that scratch stays small. Rows that are not picked
// get nothing.
template <class Product>
void add_picked(Run& run, Tensor out, const Picked& picked, bool add, Product&& product) {
  constexpr int64_t kPieceRows = 1024, kGrain = 32;
  if (!add) zero(run, out);
  const Offsets all = picked.offsets();
  for (int64_t begin = 0; begin < all.back(); begin += kPieceRows) {
    const ArenaScope scope(run.scratch);
    const int64_t end = std::min(begin + kPieceRows, all.back());
    std::vector<int64_t> offsets(all.begin(), all.end());
    for (int64_t& offset : offsets) offset = std::clamp(offset, begin, end) - begin;
    const Tensor part = run.scratch.alloc(DType::f32, {end - begin, out.cols()});
    product(part, begin, end, Offsets(offsets));
    parallel_for(run.threads, end - begin, kGrain, [&](int64_t from, int64_t to, int) {
      for (int64_t r = from; r < to; ++r) {
        const int64_t place = picked.places()[static_cast<size_t>(begin + r)];
        convert_matrix(static_cast<char*>(out.data) + place * out.row_bytes, out.dtype, out.cols(),
                       {part.row<float>(r), DType::f32, out.cols()}, 1, out.cols(), true);
      }
    });
  }
}

}  // namespace

void term_forward(Run& run, Tensor y, GatheredRows x, const LowRankTerm& term, Offsets offsets,
                  TermTo to) {
  const ArenaScope scope(run.scratch);
  const Picked picked(term, offsets);
  if (picked.none()) return to.add ? void() : zero(run, y);
  std::vector<int32_t> list;
  const GatheredRows rows = picked.of(x, list);
  const Tensor t = through_a(run, rows, term, picked.offsets(), to.wide);
  Passing b(*term.b);
  if (!picked.all()) {
    add_picked(run, y, picked, to.add,
               [&](Tensor part, int64_t begin, int64_t end, Offsets of_part) {
                 matmul_forward(run, part, t.slice_rows(begin, end), b,
                                Groups(*term.b, of_part, end - begin));
               });
    return;
  }
  const Groups groups(*term.b, offsets, x.rows());
  if (to.add) matmul_forward_acc(run, y, t, b, groups);
  else matmul_forward(run, y, t, b, groups);
}

void term_backward(Run& run, Tensor dx, GatheredRows dy, const LowRankTerm& term, Offsets offsets,
                   bool add) {
  const ArenaScope scope(run.scratch);
  const Picked picked(term, offsets);
  if (picked.none()) return add ? void() : zero(run, dx);
  std::vector<int32_t> list;
  const GatheredRows rows = picked.of(dy, list);
  const Tensor t = through_b(run, rows, term, picked.offsets());
  Passing a(*term.a);
  if (!picked.all()) {
    add_picked(run, dx, picked, add, [&](Tensor part, int64_t begin, int64_t end, Offsets of_part) {
      matmul_dx(run, part, t.slice_rows(begin, end), a, Groups(*term.a, of_part, end - begin));
    });
    return;
  }
  const Groups groups(*term.a, offsets, dy.rows());
  if (add) matmul_dx_acc(run, dx, t, a, groups);
  else matmul_dx(run, dx, t, a, groups);
}

void term_dw(Run& run, const LowRankTerm& term, GatheredRows dy, GatheredRows x, Offsets offsets) {
  const ArenaScope scope(run.scratch);
  const Picked picked(term, offsets);
  if (picked.none()) return;
  std::vector<int32_t> list_x, list_dy;
  x = picked.of(x, list_x);
  dy = picked.of(dy, list_dy);
  offsets = picked.offsets();
  if (!term.b->grad.empty())
    matmul_dw(run, *term.b, dy, through_a(run, x, term, offsets, dy.x.dtype == DType::f32),
              Groups(*term.b, offsets, x.rows()));
  if (!term.a->grad.empty())
    matmul_dw(run, *term.a, through_b(run, dy, term, offsets), x,
              Groups(*term.a, offsets, x.rows()));
}

}  // namespace moe::ops
