// Causal attention: entry points and the cutting of a call into tasks. The checks are in
// call.cpp, the kernels in forward-inl.h and backward-inl.h.

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "core/threads.h"
#include "ops/cpu/attention/tasks.h"
#include "ops/cpu/isa.h"

namespace moe::ops::cpu {
namespace {

// Below this many multiply-adds a thread costs more than it brings.
constexpr int64_t kGrain = int64_t{1} << 16;

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

// Leaves the task about so much of its work and gives `rest` the other columns. Whether both have
// some.
bool cut_columns(AttentionTask& task, AttentionTask& rest, int64_t work) {
  const int64_t columns = task.end - task.begin,
                taken = (columns * work + task.work / 2) / std::max<int64_t>(task.work, 1);
  if (taken == 0 || taken >= columns || task.left != nullptr) return false;
  rest = task;
  task.end = rest.begin = task.begin + taken;
  task.work = task.work * taken / columns;
  rest.work -= task.work;
  return true;
}

// Cuts tasks [i, i + count), which see the same stretches, at the border of stretches next to so
// much of their work: behind them come as many tasks with the rest. Those that were never cut join
// `whole`. False, and nothing is done, where no border is within `slack` of it, or columns are
// many.
bool cut_stretches(const AttentionCall& call, std::vector<AttentionTask>& tasks, size_t i,
                   size_t count, int64_t work, int64_t slack, std::vector<AttentionTask>& whole,
                   Arena& scratch) {
  const auto at = tasks.begin() + static_cast<std::ptrdiff_t>(i);
  const AttentionTask first = *at;
  const auto position_of = [&](int64_t column) -> int64_t {
    return call.positions[static_cast<size_t>(column_at(call, first, column).row)];
  };
  const int64_t columns = first.end - first.begin,
                oldest = std::max(call.first_seen(position_of(0)), first.first_stretch * kStretch),
                past = std::min(position_of(columns - 1) + 1, first.end_stretch * kStretch),
                total = first.work * static_cast<int64_t>(count);
  if (columns > kFewColumns || past <= oldest || total == 0) return false;
  const int64_t border = (oldest + (past - oldest) * work / total + kStretch / 2) / kStretch,
                keys = border * kStretch - oldest;
  if (border <= first.first_stretch || border >= first.end_stretch ||
      std::abs(total * keys / (past - oldest) - work) > slack)
    return false;
  const int64_t floats = StretchSums::floats(columns, call.value_width()),
                taken = border - first.first_stretch;
  std::vector<AttentionTask> rest(at, at + static_cast<std::ptrdiff_t>(count));
  for (size_t h = 0; h < count; ++h) {
    AttentionTask& task = tasks[i + h];
    if (task.left == nullptr) {
      const int64_t stretches = first.end_stretch - first.first_stretch;
      task.left = static_cast<float*>(
          scratch.alloc_bytes(static_cast<size_t>(stretches * floats) * sizeof(float)));
      whole.push_back(task);
    }
    rest[h].left = task.left + taken * floats;
    task.end_stretch = rest[h].first_stretch = border;
    task.work = task.work * keys / (past - oldest);
    rest[h].work -= task.work;
  }
  tasks.insert(at + static_cast<std::ptrdiff_t>(count), rest.begin(), rest.end());
  return true;
}

// Few tasks, such as three key/value heads of one token for two threads or nine of a prompt, share
// out badly: tasks that a share would end in are cut, those that are walked together all at once if
// that is nearly even. Returns those that were cut between stretches as they were; what their parts
// leave lies in scratch.
std::vector<AttentionTask> split_at_shares(const AttentionCall& call,
                                           std::vector<AttentionTask>& tasks, int parts,
                                           Arena& scratch) {
  constexpr int kTasksEach = 16, kSlack = 16;
  std::vector<AttentionTask> whole;
  const int64_t total = work_of(tasks);
  int64_t done = 0;  // work of the tasks before `i`
  size_t i = 0;
  for (int part = 1; part < parts; ++part) {
    const int64_t share_end = total * part / parts;
    size_t count = 0;
    for (; i < tasks.size(); i += count) {
      const std::span<const AttentionTask> together = first_together(std::span(tasks).subspan(i));
      count = together.size();
      if (done + tasks[i].work * std::ssize(together) > share_end) break;
      done += tasks[i].work * std::ssize(together);
    }
    if (i == tasks.size()) return whole;
    if (cut_stretches(call, tasks, i, count, share_end - done, total / parts / kSlack, whole,
                      scratch))
      continue;
    if (static_cast<int>(tasks.size()) >= kTasksEach * parts) continue;
    while (i < tasks.size() && done + tasks[i].work <= share_end) done += tasks[i++].work;
    const int64_t mine = share_end - done;
    if (cut_stretches(call, tasks, i, 1, mine, std::min(mine, tasks[i].work - mine), whole,
                      scratch))
      continue;
    AttentionTask rest;
    if (cut_columns(tasks[i], rest, mine))
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
                       float scale, int64_t window, float cap) {
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
                           .window = window,
                           .cap = cap};
  check_forward(call);
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
                        int64_t heads, int64_t kv_heads, float scale, int64_t window, float cap) {
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
                           .window = window,
                           .cap = cap};
  check_backward(call);
  choose_isa();
  std::vector<AttentionTask> tasks;
  const int64_t whole = std::max<int64_t>(q.rows() * call.group(), 1);
  for (size_t s = 0; s < kv.first_row.size(); ++s)
    add_tasks(tasks, call, static_cast<int64_t>(s), whole, 1);
  const bool halves = q.dtype == DType::bf16 && has_bf16_products();
  run_tasks(run, call, tasks, worthy_parts(run, call, tasks),
            halves ? attention_backward_bf16 : attention_backward_f32);
}

}  // namespace moe::ops::cpu
