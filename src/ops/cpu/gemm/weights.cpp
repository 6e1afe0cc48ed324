#include "ops/cpu/gemm/weights.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/cpu/gemm/narrow_product.h"
#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/products.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/quant/quant_product.h"
#include "ops/cpu/spans.h"
#include "ops/memory.h"
#include "tensor/quant.h"

namespace moe::ops {
namespace {

// Those that can be trained: they lie in memory as f32, one expert after another, and may change
// every step.
bool packs_as_a_whole(const Param& w) { return w.value.dtype == DType::f32 && !w.is_bound(); }

int64_t copy_bytes(const Bank& bank, Copy copy, DType dtype) {
  if (copy == Copy::blocks)
    return static_cast<int64_t>(quant_panels_bytes(dtype, bank.out, bank.in));
  return packed_expert_bytes(bank, dtype, copy == Copy::forward);
}

// Copies of quantised values in another type are several times as large, which no budget foresees:
// they are never kept.
bool may_be_kept(const CallWeight& c) {
  return !is_quantised(c.w->value.dtype) || c.copy == Copy::blocks;
}

// One expert of one weight, cut into pieces that any thread may do.
struct Job {
  const CallWeight* weight;
  char* out;
  Source source;
  const PackLayout* layout;  // null for panels
  int64_t pieces;
};

Job job_of(const CallWeight& c, int64_t expert, char* out) {
  const Tensor rows = c.w->expert(expert);
  if (c.copy == Copy::blocks)
    return {&c, out, {rows.data, rows.dtype, c.bank.in}, nullptr, quant_groups(c.bank.out)};
  const bool forward = c.copy == Copy::forward;
  const PackLayout& layout =
      weights_layout(forward ? c.bank.in : c.bank.out, forward ? c.bank.out : c.bank.in, c.dtype);
  return {&c,
          out,
          {rows.data, rows.dtype, c.bank.in},
          &layout,
          forward ? column_blocks(layout) : row_blocks(layout)};
}

// The source's rows of one piece.
Span rows_of(const Job& job, int64_t piece) {
  const Copy copy = job.weight->copy;
  const int64_t step = copy == Copy::blocks    ? kQuantColumns
                       : copy == Copy::forward ? job.layout->n_block
                                               : job.layout->k_block;
  return {std::min(piece * step, job.weight->bank.out),
          std::min((piece + 1) * step, job.weight->bank.out)};
}

// Copies of this size together do not stay in the caches until they are used.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

// The piece's rows in the type of the product, where the source of the job would have them; a
// quantised matrix is wide only a piece at a time, in the cache.
Source widened(const Job& job, int64_t piece, Arena& scratch) {
  const int64_t cols = job.source.stride, bytes = bytes_of(job.source.dtype, cols);
  const DType dtype = job.weight->dtype;
  const int64_t wide_bytes = bytes_of(dtype, cols);
  const Span rows = rows_of(job, piece);
  auto* wide = static_cast<char*>(
      scratch.alloc_bytes(static_cast<size_t>((rows.end - rows.begin) * wide_bytes)));
  auto* row = static_cast<float*>(scratch.alloc_bytes(static_cast<size_t>(cols) * sizeof(float)));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    char* to = wide + (r - rows.begin) * wide_bytes;
    const char* from = static_cast<const char*>(job.source.data) + r * bytes;
    if (dtype == DType::f32) {
      dequantise(reinterpret_cast<float*>(to), from, job.source.dtype, cols);
    } else {
      dequantise(row, from, job.source.dtype, cols);
      convert_matrix(to, dtype, cols, {row, DType::f32, cols}, 1, cols, false);
    }
  }
  return {beginning(wide, rows.begin * wide_bytes), dtype, cols};
}

void run_piece(const Job& job, int64_t piece, const Job* next_job, int64_t next_piece, bool stream,
               Arena& scratch) {
  const CallWeight& c = *job.weight;
  if (c.copy == Copy::blocks) {
    quant_pack(job.out, c.dtype, job.source.data, bytes_of(c.dtype, c.bank.in), c.bank.out,
               c.bank.in, {piece, piece + 1});
    return;
  }
  PackHints hints{.next = nullptr, .next_bytes = 0, .stream = stream && streams(*job.layout)};
  if (next_job != nullptr) {
    const Span rows = rows_of(*next_job, next_piece);
    const int64_t row_bytes = bytes_of(next_job->source.dtype, next_job->source.stride);
    hints.next = static_cast<const char*>(next_job->source.data) + rows.begin * row_bytes;
    hints.next_bytes = (rows.end - rows.begin) * row_bytes;
  }
  const ArenaScope scope(scratch);
  const Source source = is_quantised(job.source.dtype) ? widened(job, piece, scratch) : job.source;
  if (c.copy == Copy::forward) pack_transposed(job.out, *job.layout, c.dtype, source, piece, hints);
  else pack_straight(job.out, *job.layout, job.weight->dtype, source, c.bank.out, piece, hints);
}

void run_jobs(Run& run, const std::vector<Job>& jobs) {
  std::vector<int64_t> first{0};  // piece of each job
  int64_t elements = 0, bytes = 0;
  for (const Job& job : jobs) {
    first.push_back(first.back() + job.pieces);
    bytes += job.weight->expert_bytes;
    elements += job.weight->bank.out * job.weight->bank.in;
  }
  if (jobs.empty()) return;
  const int64_t grain =
      std::max<int64_t>(1, kGrainElements * first.back() / std::max<int64_t>(1, elements));
  parallel_for(run.threads, first.back(), grain, [&](int64_t begin, int64_t end, int thread) {
    Arena& scratch = run.thread_scratch[static_cast<size_t>(thread)];
    auto j =
        static_cast<size_t>(std::upper_bound(first.begin(), first.end(), begin) - first.begin()) -
        1;
    for (int64_t i = begin; i < end; ++i) {
      const size_t here = j;
      if (i + 1 == first[j + 1]) ++j;
      run_piece(jobs[here], i - first[here], i + 1 < end ? &jobs[j] : nullptr, i + 1 - first[j],
                bytes >= kStreamBytes, scratch);
    }
    finish_streams();
  });
}

// An expert's copy of the value as it is now, or null. Takes no lock.
const char* find_copy(const CallWeight& c, int64_t expert) {
  return c.kept->version_of(expert) == c.w->version ? c.kept->room.data() + expert * c.expert_bytes
                                                    : nullptr;
}

// Whether there might be room for the copy; only who holds the lock knows.
bool may_find_room(const CallWeight& c, int64_t expert) {
  return c.budget == nullptr || c.budget->may_have_room(c.expert_bytes) ||
         c.kept->version_of(expert) != 0;
}

// Whether this is one of several experts and was never met before. For who holds the lock.
bool is_new(const CallWeight& c, int64_t expert) {
  if (c.bank.experts == 1) return false;
  c.kept->met.resize(static_cast<size_t>(c.bank.experts));
  return std::exchange(c.kept->met[static_cast<size_t>(expert)], uint8_t{1}) == 0;
}

// What a call has taken of budgets for copies that do not stand yet, and gives back where one that
// should have been packed was not. For who holds the lock.
class Taken {
 public:
  Taken() = default;
  ~Taken() {
    for (const CallWeight* c : of_) c->budget->add(-c->expert_bytes);
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  void add(const CallWeight& c) {
    of_.push_back(&c);
    c.budget->add(c.expert_bytes);
  }
  // The copies stand.
  void keep() { of_.clear(); }

 private:
  std::vector<const CallWeight*> of_;  // once for each copy
};

// Room for one more copy, or null. For who holds the lock.
char* room_for(const CallWeight& c, int64_t expert, Taken& taken) {
  ExpertCopies& kept = *c.kept;
  const bool takes = c.budget != nullptr && kept.version_of(expert) == 0;
  if (takes && !c.budget->has_room(c.expert_bytes)) return nullptr;
  char* room = kept.place_of(expert, c.bank.experts, c.expert_bytes);
  if (room != nullptr && takes) taken.add(c);
  return room;
}

// An expert of a weight of a call.
struct CallExpert {
  CallWeight* weight;
  int64_t expert;

  void found(const char* copy) const { weight->experts[static_cast<size_t>(expert)] = copy; }
};

}  // namespace

CopyBytes forward_copy_bytes(const Param& w, DType x, bool wide) {
  choose_isa();
  const bool quantised = is_quantised(w.value.dtype);
  if (wide && !quantised && w.value.rank == 2 && w.value.rows() <= kMostNarrowColumns) return {};
  const Bank bank = bank_of(w);
  const int64_t expert =
      quantised ? copy_bytes(bank, Copy::blocks, w.value.dtype)
                : copy_bytes(bank, Copy::forward,
                             stored_dtype(w.value.dtype, compute_dtype(wide ? DType::f32 : x)));
  return {expert, bank.experts * expert};
}

int64_t trained_copy_bytes(const Param& w, DType x, bool wide) {
  const int64_t forward = forward_copy_bytes(w, x, wide).all;  // chooses the instruction set
  const Bank bank = bank_of(w);
  return forward +
         bank.experts * copy_bytes(bank, Copy::backward, compute_dtype(wide ? DType::f32 : x));
}

CallWeight call_weight(Run& run, Param& w, Copy copy, DType dtype) {
  CallWeight c{.w = &w, .bank = bank_of(w), .copy = copy, .dtype = dtype};
  c.expert_bytes = copy_bytes(c.bank, copy, dtype);
  if (packs_as_a_whole(w)) {
    c.whole = packed_bank(run, w, c.bank, dtype, copy == Copy::forward);
  } else {
    PackedWeight& weight = packed_weight(w);
    c.kept =
        copy == Copy::blocks ? &weight.blocks : &weight.of(dtype, copy == Copy::forward).experts;
    c.budget = weight.budget.get();
    const auto experts = static_cast<size_t>(c.bank.experts);
    c.experts = {static_cast<const char**>(run.scratch.alloc_bytes(experts * sizeof(const char*))),
                 experts};
    std::fill(c.experts.begin(), c.experts.end(), nullptr);
  }
  return c;
}

void pack_within_budget(Run& run, std::span<CallWeight* const> weights,
                        std::span<const int64_t> experts) {
  std::vector<CallExpert> missing;
  for (CallWeight* c : weights) {
    if (c->whole != nullptr || !may_be_kept(*c) || std::exchange(c->looked_for, true)) continue;
    for (const int64_t e : experts)
      if (const char* copy = find_copy(*c, e)) CallExpert{c, e}.found(copy);
      else if (may_find_room(*c, e)) missing.push_back({c, e});
  }
  if (missing.empty()) return;
  const std::lock_guard lock(packing_lock());
  Taken taken;
  std::vector<Job> jobs;
  std::vector<CallExpert> packed;
  for (const CallExpert& m : missing) {
    const char* copy = find_copy(*m.weight, m.expert);  // another thread's, by now
    if (copy == nullptr) {
      if (is_new(*m.weight, m.expert)) continue;
      char* room = room_for(*m.weight, m.expert, taken);
      if (room == nullptr) continue;
      jobs.push_back(job_of(*m.weight, m.expert, room));
      packed.push_back(m);
      copy = room;
    }
    m.found(copy);
  }
  run_jobs(run, jobs);
  for (const CallExpert& p : packed)
    std::atomic_ref(p.weight->kept->version[static_cast<size_t>(p.expert)])
        .store(p.weight->w->version, std::memory_order_release);
  taken.keep();
}

int64_t piece_bytes(const CallWeight& c) {
  if (c.copy == Copy::blocks) return static_cast<int64_t>(quant_group_bytes(c.dtype, c.bank.in));
  return weights_layout(c.bank.in, c.bank.out, c.dtype).n_stride * element_size(c.dtype);
}

void pack_piece(char* out, const CallWeight& c, int64_t expert, int64_t piece, Arena& scratch) {
  run_piece(job_of(c, expert, beginning(out, piece * piece_bytes(c))), piece, nullptr, 0, false,
            scratch);
}

void pack_into_scratch(Run& run, std::span<CallWeight* const> weights,
                       std::span<const int64_t> experts) {
  std::vector<Job> jobs;
  for (const int64_t e : experts)
    for (CallWeight* c : weights) {
      if (c->at(e) != nullptr) continue;
      auto* out = static_cast<char*>(run.scratch.alloc_bytes(static_cast<size_t>(c->expert_bytes)));
      c->experts[static_cast<size_t>(e)] = out;
      jobs.push_back(job_of(*c, e, out));
    }
  run_jobs(run, jobs);
}

}  // namespace moe::ops
