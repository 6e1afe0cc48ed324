// Which product an op is: with one matrix by cuBLAS, with a bank by CUTLASS, and by tiles of our
// own where those have no kernel.
#include <algorithm>
#include <vector>

#include "ops/cuda/cublas/dense_product.h"
#include "ops/cuda/gemm/few_rows.h"
#include "ops/cuda/gemm/grouped_sm90.h"
#include "ops/cuda/gemm/split_product.h"
#include "ops/cuda/gemm/tile_product.h"
#include "ops/cuda/gemm/weights.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

using Offsets = std::span<const int64_t>;

// A bank of one has all rows, whatever the offsets are: they may lie where the CPU cannot look.
Groups groups_of(Run& run, Offsets offsets) {
  const auto count = static_cast<int64_t>(offsets.size()) - 1;
  return count == 1 ? Groups{} : Groups{on_device(run, offsets), count};
}

// Rows one after another in the dtype of the product.
Tensor gathered(Run& run, Scratch& scratch, const GatheredRows& x, DType dtype) {
  Tensor rows = x.x;
  if (x.listed()) {
    rows = scratch.alloc(x.x.dtype, {x.rows(), x.cols()});
    gather_rows(run, rows, x.x, x.row);
  }
  if (rows.dtype == dtype) return rows;
  const Tensor other = scratch.alloc(dtype, {rows.rows(), rows.cols()});
  cast(run, other, rows);
  return other;
}

int64_t distance(const Tensor& t) { return t.row_bytes / static_cast<int64_t>(size_of(t.dtype)); }

bool aligned(const Tensor& t) {
  return t.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

// Whether CUTLASS's kernels take the product.
bool fits_grouped(const Groups& groups, const Tensor& c, const Tensor& a, const Tensor& b,
                  int64_t out, int64_t in) {
  return groups.offsets != nullptr && a.dtype == DType::bf16 && b.dtype == DType::bf16 &&
         aligned(a) && aligned(b) && aligned(c) && grouped_fits(out, in);
}

// c = or += the product.  forward: a [R,I], b [E,O,I]; dx: a [R,O], b [E,O,I]; dw: a [R,O], b [R,I]
void multiply(Run& run, Form form, Tensor c, Tensor a, Tensor b, const Groups& groups, bool add) {
  const int64_t out = form == Form::dw ? a.cols() : b.rows() / groups.count, in = b.cols();
  if (a.rows() == 0 && form != Form::dw) return;
  if (groups.offsets == nullptr) {
    Tensor matrix = c;
    if (form == Form::dw) matrix = Tensor(c.data, c.dtype, {out, in});
    if (dense_product(run, form, matrix, a, b, add)) return;
  } else if (fits_grouped(groups, c, a, b, out, in)) {
    const Grouped shape{groups.count, a.rows(), out, in, groups.offsets};
    Scratch scratch(run);
    void* room = scratch.bytes(grouped_workspace(shape));
    const bool wide = c.dtype == DType::f32;
    if (form == Form::dw)
      return grouped_dw(stream_of(run), shape, c.as<float>(), a.data, distance(a), b.data,
                        distance(b), add, room);
    const auto product = form == Form::forward ? grouped_forward : grouped_dx;
    return product(stream_of(run), shape, c.data, wide, distance(c), a.data, distance(a), b.data,
                   add, room);
  }
  tile_product(run, form, c, a, b, groups, add);
}

// A product in f32 by parts of bf16, of operands in the dtypes that they are given in; false where
// it is not worth it.
bool multiply_split(Run& run, Form form, Tensor c, const GatheredRows& a, const GatheredRows& b,
                    const Groups& groups, bool add) {
  if (groups.offsets != nullptr || !split_fits(form, c, a.x, b.x, a.rows())) return false;
  Scratch scratch(run);
  split_product(run, form, c, gathered(run, scratch, a, a.x.dtype),
                gathered(run, scratch, b, b.x.dtype), add);
  return true;
}

// ---- terms of low rank --------------------------------------------------------------------------

// Whether only some of a bank's matrices have a pair of it.
bool is_partial(const LowRankTerm& term) { return !term.experts.empty(); }

// A half with a matrix for each expert: zeros for those without a pair.  [E,r,I] or [E,O,r]
Tensor half_of_all(Run& run, Scratch& scratch, const LowRankTerm& term, const Param& half,
                   int64_t experts, DType dtype) {
  const Tensor pairs = weights_as(run, half, dtype);
  if (!is_partial(term)) return pairs;
  const Tensor one = pairs.matrix(0), all = scratch.alloc(dtype, {experts, one.rows(), one.cols()});
  zero(run, all);
  for (size_t p = 0; p < term.experts.size(); ++p) {
    const Tensor pair = pairs.matrix(static_cast<int64_t>(p));
    run.device->copy(all.at(term.experts[p]).data, pair.data, static_cast<size_t>(pair.bytes()));
  }
  return all;
}

// What of a bank's offsets one half of a term sees: all rows are one group where all share a
// matrix.
Offsets offsets_of(const LowRankTerm& term, const Param& half, Offsets offsets,
                   const Offsets& one) {
  return half.value.rank == 3 || is_partial(term) ? offsets : one;
}

// y += s (x a^T) b^T;  dx += s (dy b) a
void add_term(Run& run, Form form, Tensor c, const GatheredRows& rows, const Param& w,
              Offsets offsets, DType dtype) {
  if (w.term == nullptr) return;
  const LowRankTerm& term = *w.term;
  const auto experts = static_cast<int64_t>(offsets.size()) - 1;
  const bool forward = form == Form::forward;
  Param &first = forward ? *term.a : *term.b, &second = forward ? *term.b : *term.a;
  Scratch scratch(run);
  const int64_t all[2] = {0, rows.rows()};
  const Tensor a = gathered(run, scratch, rows, dtype);
  const int64_t rank = forward ? first.value.rows() / first.value.matrices() : first.value.cols();
  const Tensor t = scratch.alloc(dtype, {rows.rows(), rank});
  multiply(run, form, t, a, half_of_all(run, scratch, term, first, experts, dtype),
           groups_of(run, offsets_of(term, first, offsets, all)), false);
  scale(run, t, t, term.scale);
  multiply(run, form, c, t, half_of_all(run, scratch, term, second, experts, dtype),
           groups_of(run, offsets_of(term, second, offsets, all)), true);
}

// ---- forward and back ---------------------------------------------------------------------------

void check_product(const Run& run, Form form, const Tensor& c, const GatheredRows& rows,
                   const Param& w, Offsets offsets) {
  const Tensor& m = w.value;
  const int64_t banks = m.matrices(), out = m.rank < 2 ? 0 : m.rows() / banks, in = m.cols();
  const bool forward = form == Form::forward;
  check_device_type(forward ? "matmul_forward" : "matmul_dx", m);
  need(m.rank >= 2 && static_cast<int64_t>(offsets.size()) == banks + 1 && is_float(rows.x) &&
           is_float(c) && c.rows() == rows.rows() && rows.cols() == (forward ? in : out) &&
           c.cols() == (forward ? out : in),
       forward ? "matmul_forward" : "matmul_dx",
       "rows [R,I] and [R,O], f32 or bf16, w [E,O,I], and offsets of its groups",
       {{"rows", rows.x}, {"product", c}, {"w", m}});
  // Those of one bank are not read, and those on the device were made there.
  if (banks == 1 || run.device->owns(offsets.data())) return;
  need(offsets.front() == 0 && offsets.back() == rows.rows() &&
           std::is_sorted(offsets.begin(), offsets.end()),
       forward ? "matmul_forward" : "matmul_dx", "offsets that rise from 0 to the number of rows",
       {{"rows", rows.x}, {"w", m}});
}

// Few rows meet all matrices in one launch, where all are of one dtype that has a kernel; false:
// nothing was done. `hidden`: only where no matrix has a term.
bool multiply_few(Run& run, std::span<const Operand> operands, const GatheredRows& rows,
                  Offsets offsets, DType dtype, bool add, const std::optional<FewHidden>& hidden) {
  const bool dense = offsets.size() == 2;
  if (std::ssize(operands) > kMostFew || rows.rows() > (dense ? kFewDense : kFewGrouped))
    return false;
  std::vector<FewMatrix> matrices;
  bool settled = true;
  for (const Operand& o : operands) {
    const Tensor& w = o.w.value;
    const bool as_it_is = w.dtype == dtype ||
                          (is_quantised(w.dtype) && !run.widen && few_rows_read(w.dtype, w.cols()));
    settled = settled && (as_it_is || !kept_copy(o.w).empty());
    matrices.push_back({as_it_is ? w : weights_as(run, o.w, dtype), o.y});
  }
  if (!few_rows_product(run, {matrices, rows, groups_of(run, offsets), add, hidden, settled}))
    return false;
  for (const Operand& o : operands) add_term(run, Form::forward, o.y, rows, o.w, offsets, dtype);
  return true;
}

void product(Run& run, Form form, Tensor c, const GatheredRows& rows, const Param& w,
             Offsets offsets, DType dtype, bool add) {
  check_product(run, form, c, rows, w, offsets);
  Scratch scratch(run);
  if (form == Form::forward) {
    const Operand one{const_cast<Param&>(w), c};
    if (multiply_few(run, std::span(&one, 1), rows, offsets, dtype, add, {})) return;
  }
  const Tensor weights = weights_as(run, w, dtype);
  const Groups groups = groups_of(run, offsets);
  if (!multiply_split(run, form, c, rows, weights, groups, add))
    multiply(run, form, c, gathered(run, scratch, rows, dtype), weights, groups, add);
  add_term(run, form, c, rows, w, offsets, dtype);
}

void add_grad(Run& run, Param& w, const GatheredRows& dy, const GatheredRows& x, Offsets offsets) {
  if (w.grad.empty()) return;
  const DType dtype = dy.x.dtype;
  Scratch scratch(run);
  const Groups groups = groups_of(run, offsets);
  if (!multiply_split(run, Form::dw, w.grad, dy, x, groups, !w.grad_is_zero))
    multiply(run, Form::dw, w.grad, gathered(run, scratch, dy, dtype),
             gathered(run, scratch, x, dtype), groups, !w.grad_is_zero);
  w.grad_is_zero = false;
}

// The gradient of a half: where only some experts have a pair, those of all are made first.
void add_half_grad(Run& run, const LowRankTerm& term, Param& half, const GatheredRows& dy,
                   const GatheredRows& x, Offsets offsets) {
  if (!is_partial(term)) return add_grad(run, half, dy, x, offsets);
  if (half.grad.empty()) return;
  Scratch scratch(run);
  const Tensor one = half.grad.matrix(0);
  Param all;
  all.grad =
      scratch.alloc(DType::f32, {static_cast<int64_t>(offsets.size()) - 1, one.rows(), one.cols()});
  all.grad_is_zero = true;
  add_grad(run, all, dy, x, offsets);
  settle_grad(run, half);
  for (size_t p = 0; p < term.experts.size(); ++p) {
    const Tensor sum = half.grad.matrix(static_cast<int64_t>(p));
    add(run, sum, sum, all.grad.at(term.experts[p]));
  }
}

// db += dy^T (s x a^T),  da += (s dy b)^T x
void add_term_grads(Run& run, const Param& w, const GatheredRows& dy, const GatheredRows& x,
                    Offsets offsets) {
  if (w.term == nullptr) return;
  const LowRankTerm& term = *w.term;
  const auto experts = static_cast<int64_t>(offsets.size()) - 1;
  const DType dtype = dy.x.dtype;
  const int64_t all[2] = {0, x.rows()};
  const int64_t rank = term.b->value.cols();
  Scratch scratch(run);
  const Tensor t = scratch.alloc(dtype, {x.rows(), rank});
  const Offsets of_a = offsets_of(term, *term.a, offsets, all),
                of_b = offsets_of(term, *term.b, offsets, all);
  multiply(run, Form::forward, t, gathered(run, scratch, x, dtype),
           half_of_all(run, scratch, term, *term.a, experts, dtype), groups_of(run, of_a), false);
  scale(run, t, t, term.scale);
  add_half_grad(run, term, *term.b, dy, t, of_b);
  multiply(run, Form::dx, t, gathered(run, scratch, dy, dtype),
           half_of_all(run, scratch, term, *term.b, experts, dtype), groups_of(run, of_b), false);
  scale(run, t, t, term.scale);
  add_half_grad(run, term, *term.a, t, x, of_a);
}

}  // namespace

void matmul_forward(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  product(run, Form::forward, y, x, w, offsets, x.x.dtype, false);
}

void matmul_forward(Run& run, List<Operand> operands, GatheredRows x, Offsets offsets) {
  matmul_act_forward(run, {}, operands, x, offsets, {}, {});
}

// Rows that are not few are gathered once for all matrices.
void matmul_act_forward(Run& run, Tensor hidden, List<Operand> operands, GatheredRows x,
                        Offsets offsets, Tensor weight, Act act) {
  const std::span<const Operand> all(operands.begin(), operands.size());
  const DType dtype = x.x.dtype;
  for (const Operand& o : all) check_product(run, Form::forward, o.y, x, o.w, offsets);
  Scratch scratch(run);
  const bool terms = std::ranges::any_of(all, [](const Operand& o) { return o.w.term; });
  std::optional<FewHidden> together;
  if (!hidden.empty() && !terms) together = {hidden, weight, act};
  if (multiply_few(run, all, x, offsets, dtype, false, together)) {
    if (together) return;
  } else {
    const bool few = x.rows() <= kFewGrouped;
    const GatheredRows rows = few ? x : GatheredRows(gathered(run, scratch, x, dtype));
    for (const Operand& o : all) product(run, Form::forward, o.y, rows, o.w, offsets, dtype, false);
  }
  if (!hidden.empty())
    cuda::ffn_act_forward(run, hidden, all.size() > 1 ? all[0].y : Tensor{}, all.back().y, weight,
                          act);
}

void matmul_forward_acc(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  product(run, Form::forward, y, x, w, offsets, x.x.dtype, true);
}

void matmul_forward_f32(Run& run, Tensor y, GatheredRows x, Param& w, Offsets offsets) {
  product(run, Form::forward, y, x, w, offsets, DType::f32, false);
}

void matmul_dx(Run& run, Tensor dx, GatheredRows dy, Param& w, Offsets offsets) {
  product(run, Form::dx, dx, dy, w, offsets, dy.x.dtype, false);
}

void matmul_dx(Run& run, Tensor dx, List<Operand> operands, Offsets offsets) {
  bool add = false;
  for (const Operand& o : operands) {
    product(run, Form::dx, dx, o.y, o.w, offsets, o.y.dtype, add);
    add = true;
  }
}

void matmul_dx_acc(Run& run, Tensor dx, GatheredRows dy, Param& w, Offsets offsets) {
  product(run, Form::dx, dx, dy, w, offsets, dy.x.dtype, true);
}

void matmul_dw(Run& run, Param& w, GatheredRows dy, GatheredRows x, Offsets offsets) {
  add_grad(run, w, dy, x, offsets);
  add_term_grads(run, w, dy, x, offsets);
}

void matmul_dw(Run& run, List<Operand> operands, GatheredRows x, Offsets offsets) {
  Scratch scratch(run);
  const Tensor rows = gathered(run, scratch, x, x.x.dtype);
  for (const Operand& o : operands) matmul_dw(run, o.w, o.y, rows, offsets);
}

}  // namespace moe::ops::cuda
