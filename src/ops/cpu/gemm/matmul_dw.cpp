// The gradient of a matrix: w.grad [O, I] += dy^T [O, R] x [R, I], over groups of rows. dy is
// turned block by block into scratch; x is packed as the right operand, once for all matrices that
// share it; both are padded with zero rows. A group that one thread owns is packed by that thread
// right before its products, into the cache; groups that several threads share, or too few groups,
// are packed ahead, a wave of rows at a time, for the same reason.
#include <vector>

#include "ops/cpu/gemm/low_rank.h"
#include "ops/cpu/gemm/products.h"
#include "ops/cpu/isa.h"
#include "ops/memory.h"

namespace moe::ops::cpu {
namespace {

struct Gradient {
  Param* w;
  Bank bank;
  GatheredRows dy;
};

// A stretch of one group's rows, summed by one product: w.grad[group] += dy[row..]^T x[row..].
// `padded` rows stand in the product, the added ones zero.
struct Stretch {
  int64_t group, row, rows, padded;
  const PackLayout* layout;
  void* packed = nullptr;  // x's rows as the right operand, where they are packed ahead
};

// Rows [output, output + outputs) of one gradient, for one group.
struct Task {
  const Gradient* gradient;
  int64_t group, output, outputs, cost;
};

struct DwPlan {
  DType compute;
  GatheredRows x;
  Offsets offsets;  // of all waves
  bool few;         // so few groups that some threads would wait for one of their own
  std::vector<Stretch> stretches;
  std::vector<size_t> first_stretch;  // by group, [E + 1]
  std::vector<Task> tasks;            // by group
  std::vector<size_t> first_task;     // by thread
};

int64_t groups_with_rows(Offsets offsets) {
  int64_t groups = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) groups += offsets[e + 1] > offsets[e];
  return groups;
}

void plan_stretches(DwPlan& plan, const Bank& bank, Offsets offsets) {
  const int64_t step = plan.compute == DType::bf16 ? 2 * kUnit : kUnit;
  plan.first_stretch.push_back(0);
  for (int64_t e = 0; e < bank.experts; ++e) {
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kDwInnerRows) {
      const int64_t rows = std::min(kDwInnerRows, offsets[e + 1] - row),
                    padded = round_up(rows, step);
      plan.stretches.push_back(
          {e, row, rows, padded, &weights_layout(padded, bank.in, plan.compute)});
    }
    plan.first_stretch.push_back(plan.stretches.size());
  }
}

// Tasks in order, shared out so that every thread gets about the same number of rows times outputs.
void plan_tasks(DwPlan& plan, const std::vector<Gradient>& gradients, Offsets offsets,
                int threads) {
  const int64_t groups = groups_with_rows(offsets);
  int64_t outputs = 0, total = 0, done = 0;
  for (const Gradient& g : gradients) outputs += g.bank.out;
  // Enough tasks that their sizes even out, but no smaller than what keeps a product efficient.
  int64_t block = kMostRows;
  while (block > 32 && groups * ((outputs + block - 1) / block) < 4 * threads) block /= 2;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    if (offsets[e + 1] == offsets[e]) continue;
    for (const Gradient& g : gradients)
      for (int64_t o = 0; o < g.bank.out; o += block) {
        const int64_t take = std::min(block, g.bank.out - o),
                      cost = (offsets[e + 1] - offsets[e]) * take;
        plan.tasks.push_back({&g, static_cast<int64_t>(e), o, take, cost});
        total += cost;
      }
  }
  size_t next = 0;
  for (int t = 0; t <= threads; ++t) {
    // A task belongs to the thread in whose share its middle lies.
    while (next < plan.tasks.size() &&
           (t == threads || 2 * done + plan.tasks[next].cost <= 2 * total * t / threads))
      done += plan.tasks[next++].cost;
    plan.first_task.push_back(next);
  }
}

// One row of blocks, while the rows of the next one are fetched.
void pack_piece(const DwPlan& plan, const Stretch& s, void* packed, int64_t block) {
  PackHints hints;
  const int64_t next = s.row + (block + 1) * s.layout->k_block, left = plan.x.rows() - next;
  if (!plan.x.listed() && plan.x.x.dense() && left > 0) {
    hints.next = source_of(plan.x, next, 0).data;
    hints.next_bytes = std::min(s.layout->k_block, left) * plan.x.x.row_bytes;
  }
  pack_straight(packed, *s.layout, plan.compute, source_of(plan.x, s.row, 0), s.rows, block, hints);
}

// Whether a group is packed ahead by all threads: when it lies in more than one share, or there are
// few groups.
std::vector<bool> packed_ahead(const DwPlan& plan) {
  std::vector<bool> ahead(plan.first_stretch.size() - 1, plan.few);
  for (size_t task : plan.first_task) {
    if (task == 0 || task >= plan.tasks.size() ||
        plan.tasks[task].group != plan.tasks[task - 1].group)
      continue;
    ahead[static_cast<size_t>(plan.tasks[task].group)] = true;
  }
  return ahead;
}

void pack_ahead(Run& run, DwPlan& plan) {
  std::vector<std::pair<size_t, int64_t>> pieces;  // (stretch, row of blocks)
  int64_t elements = 0;
  const std::vector<bool> ahead = packed_ahead(plan);
  for (size_t i = 0; i < plan.stretches.size(); ++i) {
    Stretch& s = plan.stretches[i];
    if (!ahead[static_cast<size_t>(s.group)]) continue;
    s.packed = run.scratch.alloc_bytes(s.layout->bytes);
    elements += s.padded * plan.x.cols();
    for (int64_t b = 0; b < row_blocks(*s.layout); ++b) pieces.emplace_back(i, b);
  }
  if (pieces.empty()) return;
  const int64_t grain =
      std::max<int64_t>(1, kGrainElements * static_cast<int64_t>(pieces.size()) / elements);
  parallel_for(run.threads, static_cast<int64_t>(pieces.size()), grain,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i) {
                   const auto [index, block] = pieces[static_cast<size_t>(i)];
                   pack_piece(plan, plan.stretches[index], plan.stretches[index].packed, block);
                 }
               });
}

// packed[i]: the i-th stretch of the task's group.
void run_task(const DwPlan& plan, const Task& task, std::span<void* const> packed, Arena& scratch) {
  const Gradient& g = *task.gradient;
  const size_t first = plan.first_stretch[static_cast<size_t>(task.group)];
  float* out = g.w->expert_grad(task.group).row<float>(task.output);
  for (size_t i = 0; i < packed.size(); ++i) {
    const ArenaScope scope(scratch);
    const Stretch& s = plan.stretches[first + i];
    void* turned =
        scratch.alloc_bytes(static_cast<size_t>(task.outputs * s.padded) * size_of(plan.compute));
    transpose(turned, plan.compute, source_of(g.dy, s.row, task.output), s.rows, task.outputs,
              s.padded, scratch.alloc_bytes(transpose_scratch_bytes(task.outputs)));
    // A gradient that counts as zero is written by its group's first stretch.
    const bool add = !g.w->grad_is_zero || s.row > plan.offsets[static_cast<size_t>(task.group)];
    const Product& product = find_product(
        {task.outputs, s.padded, g.bank.in, plan.compute, plan.compute, DType::f32, add, 1});
    product.run(out, turned, packed[i], scratch.alloc_bytes(product.scratch_bytes()));
  }
}

void run_share(const DwPlan& plan, size_t share, Arena& scratch) {
  std::vector<void*> packed;
  for (size_t i = plan.first_task[share], end = plan.first_task[share + 1]; i < end;) {
    const ArenaScope scope(scratch);
    const int64_t group = plan.tasks[i].group;
    packed.clear();
    for (size_t k = plan.first_stretch[static_cast<size_t>(group)];
         k < plan.first_stretch[static_cast<size_t>(group) + 1]; ++k) {
      const Stretch& s = plan.stretches[k];
      packed.push_back(s.packed != nullptr ? s.packed : scratch.alloc_bytes(s.layout->bytes));
      if (s.packed != nullptr) continue;
      for (int64_t b = 0; b < row_blocks(*s.layout); ++b) pack_piece(plan, s, packed.back(), b);
    }
    for (; i < end && plan.tasks[i].group == group; ++i)
      run_task(plan, plan.tasks[i], packed, scratch);
  }
}

// Where the waves end: at ends of stretches, so that cutting changes no sum. One wave where there
// are groups enough for every thread to own some.
std::vector<int64_t> wave_ends(Offsets offsets, bool few, int64_t row_bytes) {
  int64_t in_wave = 0;
  std::vector<int64_t> ends;
  for (size_t e = 0; few && e + 1 < offsets.size(); ++e)
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kDwInnerRows) {
      const int64_t rows = std::min(kDwInnerRows, offsets[e + 1] - row);
      if (in_wave > 0 && (in_wave + rows) * row_bytes > kDwWaveBytes) {
        ends.push_back(row);
        in_wave = 0;
      }
      in_wave += rows;
    }
  ends.push_back(offsets.back());
  return ends;
}

void run_wave(Run& run, const std::vector<Gradient>& gradients, GatheredRows x, Offsets offsets,
              bool few, int64_t begin, int64_t end, int threads) {
  const ArenaScope scope(run.scratch);
  std::vector<int64_t> clipped(offsets.begin(), offsets.end());
  for (int64_t& offset : clipped) offset = std::clamp(offset, begin, end);
  const DType dy_dtype = gradients.front().dy.x.dtype;
  DwPlan plan{.compute = x.x.dtype == dy_dtype ? compute_dtype(dy_dtype) : DType::f32,
              .x = x,
              .offsets = offsets,
              .few = few,
              .stretches = {},
              .first_stretch = {},
              .tasks = {},
              .first_task = {}};
  plan_stretches(plan, gradients.front().bank, clipped);
  plan_tasks(plan, gradients, clipped, threads);
  pack_ahead(run, plan);
  parallel_shares(run, threads,
                  [&](size_t share, Arena& scratch) { run_share(plan, share, scratch); });
}

void checked_dw(Run& run, std::vector<Gradient> gradients, GatheredRows x, Offsets offsets) {
  const char* op = "matmul_dw";
  choose_isa();
  need_listed(op, x);
  for (Gradient& g : gradients) {
    g.bank = checked_bank(op, *g.w);
    const Tensor& dy = g.dy.x;
    const bool fits = !x.x.empty() && !dy.empty() && is_float(x.x) && is_float(dy) &&
                      x.cols() == g.bank.in && dy.cols() == g.bank.out && x.rows() == g.dy.rows() &&
                      dy.dtype == gradients.front().dy.x.dtype;
    need(fits, op, "dy [R, O], x [R, I]",
         {{"dy", dy}, {"x", x.x}, {g.w->name.c_str(), g.w->value}});
    need_listed(op, g.dy);
    check_offsets(op, g.bank, x.rows(), offsets, *g.w);
    need(g.w->grad.empty() || (g.w->grad.dtype == DType::f32 && g.w->grad.dense() &&
                               g.w->grad.shape == g.w->value.shape),
         op, "a gradient f32 of the weight's shape",
         {{"grad", g.w->grad}, {g.w->name.c_str(), g.w->value}});
  }
  std::erase_if(gradients, [](const Gradient& g) { return g.w->grad.empty(); });
  if (gradients.empty() || x.rows() == 0) return;
  const int threads = worthy_threads(run, x.rows(), gradients.front().bank);
  const bool few = groups_with_rows(offsets) < 2 * threads;
  int64_t begin = 0;
  for (int64_t end : wave_ends(offsets, few, x.cols() * element_size(x.x.dtype))) {
    run_wave(run, gradients, x, offsets, few, begin, end, threads);
    begin = end;
  }
  for (const Gradient& g : gradients) {
    for (size_t e = 0; g.w->grad_is_zero && e + 1 < offsets.size(); ++e)
      if (offsets[e] == offsets[e + 1]) zero(run, g.w->expert_grad(static_cast<int64_t>(e)));
    g.w->grad_is_zero = false;
  }
}

}  // namespace

void matmul_dw(Run& run, Param& w, GatheredRows dy, GatheredRows x, Offsets offsets) {
  checked_dw(run, {{&w, {}, dy}}, x, offsets);
  if (w.term != nullptr) term_dw(run, *w.term, dy, x, offsets);
}

void matmul_dw(Run& run, List<Operand> operands, GatheredRows x, Offsets offsets) {
  std::vector<Gradient> gradients;
  for (const Operand& o : operands) gradients.push_back({&o.w, {}, o.y});
  checked_dw(run, std::move(gradients), x, offsets);
  for (const Operand& o : operands)
    if (o.w.term != nullptr) term_dw(run, *o.w.term, o.y, x, offsets);
}

}  // namespace moe::ops::cpu
