// Causal attention: entry points, checks, and the cutting of a call into tasks. The kernels are in
// forward-inl.h and backward-inl.h.

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/threads.h"
#include "ops/cpu/attention/tasks.h"
#include "ops/cpu/isa.h"

namespace moe::ops {
namespace {

// Below this many multiply-adds a thread costs more than it brings.
constexpr int64_t kGrain = int64_t{1} << 16;

void check_matrix(std::string_view op, std::string_view name, const Tensor& t, int64_t rows,
                  int64_t cols, DType dtype) {
  if (t.empty() || t.rank != 2 || t.rows() != rows || t.cols() != cols || t.dtype != dtype)
    fail("{}: {} is {}; expected {} [{}, {}]", op, name, t.empty() ? "absent" : describe(t),
         name_of(dtype), rows, cols);
  if (!is_quantised(dtype) && t.row_bytes % static_cast<int64_t>(size_of(dtype)) != 0)
    fail("{}: the rows of {} lie {} bytes apart, which is no multiple of an element of {}", op,
         name, t.row_bytes, name_of(dtype));
}

void check_float(std::string_view op, std::string_view name, const Tensor& t) {
  if (t.empty() || t.rank != 2)
    fail("{}: {} is {}; expected a matrix", op, name, t.empty() ? "absent" : describe(t));
  if (t.dtype != DType::f32 && t.dtype != DType::bf16)
    fail("{}: {} is {}; only f32 and bf16 can be attended", op, name, describe(t));
}

void check_cached(std::string_view op, std::string_view name, const Tensor& t, int64_t width) {
  if (t.empty() || t.rank != 2)
    fail("{}: {} is {}; expected a matrix", op, name, t.empty() ? "absent" : describe(t));
  if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16 &&
      t.dtype != DType::q8_0)
    fail("{}: {} is {}; only f32, bf16, f16 and q8_0 can be attended", op, name, describe(t));
  if (width % block_of(t.dtype).elements != 0)
    fail("{}: {} is {}, of heads of {} numbers, which are not whole blocks of {}", op, name,
         describe(t), width, block_of(t.dtype).elements);
}

void check_transposed(std::string_view op, const AttentionCall& call) {
  const Tensor& k = call.kv->k;
  const int64_t width = call.kv_heads * call.width();
  if (is_quantised(k.dtype) || !k.dense() || k.shape[1] != width || k.shape[2] != kKeyBlock ||
      k.shape[0] * kKeyBlock < call.kv->v.rows())
    fail("{}: k is {}; expected {} [{}, {}, {}] without gaps", op, describe(k),
         is_quantised(k.dtype) ? "f32, bf16 or f16" : name_of(k.dtype),
         (call.kv->v.rows() + kKeyBlock - 1) / kKeyBlock, width, kKeyBlock);
  for (const int64_t row : call.kv->first_row)
    if (row % kKeyBlock != 0)
      fail("{}: a sequence has its first key in row {}; transposed keys begin in multiples of {}",
           op, row, kKeyBlock);
}

void check_heads(std::string_view op, const AttentionCall& call) {
  const Tensor &q = call.q, &k = call.kv->k, &v = call.kv->v;
  check_float(op, "q", q);
  if (call.heads < 1 || call.kv_heads < 1 || call.heads % call.kv_heads != 0)
    fail(
        "{}: {} query heads cannot share {} key/value heads; choose a number of key/value heads "
        "that divides the heads",
        op, call.heads, call.kv_heads);
  if (q.cols() % call.heads != 0)
    fail("{}: q {} cannot be split into {} heads", op, describe(q), call.heads);
  if (v.empty() || v.rank != 2)
    fail("{}: v is {}; expected a matrix", op, v.empty() ? "absent" : describe(v));
  if (v.cols() % call.kv_heads != 0)
    fail("{}: v {} cannot be split into {} key/value heads", op, describe(v), call.kv_heads);
  check_cached(op, "v", v, call.value_width());
  if (call.kv->keys_transposed()) {
    check_transposed(op, call);
  } else {
    check_cached(op, "k", k, call.width());
    check_matrix(op, "k", k, v.rows(), call.kv_heads * call.width(), k.dtype);
  }
  if (call.window < 0)
    fail("{}: the window is {}; it must be 0 (none) or the number of keys that a query sees", op,
         call.window);
  check_matrix(op, "q", q, q.rows(), q.cols(), q.dtype);
  check_matrix(op, "v", v, v.rows(), v.cols(), k.dtype);
}

// The block tables must lead to rows of the view.
void check_tables(std::string_view op, const KvView& kv, std::span<const int32_t> positions) {
  for (int64_t s = 0; s < kv.sequences(); ++s) {
    const int32_t slot = kv.slots[static_cast<size_t>(s)];
    if (slot < 0 || slot >= std::ssize(kv.tables))
      fail("{}: sequence {} has slot {} of {}", op, s, slot, kv.tables.size());
    const std::span<const int32_t> table = kv.table(s);
    for (const int32_t block : table)
      if (block < 0 || (block + 1) * kKeyBlock > kv.v.rows())
        fail("{}: slot {} has block {} beside v {}", op, slot, block, describe(kv.v));
    for (int64_t n = kv.bounds[static_cast<size_t>(s)]; n < kv.bounds[static_cast<size_t>(s) + 1];
         ++n)
      if (const int32_t position = positions[static_cast<size_t>(n)];
          position < 0 || position / kKeyBlock >= std::ssize(table))
        fail("{}: query row {} is at position {}, but its slot {} has room for {} only", op, n,
             position, slot, std::ssize(table) * kKeyBlock);
  }
}

// Every query must lie in a sequence, and every key it sees in the view.
void check_rows(std::string_view op, const AttentionCall& call) {
  const KvView& kv = *call.kv;
  const int64_t n_rows = call.q.rows();
  const size_t sequences = kv.tables.empty() ? kv.first_row.size() : kv.slots.size();
  if (kv.bounds.size() != sequences + 1)
    fail("{}: {} bounds for {} sequences; expected one more than sequences", op, kv.bounds.size(),
         sequences);
  if (!kv.tables.empty() && !kv.first_row.empty())
    fail("{}: sequences have one run of rows each or block tables, not both", op);
  if (static_cast<int64_t>(call.positions.size()) != n_rows)
    fail("{}: {} positions for {} query rows", op, call.positions.size(), n_rows);
  if (kv.bounds.front() != 0 || kv.bounds.back() != n_rows)
    fail("{}: the bounds go from {} to {}; expected 0 to {}, the rows of q", op, kv.bounds.front(),
         kv.bounds.back(), n_rows);
  for (size_t s = 0; s < sequences; ++s)
    if (kv.bounds[s] > kv.bounds[s + 1])
      fail("{}: sequence {} has bounds [{}, {}), which go backwards", op, s, kv.bounds[s],
           kv.bounds[s + 1]);
  if (!kv.tables.empty()) return check_tables(op, kv, call.positions);
  for (size_t s = 0; s < sequences; ++s)
    if (kv.first_row[s] < 0)
      fail("{}: sequence {} has its first key in row {}", op, s, kv.first_row[s]);
  for (size_t s = 0; s < kv.first_row.size(); ++s)
    for (int64_t n = kv.bounds[s]; n < kv.bounds[s + 1]; ++n) {
      const int64_t position = call.positions[static_cast<size_t>(n)];
      if (position < 0 || kv.first_row[s] + position >= kv.v.rows())
        fail(
            "{}: query row {} of sequence {} is at position {}, whose key would be row {} beside v "
            "{}",
            op, n, s, position, kv.first_row[s] + position, describe(kv.v));
    }
}

AttentionTask task_of(const AttentionCall& call, int64_t sequence, int64_t kv_head, int64_t begin,
                      int64_t end) {
  const int64_t first = call.kv->bounds[static_cast<size_t>(sequence)], group = call.group();
  int64_t work = 0, oldest = std::numeric_limits<int64_t>::max(), newest = 0;
  for (int64_t n = begin / group; n * group < end; ++n) {
    const int64_t position = call.positions[static_cast<size_t>(first + n)],
                  here = std::min((n + 1) * group, end) - std::max(n * group, begin);
    work += (position + 1 - call.first_seen(position)) * here;
    oldest = std::min(oldest, call.first_seen(position));
    newest = std::max(newest, position);
  }
  return {sequence, kv_head, begin, end, work, oldest / kStretch, newest / kStretch + 1, nullptr};
}

// The tasks of a sequence. For several `shares`, the first of each head's columns come first, then
// the next ones of each: threads that work through those walk the same keys at about the same time,
// so that a long text's come from memory once for all of them.
void add_tasks(std::vector<AttentionTask>& tasks, const AttentionCall& call, int64_t sequence,
               int64_t columns_per_task, int shares) {
  const size_t at = static_cast<size_t>(sequence);
  const int64_t columns = (call.kv->bounds[at + 1] - call.kv->bounds[at]) * call.group(),
                blocks = (columns + columns_per_task - 1) / columns_per_task;
  for (int share = 0; share < shares; ++share) {
    const Span mine = partition(blocks, share, shares);
    for (int64_t g = 0; g < call.kv_heads; ++g)
      for (int64_t block = mine.begin; block < mine.end; ++block)
        tasks.push_back(task_of(call, sequence, g, block * columns_per_task,
                                std::min((block + 1) * columns_per_task, columns)));
  }
}

int64_t work_of(const std::vector<AttentionTask>& tasks) {
  return std::accumulate(tasks.begin(), tasks.end(), int64_t{0},
                         [](int64_t sum, const AttentionTask& task) { return sum + task.work; });
}

int worthy_parts(const Run& run, const AttentionCall& call,
                 const std::vector<AttentionTask>& tasks) {
  const int64_t multiply_adds = work_of(tasks) * (call.width() + call.value_width());
  return static_cast<int>(std::clamp<int64_t>(multiply_adds / kGrain + 1, 1, run.threads));
}

// How many of `pieces` come nearest to so much of the task's work; 0: neither none nor all.
int64_t pieces_of(const AttentionTask& task, int64_t pieces, int64_t work) {
  const int64_t taken = (pieces * work + task.work / 2) / std::max<int64_t>(task.work, 1);
  return taken < pieces ? taken : 0;
}

// Columns meet a block of keys together once it is laid out: a task of more than these, as in a
// prompt, is cut between columns. With few, as where a text is written, both parts would read all
// the keys, so that it is cut between stretches of them if it has several.
constexpr int64_t kFewColumns = 16;

// Leaves the task about so much of its work and gives `rest` the others. Whether both have some.
bool cut(AttentionTask& task, AttentionTask& rest, int64_t work) {
  const int64_t columns = task.end - task.begin, stretches = task.end_stretch - task.first_stretch;
  const bool keys = task.left != nullptr || (columns <= kFewColumns && stretches > 1);
  const int64_t pieces = keys ? stretches : columns, taken = pieces_of(task, pieces, work);
  if (taken == 0) return false;
  rest = task;
  if (keys) task.end_stretch = rest.first_stretch = task.first_stretch + taken;
  else task.end = rest.begin = task.begin + taken;
  task.work = task.work * taken / pieces;
  rest.work -= task.work;
  return true;
}

// Few tasks, such as three key/value heads of one token for two threads or nine of a prompt, share
// out badly: a task that a share would end in is cut. Returns those that were cut between stretches
// as they were; what their parts leave lies in scratch.
std::vector<AttentionTask> split_at_shares(const AttentionCall& call,
                                           std::vector<AttentionTask>& tasks, int parts,
                                           Arena& scratch) {
  constexpr int kTasksEach = 16;
  std::vector<AttentionTask> whole;
  if (static_cast<int>(tasks.size()) >= kTasksEach * parts) return whole;
  const int64_t total = work_of(tasks);
  int64_t done = 0;  // work of the tasks before `i`
  size_t i = 0;
  for (int part = 1; part < parts; ++part) {
    const int64_t share_end = total * part / parts;
    while (i < tasks.size() && done + tasks[i].work <= share_end) done += tasks[i++].work;
    if (i == tasks.size()) return whole;
    const AttentionTask before = tasks[i];
    AttentionTask rest;
    if (!cut(tasks[i], rest, share_end - done)) continue;
    const int64_t taken = rest.first_stretch - before.first_stretch;
    if (taken > 0) {
      const int64_t floats = StretchSums::floats(before.end - before.begin, call.value_width());
      if (before.left == nullptr) {
        const int64_t stretches = before.end_stretch - before.first_stretch;
        whole.push_back(before);
        whole.back().left = tasks[i].left = static_cast<float*>(
            scratch.alloc_bytes(static_cast<size_t>(stretches * floats) * sizeof(float)));
      }
      rest.left = tasks[i].left + taken * floats;
    }
    tasks.insert(tasks.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
  }
  return whole;
}

// Gives each of `parts` threads a contiguous run of tasks with about the same work.
template <class F>
void run_tasks(Run& run, const AttentionCall& call, const std::vector<AttentionTask>& tasks,
               int parts, const F& work_through) {
  const int64_t total = work_of(tasks);
  std::vector<size_t> cut(static_cast<size_t>(parts) + 1, tasks.size());
  cut[0] = 0;
  int64_t done = 0;
  size_t next = 0;
  for (int part = 1; part < parts; ++part) {
    while (next < tasks.size() && (2 * done + tasks[next].work) * parts < 2 * total * part)
      done += tasks[next++].work;
    cut[static_cast<size_t>(part)] = next;
  }
  parallel_for(parts, parts, 1, [&](int64_t begin, int64_t end, int thread) {
    const size_t from = cut[static_cast<size_t>(begin)], to = cut[static_cast<size_t>(end)];
    work_through(call, std::span(tasks).subspan(from, to - from),
                 run.thread_scratch[static_cast<size_t>(thread)]);
  });
}

// Joins what the parts of these tasks left.
template <class F>
void join_tasks(Run& run, const AttentionCall& call, const std::vector<AttentionTask>& whole,
                const F& join) {
  int64_t numbers = 0;
  for (const AttentionTask& task : whole)
    numbers +=
        (task.end - task.begin) * (task.end_stretch - task.first_stretch) * call.value_width();
  constexpr int64_t kWorthThreads = int64_t{1} << 16;
  const int threads = numbers < kWorthThreads ? 1 : run.threads;
  parallel_for(threads, std::ssize(whole), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i)
      join(call, whole[static_cast<size_t>(i)], run.thread_scratch[static_cast<size_t>(thread)]);
  });
}

}  // namespace

void attention_forward(Run& run, Tensor o, Tensor lse, Tensor q, const KvView& kv,
                       std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
                       float scale, int64_t window) {
  constexpr std::string_view op = "attention_forward";
  if (positions.empty() && q.empty()) return;
  const AttentionCall call{.o = o,
                           .lse = lse,
                           .q = q,
                           .kv = &kv,
                           .do_ = {},
                           .dq = {},
                           .dk = {},
                           .dv = {},
                           .positions = positions,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .scale = scale,
                           .window = window};
  check_heads(op, call);
  check_rows(op, call);
  check_matrix(op, "o", o, q.rows(), heads * call.value_width(), q.dtype);
  if (!lse.empty()) check_matrix(op, "lse", lse, q.rows(), heads, DType::f32);
  choose_isa();
  std::vector<AttentionTask> tasks;
  const bool halves = kv.k.dtype == DType::bf16 && has_bf16_products();
  const int64_t columns = halves ? columns_of_task_bf16() : kKeyBlock;
  const int shares = kv.sequences() == 1 ? run.threads : 1;
  for (int64_t s = 0; s < kv.sequences(); ++s) add_tasks(tasks, call, s, columns, shares);
  const int parts = worthy_parts(run, call, tasks);
  const ArenaScope scope(run.scratch);
  const std::vector<AttentionTask> whole = split_at_shares(call, tasks, parts, run.scratch);
  run_tasks(run, call, tasks, parts, halves ? attention_forward_bf16 : attention_forward_f32);
  join_tasks(run, call, whole, halves ? attention_join_bf16 : attention_join_f32);
}

void attention_backward(Run& run, Tensor dq, Tensor dk, Tensor dv, Tensor do_, Tensor q,
                        const KvView& kv, Tensor o, Tensor lse, std::span<const int32_t> positions,
                        int64_t heads, int64_t kv_heads, float scale, int64_t window) {
  constexpr std::string_view op = "attention_backward";
  if (positions.empty() && q.empty()) return;
  const AttentionCall call{.o = o,
                           .lse = lse,
                           .q = q,
                           .kv = &kv,
                           .do_ = do_,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv,
                           .positions = positions,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .scale = scale,
                           .window = window};
  check_heads(op, call);
  check_rows(op, call);
  if (!kv.tables.empty())
    fail("{}: the keys lie in a cache; only a batch over itself has gradients", op);
  check_matrix(op, "k", kv.k, q.rows(), kv.k.cols(), q.dtype);
  check_matrix(op, "o", o, q.rows(), heads * call.value_width(), q.dtype);
  check_matrix(op, "do", do_, q.rows(), heads * call.value_width(), q.dtype);
  check_matrix(op, "lse", lse, q.rows(), heads, DType::f32);
  check_matrix(op, "dq", dq, q.rows(), q.cols(), q.dtype);
  check_matrix(op, "dk", dk, q.rows(), kv.k.cols(), q.dtype);
  check_matrix(op, "dv", dv, q.rows(), kv.v.cols(), q.dtype);
  for (size_t s = 0; s < kv.first_row.size(); ++s) {
    if (kv.first_row[s] != kv.bounds[s])
      fail(
          "{}: the keys of sequence {} begin in row {}, its queries in row {}; only a batch over "
          "itself has gradients",
          op, s, kv.first_row[s], kv.bounds[s]);
    for (int64_t n = kv.bounds[s]; n < kv.bounds[s + 1]; ++n)
      if (positions[static_cast<size_t>(n)] != n - kv.bounds[s])
        fail("{}: query row {} is at position {}; the positions of sequence {} must count from 0",
             op, n, positions[static_cast<size_t>(n)], s);
  }
  choose_isa();
  std::vector<AttentionTask> tasks;
  const int64_t whole = std::max<int64_t>(q.rows() * call.group(), 1);
  for (size_t s = 0; s < kv.first_row.size(); ++s)
    add_tasks(tasks, call, static_cast<int64_t>(s), whole, 1);
  const bool halves = q.dtype == DType::bf16 && has_bf16_products();
  run_tasks(run, call, tasks, worthy_parts(run, call, tasks),
            halves ? attention_backward_bf16 : attention_backward_f32);
}

}  // namespace moe::ops
