// How attention is cut into tasks, shared by attention.cpp (checks, cutting) and the kernels
// (f32.cpp, bf16.cpp). Each number of the result is written by exactly one task, or joined in one
// order of what several left, so how tasks fall on threads changes no bit.
#pragma once

#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace moe::ops {

// The arguments of a call; what the direction does not use is absent.
struct AttentionCall {
  Tensor o;    // [N, H*Cv]
  Tensor lse;  // [N, H] f32
  Tensor q;    // [N, H*C]
  // k [rows, G*C] or [rows / 64, G*C, 64], v [rows, G*Cv] or [rows / 64, G, 64, Cv]
  const KvView* kv;
  Tensor do_;         // [N, H*Cv]
  Tensor dq, dk, dv;  // [N, H*C], [N, G*C], [N, G*Cv]
  std::span<const int32_t> positions;
  int64_t heads, kv_heads;
  float scale;
  int64_t window;  // keys a query sees, 0: all before it
  float cap;       // scores are cap tanh(score / cap), 0: as they are

  // The first key that a query at `position` sees.
  int64_t first_seen(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
  int64_t group() const { return heads / kv_heads; }
  int64_t width() const { return q.cols() / heads; }
  int64_t value_width() const {
    return kv->values_by_heads() ? kv->v.cols() : kv->v.cols() / kv_heads;
  }
};

// Throw Error where an argument does not fit (call.cpp). Only shapes and lists are looked at, no
// numbers, so that these are the checks of every device.
void check_forward(const AttentionCall& call);
void check_backward(const AttentionCall& call);

// The forward walks a column's keys in stretches of so many positions. Each leaves a maximum m, a
// sum l and an output o of its own, which are joined in their order: so stretches of one column may
// be walked by several threads, and whoever walks them all joins alike.
inline constexpr int64_t kStretch = 8 * kKeyBlock;

// Columns meet a block of keys together once it is laid out: a task of more than these, as in a
// prompt, is cut between columns. With few, as where a text is written, both parts would read all
// the keys, so that it is cut between stretches of them if it has several.
inline constexpr int64_t kFewColumns = 16;

// Columns [begin, end) of one sequence and key/value head, and of their keys in the forward those
// in stretches [first_stretch, end_stretch).
struct AttentionTask {
  int64_t sequence;
  int64_t kv_head;
  int64_t begin, end;
  int64_t work;  // columns times keys, for an even split over threads
  int64_t first_stretch, end_stretch;
  // Where a task that has not all stretches of its columns leaves what they gave, each after the
  // other (StretchSums), for attention_join_*(); else null.
  float* left;
};

// The values of a key/value head from a row of the view on, as far as its block of 64 goes where
// they lie by heads.  [64, Cv]
inline Tensor values_from(const AttentionCall& call, int64_t kv_head, int64_t row) {
  const Tensor& v = call.kv->v;
  const int64_t width = call.value_width(), bytes = bytes_of(v.dtype, width);
  Tensor t = v;
  t.rank = 2;
  t.shape = {kKeyBlock, width};
  const int64_t first =
      call.kv->values_by_heads()
          ? ((row / kKeyBlock * call.kv_heads + kv_head) * kKeyBlock + row % kKeyBlock) * bytes
          : row * v.row_bytes + kv_head * bytes;
  t.data = static_cast<char*>(v.data) + first;
  return t;
}

// The first of the tasks and those after it that are walked together: of few columns each, of one
// sequence and the same stretches, they see the same rows of the view, where heads lie side by
// side.
inline std::span<const AttentionTask> first_together(std::span<const AttentionTask> tasks) {
  if (tasks.empty()) return tasks;
  const AttentionTask& first = tasks.front();
  if (first.end - first.begin > kFewColumns) return tasks.first(1);
  size_t count = 1;
  while (count < tasks.size() && tasks[count].sequence == first.sequence &&
         tasks[count].begin == first.begin && tasks[count].end == first.end &&
         tasks[count].first_stretch == first.first_stretch &&
         tasks[count].end_stretch == first.end_stretch)
    ++count;
  return tasks.first(count);
}

// What a stretch leaves of each of `count` columns whose values have `width` numbers, in whole
// vectors.
struct StretchSums {
  float* highest;  // [count] m
  float* total;    // [count] l
  float* out;      // [count, width] o

  StretchSums(float* at, int64_t count) : highest(at), total(at + count), out(at + 2 * count) {}
  // The same on every machine.
  static int64_t floats(int64_t count, int64_t width) {
    constexpr int64_t kMostLanes = 16;
    return count * (2 + (width + kMostLanes - 1) / kMostLanes * kMostLanes);
  }
};

// Where a task's column j lies: columns of a sequence and key/value head are its queries' heads,
// query after query.
struct AttentionColumn {
  int64_t row, head;
};
inline AttentionColumn column_at(const AttentionCall& call, const AttentionTask& task, int64_t j) {
  const int64_t group = call.group(), column = task.begin + j;
  return {call.kv->bounds[static_cast<size_t>(task.sequence)] + column / group,
          task.kv_head * group + column % group};
}

// Work through `tasks` on the calling thread. A task of the forward holds at most 64 columns, in
// bf16 at most columns_of_task_bf16(); one of the backward is a whole sequence and key/value head:
// it owns the rows of dk, dv and of its heads' dq.
void attention_forward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks,
                           Arena& scratch);
// Joins what the parts of one task left; `whole` is the task as it was before, its stretches those
// that lie at `left`.
void attention_join_f32(const AttentionCall& call, const AttentionTask& whole, Arena& scratch);
void attention_backward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch);
int64_t columns_of_task_bf16();
// The same where k and v are bf16, in the backward all but lse, and has_bf16_products().
void attention_forward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch);
void attention_join_bf16(const AttentionCall& call, const AttentionTask& whole, Arena& scratch);
void attention_backward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                             Arena& scratch);

}  // namespace moe::ops
