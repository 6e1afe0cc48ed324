// Forward kernel of attention, in the manner of FlashAttention (Dao et al. 2022, algorithm 1; Milakov and Gimelshein 2018 for the running maximum).
// A task is up to 64 columns (query, head) that share one key/value head. Scores are held transposed, [key, column]: then softmax runs down the lanes of a
// vector, each column alone, and keys are read where they lie, one broadcast at a time. For each block of 64 keys, with m the running maximum and l the running
// sum of a column:
//   s_jc = <k_j, scale q_c>;  m' = max(m, max_j s_jc);  p_jc = exp(s_jc - m');  l' = l exp(m - m') + sum_j p_jc;  o' = o exp(m - m') + sum_j p_jc v_j
// and at the end o / l and lse = m + log l. A key beyond a column's position or before its window has s = -inf, p = +0 exactly, so it changes no bit whether it
// is walked or not.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/attention_tasks.h"
#include "ops/cpu/block_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// One task's state. Columns are padded to whole vectors; a padded column has q = 0 and is never written out.
struct Columns {
  int64_t count, padded;  // columns; a multiple of the lanes
  int64_t widest;         // the last key any column sees
  int64_t narrowest;      // the last key every column sees
  int64_t oldest;         // the first key any column sees
  int64_t newest;         // the first key that every column sees
  int32_t reach;          // a column at position p sees nothing before p - reach
  int64_t value_padded;   // Cv padded
  int32_t* position;      // [padded]
  float* qt;              // [C padded, padded] scale * q, transposed
  float* score;           // [64, padded] scores of a block, then their exponentials
  float* highest;         // [padded] running maximum m
  float* total;           // [padded] running sum l
  float* shrink;          // [padded] exp(m - m') of the block
  float* out;             // [padded, value_padded] running o
  float* k_copy;          // [64, C padded]
  float* v_copy;          // [64, value_padded]
};

struct ColumnAt {
  int64_t row, head;
};
HWY_INLINE ColumnAt column_at(const AttentionCall& call, const AttentionTask& task, int64_t j) {
  const int64_t group = call.group();
  return {call.kv->bounds[static_cast<size_t>(task.sequence)] + (task.begin + j) / group, task.kv_head * group + (task.begin + j) % group};
}

Columns load_columns(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const int64_t width = call.width(), width_padded = padded_width(width);
  Columns x{};
  x.count = task.end - task.begin;
  x.padded = padded_width(x.count);
  x.value_padded = padded_width(call.value_width());
  x.position = static_cast<int32_t*>(scratch.alloc_bytes(static_cast<size_t>(x.padded) * sizeof(int32_t)));
  x.qt = alloc_f32(scratch, width_padded * x.padded);
  x.score = alloc_f32(scratch, kAttentionBlock * x.padded);
  x.highest = alloc_f32(scratch, x.padded);
  x.total = alloc_f32(scratch, x.padded);
  x.shrink = alloc_f32(scratch, x.padded);
  x.out = alloc_f32(scratch, x.padded * x.value_padded);
  x.k_copy = alloc_f32(scratch, kAttentionBlock * width_padded);
  x.v_copy = alloc_f32(scratch, kAttentionBlock * x.value_padded);
  float* q = alloc_f32(scratch, x.padded * width_padded);
  for (int64_t j = 0; j < x.count; ++j) {
    const ColumnAt at = column_at(call, task, j);
    load_row(q + j * width_padded, call.q, at.row, at.head * width, width, width_padded, call.scale);
    x.position[j] = call.positions[static_cast<size_t>(at.row)];
  }
  std::fill(q + x.count * width_padded, q + x.padded * width_padded, 0.0f);
  std::fill(x.position + x.count, x.position + x.padded, x.position[x.count - 1]);
  transpose_block(x.qt, x.padded, q, width_padded, x.padded, width_padded);
  const auto [low, high] = std::minmax_element(x.position, x.position + x.count);
  x.narrowest = *low;
  x.widest = *high;
  x.oldest = call.first_seen(*low);
  x.newest = call.first_seen(*high);
  x.reach = call.window > 0 ? static_cast<int32_t>(std::min<int64_t>(call.window - 1, std::numeric_limits<int32_t>::max() / 2))
                            : std::numeric_limits<int32_t>::max() / 2;
  std::fill(x.highest, x.highest + x.padded, -std::numeric_limits<float>::infinity());
  std::fill(x.total, x.total + x.padded, 0.0f);
  std::fill(x.out, x.out + x.padded * x.value_padded, 0.0f);
  return x;
}

// Softmax of a block for one vector of columns: x.score becomes p, and m, l and exp(m - m') move on. `first_key` is the position of the block's first key.
template <bool kMasked>
HWY_INLINE void softmax_vector(const Columns& x, int64_t column, int64_t first_key, int64_t keys) {
  const DF32 d;
  const I32For<DF32> di;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  float* score = x.score + column;
  const auto visible = hn::Sub(hn::LoadU(di, x.position + column), hn::Set(di, static_cast<int32_t>(first_key)));
  const auto before_window = hn::Sub(visible, hn::Set(di, x.reach));
  const auto before = hn::LoadU(d, x.highest + column);
  auto highest = before;
  for (int64_t j = 0; j < keys; ++j) {
    auto s = hn::LoadU(d, score + j * x.padded);
    if constexpr (kMasked) {
      const auto key = hn::Set(di, static_cast<int32_t>(j));
      const auto hidden = hn::Or(hn::Gt(key, visible), hn::Lt(key, before_window));
      s = hn::IfThenElse(hn::RebindMask(d, hidden), minus_infinity, s);
      hn::StoreU(s, d, score + j * x.padded);
    }
    highest = hn::Max(highest, s);
  }
  // A column that has seen nothing yet keeps a maximum of -inf and sums of 0; -inf - -inf must not come about.
  auto level = highest;
  if constexpr (kMasked) level = hn::IfThenZeroElse(hn::Eq(highest, minus_infinity), highest);
  const auto shrink = exp_softmax(d, hn::Sub(before, level));
  auto total = hn::Mul(hn::LoadU(d, x.total + column), shrink);
  for (int64_t j = 0; j < keys; ++j) {
    const auto p = exp_softmax(d, hn::Sub(hn::LoadU(d, score + j * x.padded), level));
    hn::StoreU(p, d, score + j * x.padded);
    total = hn::Add(total, p);
  }
  hn::StoreU(highest, d, x.highest + column);
  hn::StoreU(total, d, x.total + column);
  hn::StoreU(shrink, d, x.shrink + column);
}

// out[column, :] *= exp(m - m'); a factor of 1 is skipped, for it changes nothing.
void shrink_rows(const Columns& x, int64_t begin, int64_t end) {
  const DF32 d;
  for (int64_t j = begin; j < end; ++j) {
    if (x.shrink[j] == 1.0f) continue;
    const auto factor = hn::Set(d, x.shrink[j]);
    float* row = x.out + j * x.value_padded;
    for (int64_t c = 0; c < x.value_padded; c += lanes_f32()) hn::StoreU(hn::Mul(hn::LoadU(d, row + c), factor), d, row + c);
  }
}

// Columns [begin, end), whole vectors, against `keys` keys from position first_key on. k and v begin at that key.
void attend_block(const AttentionCall& call, const Columns& x, int64_t begin, int64_t end, BlockB k, BlockB v, int64_t first_key, int64_t keys, bool masked) {
  block_product<false>(keys, end - begin, call.width(), {k.data, k.ld, 1}, x.qt + begin, x.padded, x.score + begin, x.padded);
  for (int64_t c = begin; c < end; c += lanes_f32()) {
    if (masked) softmax_vector<true>(x, c, first_key, keys);
    else softmax_vector<false>(x, c, first_key, keys);
  }
  const int64_t last = std::min(end, x.count);
  if (first_key > 0) shrink_rows(x, begin, last);
  block_product<true>(last - begin, x.value_padded, keys, {x.score + begin, 1, x.padded}, v.data, v.ld, x.out + begin * x.value_padded, x.value_padded);
}

void store_columns(const AttentionCall& call, const AttentionTask& task, const Columns& x) {
  const int64_t value_width = call.value_width();
  for (int64_t j = 0; j < x.count; ++j) {
    const ColumnAt at = column_at(call, task, j);
    store_row(call.o, at.row, at.head * value_width, value_width, x.out + j * x.value_padded, 1.0f / x.total[j]);
    if (!call.lse.empty()) call.lse.row<float>(at.row)[at.head] = x.highest[j] + std::log(x.total[j]);
  }
}

void forward_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const ArenaScope scope(scratch);
  const KvView& kv = *call.kv;
  const int64_t width = call.width(), value_width = call.value_width();
  const Columns x = load_columns(call, task, scratch);
  const bool k_once = x.padded <= lanes_f32(), v_once = x.count <= 2 * kTileRows;
  for (int64_t first_key = x.oldest / kAttentionBlock * kAttentionBlock; first_key <= x.widest; first_key += kAttentionBlock) {
    const int64_t keys = std::min(kAttentionBlock, x.widest + 1 - first_key);
    const int64_t unseen = std::max<int64_t>(x.oldest - first_key, 0);  // keys before every column's window, which are not read
    const int64_t row = kv.first_row[static_cast<size_t>(task.sequence)] + first_key + unseen;
    const BlockB k = view_block(kv.k, row, keys - unseen, task.kv_head * width, width, x.k_copy, k_once);
    const BlockB v = view_block(kv.v, row, keys - unseen, task.kv_head * value_width, value_width, x.v_copy, v_once);
    if (first_key >= x.newest && first_key + keys - 1 <= x.narrowest) {
      attend_block(call, x, 0, x.padded, k, v, first_key, keys, false);
      continue;
    }
    // On the diagonal and at the window's edge a panel of one vector meets only the keys that one of its columns sees.
    for (int64_t c = 0; c < x.padded; c += lanes_f32()) {
      const auto [low, high] = std::minmax_element(x.position + c, x.position + c + lanes_f32());
      const int64_t begin = std::max<int64_t>(call.first_seen(*low) - first_key, 0), end = std::min<int64_t>(keys, *high + 1 - first_key);
      if (begin >= end) continue;
      const int64_t skipped = begin - unseen;
      attend_block(call, x, c, c + lanes_f32(), {k.data + skipped * k.ld, k.ld}, {v.data + skipped * v.ld, v.ld}, first_key + begin, end - begin, true);
    }
  }
  store_columns(call, task, x);
}

void forward_tasks(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  for (const AttentionTask& task : tasks) forward_task(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {

HWY_EXPORT(forward_tasks);

void attention_forward_tasks(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  HWY_DYNAMIC_DISPATCH(forward_tasks)(call, tasks, scratch);
}

}  // namespace moe::ops
#endif
