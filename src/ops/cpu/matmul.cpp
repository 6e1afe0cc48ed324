// The five products, over groups of rows. Rows are cut into blocks of at most 256, one multiple of 16 and an exact tail of 1 to 15, so that at most 31
// primitives exist for each width and dtype; no row is padded. A row's bits do not depend on its block, so any cut is as good as any other.
// Weights are packed when their version has moved. No exception leaves a parallel region: Guard carries the first one out.
#include <omp.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/check.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/primitives.h"
#include "ops/cpu/repack.h"
#include "ops/ops.h"

namespace moe::ops {
namespace {

using Offsets = std::span<const int64_t>;

constexpr int64_t kUnit = 16;        // rows that threads share out; also the step of block sizes
constexpr int64_t kMostRows = 256;   // of one product
constexpr int64_t kMostInner = 512;  // rows summed by one product of matmul_dw

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t element_size(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }
Source source_of(const Tensor& t) { return {t.data, t.dtype, t.row_bytes / element_size(t.dtype)}; }

// ---- what is asked -----------------------------------------------------------------------------------------------------------------------------------

Bank checked_bank(const char* op, const Param& w) {
  need(w.present() && w.value.dtype == DType::f32 && w.value.dense() && (w.value.rank == 2 || w.value.rank == 3), op, "w [O, I] or [E, O, I], f32 without gaps",
       {{w.name.c_str(), w.value}});
  return bank_of(w);
}

void check_offsets(const char* op, const Bank& bank, int64_t rows, Offsets offsets, const Param& w) {
  const bool fits = offsets.size() == static_cast<size_t>(bank.experts) + 1 && offsets.front() == 0 && offsets.back() == rows;
  need(fits && std::is_sorted(offsets.begin(), offsets.end()), op, "offsets [E + 1] that rise from 0 to the number of rows", {{w.name.c_str(), w.value}});
}

DType compute_dtype(DType in) { return in == DType::bf16 && has_bf16_products() ? DType::bf16 : DType::f32; }

// Below about a million multiplications waking the other threads costs more than they bring.
int worthy_threads(const Run& run, int64_t rows, const Bank& bank) {
  constexpr int64_t kWorthThreads = 1 << 20;
  return rows * bank.out * bank.in < kWorthThreads ? 1 : run.threads;
}

// Runs pieces of work that may throw inside a parallel region, where no exception may leave; the first one is thrown again outside.
class Guard {
 public:
  template <class F>
  void operator()(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

// f(share, scratch) for every share, one thread each, with oneDNN's own loops serial. Fewer threads than asked for (a nested region) do several shares.
template <class F>
void parallel_shares(Run& run, int shares, F&& f) {
  Guard guard;
#pragma omp parallel num_threads(shares)
  guard([&] {
    const ThreadLimit limit(1);
    const int thread = omp_get_thread_num();
    for (int share = thread; share < shares; share += omp_get_num_threads()) f(static_cast<size_t>(share), run.thread_scratch[static_cast<size_t>(thread)]);
  });
  guard.rethrow();
}

// ---- out = in w, row by row ------------------------------------------------------------------------------------------------------------------------------

struct Block {
  int64_t group, row, rows;  // rows [row, row + rows) of the whole matrix
  const Product* product = nullptr;
};

// Blocks in the order of rows; thread t runs [first[t], first[t + 1]). One share only: each block is run by all threads together.
struct Schedule {
  std::vector<Block> blocks;
  std::vector<size_t> first;
};

void cut_rows(std::vector<Block>& blocks, int64_t group, int64_t begin, int64_t end) {
  while (begin < end) {
    int64_t rows = std::min(kMostRows, end - begin);
    if (rows > kUnit) rows -= rows % kUnit;
    blocks.push_back({group, begin, rows});
    begin += rows;
  }
}

Schedule schedule_rows(int threads, Offsets offsets) {
  int64_t units = 0, groups = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    units += round_up(offsets[e + 1] - offsets[e], kUnit) / kUnit;
    groups += offsets[e + 1] > offsets[e];
  }
  const bool together = groups < 2 * threads && units < 4 * threads;
  const int parts = together ? 1 : threads;
  Schedule schedule;
  schedule.first.push_back(0);
  for (int part = 0; part < parts; ++part) {
    const Span share = partition(units, part, parts);
    int64_t unit = 0;  // of the group's first row
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int64_t rows = offsets[e + 1] - offsets[e], here = round_up(rows, kUnit) / kUnit;
      const int64_t begin = std::clamp<int64_t>(share.begin - unit, 0, here), end = std::clamp<int64_t>(share.end - unit, 0, here);
      cut_rows(schedule.blocks, static_cast<int64_t>(e), offsets[e] + begin * kUnit, offsets[e] + std::min(end * kUnit, rows));
      unit += here;
    }
    schedule.first.push_back(schedule.blocks.size());
  }
  return schedule;
}

// Where a product reads and writes when x or y is a slice of columns or of another dtype: dense copies in scratch.
struct Operands {
  Tensor out, in;  // [R, N], [R, K]
  DType compute;
  bool add;
  bool direct_in, direct_out;

  Operands(Tensor out_, Tensor in_, DType compute_, bool add_) : out(out_), in(in_), compute(compute_), add(add_) {
    direct_in = in.dense() && in.dtype == compute;
    direct_out = out.dense() && (out.dtype == DType::f32 || out.dtype == compute);
  }
  DType product_dtype() const { return direct_out ? out.dtype : DType::f32; }
};

void run_block(const Operands& o, const Block& block, const PackedBank& w, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Tensor in = o.in.slice_rows(block.row, block.row + block.rows), out = o.out.slice_rows(block.row, block.row + block.rows);
  const void* from = in.data;
  void* to = out.data;
  if (!o.direct_in) {
    void* copy = scratch.alloc_bytes(static_cast<size_t>(block.rows * in.cols()) * size_of(o.compute));
    convert_matrix(copy, o.compute, in.cols(), source_of(in), block.rows, in.cols(), false);
    from = copy;
  }
  if (!o.direct_out) to = scratch.alloc_bytes(static_cast<size_t>(block.rows * out.cols()) * sizeof(float));
  block.product->run(to, from, w.data + block.group * w.expert_bytes, scratch.alloc_bytes(block.product->scratch_bytes()));
  if (!o.direct_out) convert_matrix(out.data, out.dtype, source_of(out).stride, {to, DType::f32, out.cols()}, block.rows, out.cols(), o.add);
}

void multiply(Run& run, const Operands& o, const PackedBank& w, Offsets offsets, int threads) {
  Schedule schedule = schedule_rows(threads, offsets);
  const int shares = static_cast<int>(schedule.first.size()) - 1;
  const int inner_threads = shares == 1 ? threads : 1;
  for (Block& block : schedule.blocks)
    block.product = &find_product({block.rows, o.in.cols(), o.out.cols(), o.compute, o.product_dtype(), o.add && o.direct_out, inner_threads});
  if (shares == 1) {
    const ThreadLimit limit(inner_threads);
    for (const Block& block : schedule.blocks) run_block(o, block, w, run.scratch);
    return;
  }
  parallel_shares(run, shares, [&](size_t share, Arena& scratch) {
    for (size_t i = schedule.first[share]; i < schedule.first[share + 1]; ++i) run_block(o, schedule.blocks[i], w, scratch);
  });
}

// Both directions: `forward` goes from I to O.
void checked_multiply(Run& run, const char* op, Tensor out, Tensor in, Param& w, Offsets offsets, bool forward, bool add, bool out_dtype_fits) {
  choose_isa();
  const Bank bank = checked_bank(op, w);
  const char* names[2] = {forward ? "y" : "dx", forward ? "x" : "dy"};
  const bool fits = !out.empty() && !in.empty() && is_float(in) && in.cols() == (forward ? bank.in : bank.out) &&
                    out.cols() == (forward ? bank.out : bank.in) && in.rows() == out.rows();
  need(fits && out_dtype_fits, op, forward ? "y [R, O] f32 or x's dtype (f32 to add), x [R, I]" : "dx [R, I] f32 or dy's dtype, dy [R, O]",
       {{names[0], out}, {names[1], in}, {w.name.c_str(), w.value}});
  check_offsets(op, bank, in.rows(), offsets, w);
  if (in.rows() == 0) return;
  const DType compute = compute_dtype(in.dtype);
  multiply(run, Operands(out, in, compute, add), packed_bank(run, w, bank, compute, forward), offsets, worthy_threads(run, in.rows(), bank));
}

// ---- dw ----------------------------------------------------------------------------------------------------------------------------------------------------

// A stretch of one group's rows, summed by one product: w.grad[group] += dy[row..]^T x[row..]. `padded` rows stand in the product, the added ones zero.
struct Stretch {
  int64_t group, row, rows, padded;
  const PackLayout* layout;
  char* packed;  // x's rows in the layout of the right operand
};

struct DwPlan {
  DType compute;
  int64_t block;  // outputs (rows of w) of one product
  std::vector<Stretch> stretches;
  std::vector<size_t> first_stretch;               // by group, [E + 1]
  std::vector<std::pair<int64_t, int64_t>> tasks;  // (group, first output)
  std::vector<size_t> first_task;                  // by thread
};

// Tasks in order, shared out so that every thread gets about the same number of rows times outputs.
void share_tasks(DwPlan& plan, const Bank& bank, Offsets offsets, int threads) {
  const auto cost = [&](int64_t group, int64_t output) { return (offsets[group + 1] - offsets[group]) * std::min(plan.block, bank.out - output); };
  int64_t total = 0, done = 0;
  for (int64_t e = 0; e < bank.experts; ++e) {
    if (offsets[e + 1] == offsets[e]) continue;
    for (int64_t o = 0; o < bank.out; o += plan.block) {
      plan.tasks.emplace_back(e, o);
      total += cost(e, o);
    }
  }
  size_t next = 0;
  for (int t = 0; t <= threads; ++t) {
    // A task belongs to the thread in whose share its middle lies.
    while (next < plan.tasks.size() && (t == threads || 2 * done + cost(plan.tasks[next].first, plan.tasks[next].second) <= 2 * total * t / threads)) {
      done += cost(plan.tasks[next].first, plan.tasks[next].second);
      ++next;
    }
    plan.first_task.push_back(next);
  }
}

DwPlan plan_dw(Run& run, const Bank& bank, DType compute, Offsets offsets, int threads) {
  DwPlan plan{.compute = compute, .block = kMostRows, .stretches = {}, .first_stretch = {0}, .tasks = {}, .first_task = {}};
  const int64_t step = compute == DType::bf16 ? 2 * kUnit : kUnit;
  int64_t groups = 0;
  for (int64_t e = 0; e < bank.experts; ++e) {
    groups += offsets[e + 1] > offsets[e];
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kMostInner) {
      const int64_t rows = std::min(kMostInner, offsets[e + 1] - row), padded = round_up(rows, step);
      const PackLayout& layout = weights_layout(padded, bank.in, compute);
      plan.stretches.push_back({e, row, rows, padded, &layout, static_cast<char*>(run.scratch.alloc_bytes(layout.bytes))});
    }
    plan.first_stretch.push_back(plan.stretches.size());
  }
  // Enough tasks that their sizes even out, but no smaller than what keeps a product efficient.
  while (plan.block > 32 && groups * ((bank.out + plan.block - 1) / plan.block) < 4 * threads) plan.block /= 2;
  share_tasks(plan, bank, offsets, threads);
  return plan;
}

void pack_stretches(Run& run, const DwPlan& plan, const Tensor& x) {
  std::vector<std::pair<size_t, int64_t>> pieces;  // (stretch, row of blocks)
  for (size_t s = 0; s < plan.stretches.size(); ++s)
    for (int64_t b = 0; b < row_blocks(*plan.stretches[s].layout); ++b) pieces.emplace_back(s, b);
  const int64_t grain = std::max<int64_t>(1, kGrainElements * static_cast<int64_t>(pieces.size()) / x.numel());
  parallel_for(run.threads, static_cast<int64_t>(pieces.size()), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [index, block] = pieces[static_cast<size_t>(i)];
      const Stretch& s = plan.stretches[index];
      pack_straight(s.packed, *s.layout, plan.compute, source_of(x.slice_rows(s.row, s.row + s.rows)), s.rows, block);
    }
  });
}

// `add` false: the gradient counts as zero, so a group's first stretch writes it.
void run_dw_task(const DwPlan& plan, const Bank& bank, const Tensor& grad, bool add, const Tensor& dy, std::pair<int64_t, int64_t> task, Arena& scratch) {
  const auto [group, output] = task;
  const int64_t outputs = std::min(plan.block, bank.out - output);
  for (size_t i = plan.first_stretch[static_cast<size_t>(group)]; i < plan.first_stretch[static_cast<size_t>(group) + 1]; ++i) {
    const ArenaScope scope(scratch);
    const Stretch& s = plan.stretches[i];
    const Tensor part = dy.slice_rows(s.row, s.row + s.rows).slice_cols(output, output + outputs);
    void* turned = scratch.alloc_bytes(static_cast<size_t>(outputs * s.padded) * size_of(plan.compute));
    transpose(turned, plan.compute, source_of(part), s.rows, outputs, s.padded, scratch.alloc_bytes(transpose_scratch_bytes(outputs)));
    const bool first = i == plan.first_stretch[static_cast<size_t>(group)];
    const Product& product = find_product({outputs, s.padded, bank.in, plan.compute, DType::f32, add || !first, 1});
    product.run(grad.row<float>(group * bank.out + output), turned, s.packed, scratch.alloc_bytes(product.scratch_bytes()));
  }
}

}  // namespace

void matmul_forward(Run& run, Tensor y, Tensor x, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_forward", y, x, w, offsets, true, false, y.dtype == DType::f32 || y.dtype == x.dtype);
}

void matmul_forward_acc(Run& run, Tensor y, Tensor x, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_forward_acc", y, x, w, offsets, true, true, y.dtype == DType::f32);
}

void matmul_dx(Run& run, Tensor dx, Tensor dy, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_dx", dx, dy, w, offsets, false, false, dx.dtype == DType::f32 || dx.dtype == dy.dtype);
}

void matmul_dx_acc(Run& run, Tensor dx, Tensor dy, Param& w, Offsets offsets) {
  checked_multiply(run, "matmul_dx_acc", dx, dy, w, offsets, false, true, dx.dtype == DType::f32 || dx.dtype == dy.dtype);
}

// grad [O, I] = dy^T [O, R] x [R, I]: dy is turned once, block by block, into scratch; x is packed as the right operand; both are padded with zero rows.
void matmul_dw(Run& run, Param& w, Tensor dy, Tensor x, Offsets offsets) {
  const char* op = "matmul_dw";
  choose_isa();
  const Bank bank = checked_bank(op, w);
  const bool fits = !x.empty() && !dy.empty() && is_float(x) && is_float(dy) && x.cols() == bank.in && dy.cols() == bank.out && x.rows() == dy.rows();
  need(fits, op, "dy [R, O], x [R, I]", {{"dy", dy}, {"x", x}, {w.name.c_str(), w.value}});
  check_offsets(op, bank, x.rows(), offsets, w);
  if (w.grad.empty() || x.rows() == 0) return;
  need(w.grad.dtype == DType::f32 && w.grad.dense() && w.grad.shape == w.value.shape, op, "a gradient f32 of the weight's shape",
       {{"grad", w.grad}, {w.name.c_str(), w.value}});
  const ArenaScope scope(run.scratch);
  const int threads = worthy_threads(run, x.rows(), bank);
  const DwPlan plan = plan_dw(run, bank, x.dtype == dy.dtype ? compute_dtype(x.dtype) : DType::f32, offsets, threads);
  pack_stretches(run, plan, x);
  parallel_shares(run, threads, [&](size_t share, Arena& scratch) {
    for (size_t i = plan.first_task[share]; i < plan.first_task[share + 1]; ++i) run_dw_task(plan, bank, w.grad, !w.grad_is_zero, dy, plan.tasks[i], scratch);
  });
  if (w.grad_is_zero)
    for (int64_t e = 0; e < bank.experts; ++e)
      if (offsets[static_cast<size_t>(e)] == offsets[static_cast<size_t>(e) + 1]) zero(run, w.grad.rank == 3 ? w.grad.at(e) : w.grad);
  w.grad_is_zero = false;
}

}  // namespace moe::ops
