// The loops of attention's forward, written once over the inner part that multiplies (f32.cpp,
// bf16.cpp), in the manner of FlashAttention (Dao et al. 2022, algorithm 1; Milakov and Gimelshein
// 2018 for the running maximum). A task is up to 64 columns (query, head) that share one key/value
// head. For each block of 64 keys, with m the running maximum (in bf16 what stands for it,
// forward_bf16-inl.h) and l the running sum of a column:
//   s_jc = scale <k_j, q_c>;  m' = max(m, max_j s_jc);  p_jc = exp(s_jc - m');
//   l' = l exp(m - m') + sum_j p_jc;  o' = o exp(m - m') + sum_j p_jc v_j
// and at the end o / l and lse = m + log l. Where there is a cap c, a pass of its own has made c
// tanh(s / c) of s before (Gemma 2: transformers:gemma2/modeling_gemma2.py). A key beyond a
// column's position or before its window has s = -inf, p = +0 exactly, so it changes no bit whether
// it is walked or not. Each stretch of keys (tasks.h) begins with m = -inf, l = 0, o = 0 anew, and
// its m2, l2, o2 are joined to those of the stretches before it:
//   m' = max(m, m2);  l' = l exp(m - m') + l2 exp(m2 - m');  o' = o exp(m - m') + o2 exp(m2 - m')
// where a stretch of which a column sees nothing changes no bit either.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_FORWARD_INL_H_
#undef MOE_OPS_CPU_ATTENTION_FORWARD_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/attention/tasks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The columns of a task, and what is kept of each from block to block.
struct Columns {
  int64_t count, room;  // columns; the same in whole vectors: what fills up sees what the last
                        // column sees and is never written out
  int64_t width, value_width, value_padded;  // C, Cv, Cv padded
  int64_t oldest, past;                      // a key that some column sees lies in [oldest, past)
  int64_t newest, narrowest;                 // every column sees the keys in [newest, narrowest)
  int32_t* position;                         // [room]
  int32_t* first_seen;                       // [room]
  float* highest;                            // [room] running maximum m
  float* shrink;                             // [room and a vector] exp(m - m') of the block
  float* out;                                // [room, value_padded] running o
};

inline Columns load_columns(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  Columns x{};
  x.count = task.end - task.begin;
  x.room = padded_width(x.count);
  x.width = call.width();
  x.value_width = call.value_width();
  x.value_padded = padded_width(x.value_width);
  x.position = alloc<int32_t>(scratch, x.room);
  x.first_seen = alloc<int32_t>(scratch, x.room);
  x.highest = alloc<float>(scratch, x.room);
  x.shrink = alloc<float>(scratch, x.room + lanes_f32());
  x.out = alloc<float>(scratch, x.room * x.value_padded);
  for (int64_t j = 0; j < x.count; ++j) {
    x.position[j] = call.positions[static_cast<size_t>(column_at(call, task, j).row)];
    x.first_seen[j] = static_cast<int32_t>(call.first_seen(x.position[j]));
  }
  for (int32_t* each : {x.position, x.first_seen})
    std::fill(each + x.count, each + x.room, each[x.count - 1]);
  const auto [low, high] = std::minmax_element(x.position, x.position + x.count);
  x.oldest = std::max(call.first_seen(*low), task.first_stretch * kStretch);
  x.past = std::min(int64_t{*high} + 1, task.end_stretch * kStretch);
  x.newest = call.first_seen(*high);
  x.narrowest = int64_t{*low} + 1;
  return x;
}

// As before the first key of a stretch.
inline void forget(const Columns& x) {
  std::fill_n(x.highest, x.room, -kInfinity);
  std::fill_n(x.out, x.room * x.value_padded, 0.0f);
}

// A block of keys: that at `position` lies in row `row` of the view. Some column of the task sees
// keys [first, end), counted from the block's first.
struct KeyBlock {
  int64_t position, row, first, end;
};

// Columns [begin, begin + count) against the keys [low, high) of a block that they see, counted
// from the block's first; `whole`: all of them see all of these.
struct Panel {
  int64_t begin, count, low, high;
  bool whole;
};

inline Panel panel_of(const Columns& x, const KeyBlock& block, int64_t begin, int64_t count,
                      bool whole) {
  Panel p{begin, count, kKeyBlock, 0, whole};
  for (int64_t j = begin; j < begin + count; ++j) {
    const int64_t low = std::max(x.first_seen[j] - block.position, block.first),
                  high = std::min(x.position[j] + 1 - block.position, block.end);
    if (low >= high) continue;
    p.low = std::min(p.low, low);
    p.high = std::max(p.high, high);
  }
  return p;
}

// The key/value head of a task in a block of transposed keys, [C, 64].
template <class T>
const T* transposed_keys(const AttentionCall& call, const AttentionTask& task, int64_t row,
                         int64_t width) {
  return static_cast<const T*>(call.kv->k.data) +
         (row / kKeyBlock * call.kv_heads + task.kv_head) * width * kKeyBlock;
}

// An inner part holds the columns x and its operands, and has
//   load(block, ahead)     the block's keys and values; what is `ahead` may be fetched meanwhile
//   attend(block, whole)   s, p and o' of all columns, and m, l and exp(m - m') move on; `whole`:
//                          all columns see all of the block's keys that are seen
//   begin()                m = -inf, l = 0, o = 0
//   finish()               what it has put off until now
//   highest_of(column)     m
//   total_of(column)       l
// and, where attend() is attend_panels(),
//   columns_at_once(whole) columns that make a panel
//   scores(panel)          s
//   softmax(panel)         p, and m, l and exp(m - m') move on
//   values(panel)          o'
// The walk is inlined, so that an inner part of more instructions than the target has (bf16.cpp)
// needs no calls for its steps.

// Panel after panel.
template <class Inner>
HWY_INLINE void attend_panels(Inner& inner, const KeyBlock& block, bool whole) {
  const Columns& x = inner.x;
  const int64_t step = inner.columns_at_once(whole);
  for (int64_t c = 0; c < x.count; c += step) {
    const Panel panel = panel_of(x, block, c, std::min(step, x.count - c), whole);
    if (panel.low >= panel.high) continue;
    inner.scores(panel);
    inner.softmax(panel);
    inner.values(panel);
  }
}

// Joins to a column's sums what a stretch left of it.  out, o [padded width]
inline void join(float& highest, float& total, float* out, float m, float l, const float* o,
                 int64_t width) {
  const DF32 d;
  const float most = std::max(highest, m);
  // where both are the same, -inf - -inf must not come about
  const auto factor = [&](float before) HWY_ATTR {
    return before == most ? 1.0f : hn::GetLane(ExpNormal(d, hn::Set(d, before - most)));
  };
  const float mine = factor(highest), theirs = factor(m);
  highest = most;
  total = total * mine + l * theirs;
  for (int64_t c = 0; c < width; c += lanes_f32())
    hn::StoreU(hn::MulAdd(hn::LoadU(d, o + c), hn::Set(d, theirs),
                          hn::Mul(hn::LoadU(d, out + c), hn::Set(d, mine))),
               d, out + c);
}

inline void store_column(const AttentionCall& call, const AttentionTask& task, int64_t column,
                         const float* out, float highest, float total) {
  const AttentionColumn at = column_at(call, task, column);
  const int64_t width = call.value_width();
  store_row(call.o, at.row, at.head * width, width, out, 1.0f / total);
  if (!call.lse.empty()) call.lse.row<float>(at.row)[at.head] = highest + std::log(total);
}

// The sums of a task's columns over `stretches` of them, joined as they come or left to be joined
// later. Joining the first to nothing would change no bit, so that one alone needs no room.
class Stretches {
 public:
  Stretches(const AttentionCall& call, const AttentionTask& task, int64_t value_padded,
            int64_t stretches, Arena& scratch)
      : call_(call),
        task_(task),
        count_(task.end - task.begin),
        width_(value_padded),
        left_(task.left),
        alone_(stretches == 1 && left_ == nullptr),
        sums_(left_ != nullptr ? left_ : alloc<float>(scratch, alone_ ? 0 : floats()), count_) {
    if (left_ != nullptr || alone_) return;
    std::fill_n(sums_.highest, count_, -kInfinity);
    std::fill_n(sums_.total, count_, 0.0f);
    std::fill_n(sums_.out, count_ * width_, 0.0f);
  }
  // What a stretch gave for a column.
  void add(int64_t j, float highest, float total, const float* out) const {
    if (alone_) return store_column(call_, task_, j, out, highest, total);
    if (left_ == nullptr)
      return join(sums_.highest[j], sums_.total[j], sums_.out + j * width_, highest, total, out,
                  width_);
    sums_.highest[j] = highest;
    sums_.total[j] = total;
    std::copy_n(out, width_, sums_.out + j * width_);
  }
  void next() {
    if (left_ != nullptr) sums_ = StretchSums(left_ += floats(), count_);
  }
  void store() const {
    for (int64_t j = 0; left_ == nullptr && !alone_ && j < count_; ++j)
      store_column(call_, task_, j, sums_.out + j * width_, sums_.highest[j], sums_.total[j]);
  }

 private:
  int64_t floats() const { return StretchSums::floats(count_, width_); }

  const AttentionCall& call_;
  const AttentionTask& task_;
  int64_t count_, width_;
  float* left_;
  bool alone_;
  StretchSums sums_;
};

// What a walk meets some steps on: a task's keys from a row of the view on.
struct Ahead {
  const AttentionTask* task;
  int64_t row;
};

// Lines of memory that are fetched a few at a time: a run of them, and behind it rows that lie
// apart.
struct Lines {
  const char* at = nullptr;
  int64_t left = 0;
  const char* row = nullptr;
  int64_t rows = 0, row_lines = 0, row_bytes = 0;

  int64_t count() const { return left + rows * row_lines; }
  // `kNearest`: to the first level, else to the second.
  template <bool kNearest>
  HWY_INLINE void fetch_some(int64_t most) {
    while (most > 0) {
      if (left == 0) {
        if (rows == 0) return;
        --rows;
        at = row;
        left = row_lines;
        row += row_bytes;
      }
      const int64_t some = std::min(most, left);
      for (int64_t i = 0; i < some; ++i)
        __builtin_prefetch(at + i * kLineBytes, 0, kNearest ? 3 : 2);
      at += some * kLineBytes;
      left -= some;
      most -= some;
    }
  }
  static constexpr int64_t kLineBytes = 64;
  static constexpr int64_t in(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }
};

// A block's keys, where they lie transposed, and its values.
inline Lines lines_of(const AttentionCall& call, const Ahead& of) {
  Lines lines;
  if (call.kv->keys_transposed()) {
    const int64_t bytes = bytes_of(call.kv->k.dtype, call.width() * kKeyBlock);
    lines.at = static_cast<const char*>(call.kv->k.data) +
               (of.row / kKeyBlock * call.kv_heads + of.task->kv_head) * bytes;
    lines.left = Lines::in(bytes);
  }
  const Tensor values = values_from(call, of.task->kv_head, of.row);
  lines.row = static_cast<const char*>(values.data);
  lines.rows = kKeyBlock;
  lines.row_lines = Lines::in(bytes_of(values.dtype, call.value_width()));
  lines.row_bytes = values.row_bytes;
  return lines;
}

// What a product does beside multiplying while lines are fetched, so many of them a step.
struct Fetching {
  static constexpr int64_t kRows = 8;
  Lines& lines;
  int64_t at_once;
  HWY_INLINE void operator()() const { lines.fetch_some<true>(at_once); }
};

// A walk over the blocks of keys that tasks see together, and in each block task after task; `then`
// is walked next, in the same manner.
struct Walk {
  const AttentionCall& call;
  std::span<const AttentionTask> together, then;
  int64_t last_block;  // position of the last block's first key

  int64_t row(int64_t position) const { return call.kv->row(together.front().sequence, position); }
  // So many steps behind task `which` in the block at `position`. Where that is nowhere, what was
  // read just now: to fetch it does nothing.
  Ahead ahead(size_t which, int64_t position, int64_t steps) const {
    const int64_t step = static_cast<int64_t>(which) + steps, count = std::ssize(together),
                  further = position + step / count * kKeyBlock;
    if (further <= last_block) return {&together[static_cast<size_t>(step % count)], row(further)};
    if (!then.empty()) {
      const AttentionTask& task = then.front();
      const int64_t beyond = step - ((last_block - position) / kKeyBlock + 1) * count,
                    newest = call.positions[static_cast<size_t>(column_at(call, task, 0).row)],
                    first = std::max(call.first_seen(newest) / kKeyBlock * kKeyBlock,
                                     task.first_stretch * kStretch),
                    key = first + beyond / std::ssize(then) * kKeyBlock;
      // A later column of the task may see keys before those that its first one sees.
      if (key <= newest)
        return {&then[static_cast<size_t>(beyond % std::ssize(then))],
                call.kv->row(task.sequence, key)};
    }
    return {&together[which], row(position)};
  }
};

// Works through the tasks that are walked together, so that a cache is read nearly in the order in
// which it lies. Returns those behind them.
template <class Inner>
HWY_INLINE std::span<const AttentionTask> forward_tasks(const AttentionCall& call,
                                                        std::span<const AttentionTask> tasks,
                                                        Arena& scratch) {
  const ArenaScope scope(scratch);
  const auto next = [](std::span<const AttentionTask> of) {
    return Inner::kTogether ? first_together(of) : of.first(of.empty() ? 0 : 1);
  };
  const std::span<const AttentionTask> together = next(tasks),
                                       others = tasks.subspan(together.size());
  std::vector<Inner> inners;
  inners.reserve(together.size());
  for (const AttentionTask& task : together)
    inners.emplace_back(call, task, inners.empty() ? nullptr : &inners.front(), scratch);
  const Columns& x = inners.front().x;  // of all of them but for the numbers
  const Walk walk{call, together, next(others), (x.past - 1) / kKeyBlock * kKeyBlock};
  const int64_t first = x.oldest / kStretch, end = (x.past + kStretch - 1) / kStretch;
  std::vector<Stretches> stretches;
  stretches.reserve(together.size());
  for (const AttentionTask& task : together)
    stretches.emplace_back(call, task, x.value_padded, end - first, scratch);
  for (int64_t begin = first * kStretch; begin < x.past; begin += kStretch) {
    for (Inner& inner : inners) inner.begin();
    for (int64_t at = std::max(begin, x.oldest / kKeyBlock * kKeyBlock);
         at < std::min(begin + kStretch, x.past); at += kKeyBlock) {
      const KeyBlock block{at, walk.row(at), std::max<int64_t>(x.oldest - at, 0),
                           std::min(x.past - at, kKeyBlock)};
      const bool whole = x.newest <= at + block.first && at + block.end <= x.narrowest;
      for (size_t i = 0; i < inners.size(); ++i) {
        inners[i].load(block, walk.ahead(i, at, inners[i].steps_ahead()));
        inners[i].attend(block, whole);
      }
    }
    for (size_t i = 0; i < inners.size(); ++i) {
      Inner& inner = inners[i];
      inner.finish();
      for (int64_t j = 0; j < x.count; ++j)
        stretches[i].add(j, inner.highest_of(j), inner.total_of(j),
                         inner.x.out + j * x.value_padded);
      stretches[i].next();
    }
  }
  for (const Stretches& each : stretches) each.store();
  return others;
}

// Joins what parts of a task left.
inline void join_task(const AttentionCall& call, const AttentionTask& whole, Arena& scratch) {
  const ArenaScope scope(scratch);
  const int64_t count = whole.end - whole.begin, width = padded_width(call.value_width()),
                floats = StretchSums::floats(count, width);
  AttentionTask joined = whole;
  joined.left = nullptr;
  const Stretches stretches(call, joined, width, whole.end_stretch - whole.first_stretch, scratch);
  for (int64_t s = whole.first_stretch; s < whole.end_stretch; ++s) {
    const StretchSums from(whole.left + (s - whole.first_stretch) * floats, count);
    for (int64_t j = 0; j < count; ++j)
      stretches.add(j, from.highest[j], from.total[j], from.out + j * width);
  }
  stretches.store();
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
