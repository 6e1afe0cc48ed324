// Forward kernel of attention, in the manner of FlashAttention (Dao et al. 2022, algorithm 1; Milakov and Gimelshein 2018 for the running maximum).
// A task is up to 64 columns (query, head) that share one key/value head. Scores are held transposed, [key, column]: then softmax runs down the lanes of a
// vector, each column alone, and keys are read where they lie, one broadcast at a time. For each block of 64 keys, with m the running maximum and l the running
// sum of a column:
//   s_jc = <k_j, scale q_c>;  m' = max(m, max_j s_jc);  p_jc = exp(s_jc - m');  l' = l exp(m - m') + sum_j p_jc;  o' = o exp(m - m') + sum_j p_jc v_j
// and at the end o / l and lse = m + log l. A key beyond a column's position or before its window has s = -inf, p = +0 exactly, so it changes no bit whether it
// is walked or not.
// Where a task has few columns, as when a text is written token by token, and keys lie transposed, the lanes are keys instead: scores are held [column, key]
// and no lane goes empty. Each score is the same chain over the width and each sum the same chain over the keys, so both ways give the same bits.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/attention/attention_tasks.h"
#include "ops/cpu/quant/block_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// One task's state. Columns that lie in lanes are padded to whole vectors; a padded column has q = 0 and is never written out.
struct Columns {
  int64_t count, padded;  // columns; a multiple of the lanes, or `count` where lanes are keys
  int64_t widest;         // the last key any column sees
  int64_t narrowest;      // the last key every column sees
  int64_t oldest;         // the first key any column sees
  int64_t newest;         // the first key that every column sees
  int32_t reach;          // a column at position p sees nothing before p - reach
  int64_t value_padded;   // Cv padded
  int32_t* position;      // [padded]
  bool by_key;            // lanes are keys
  float* q;               // [padded, C padded] scale * q
  float* qt;              // [C padded, padded] the same transposed, where lanes are columns
  float* score;           // [64, padded], or [padded, 64] where lanes are keys: scores of a block, then their exponentials
  float* highest;         // [padded] running maximum m
  float* total;           // [padded] running sum l
  float* shrink;          // [padded] exp(m - m') of the block
  float* out;             // [padded, value_padded] running o
  float* k_copy;          // [64, C padded] or [C, 64]
  float* v_copy;          // [64, value_padded]
};

Columns load_columns(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const int64_t width = call.width(), width_padded = padded_width(width);
  Columns x{};
  x.count = task.end - task.begin;
  x.by_key = call.kv->keys_transposed() && 2 * x.count <= lanes_f32();
  x.padded = x.by_key ? x.count : padded_width(x.count);
  x.value_padded = padded_width(call.value_width());
  x.position = static_cast<int32_t*>(scratch.alloc_bytes(static_cast<size_t>(x.padded) * sizeof(int32_t)));
  if (!x.by_key) x.qt = alloc_f32(scratch, width_padded * x.padded);
  x.score = alloc_f32(scratch, kAttentionBlock * x.padded);
  x.highest = alloc_f32(scratch, x.padded);
  x.total = alloc_f32(scratch, x.padded);
  x.shrink = alloc_f32(scratch, x.padded);
  x.out = alloc_f32(scratch, x.padded * x.value_padded);
  x.k_copy = alloc_f32(scratch, kAttentionBlock * width_padded);
  x.v_copy = alloc_f32(scratch, kAttentionBlock * x.value_padded);
  x.q = alloc_f32(scratch, x.padded * width_padded);
  for (int64_t j = 0; j < x.count; ++j) {
    const AttentionColumn at = column_at(call, task, j);
    load_row(x.q + j * width_padded, call.q, at.row, at.head * width, width, width_padded, call.scale);
    x.position[j] = call.positions[static_cast<size_t>(at.row)];
  }
  std::fill(x.q + x.count * width_padded, x.q + x.padded * width_padded, 0.0f);
  std::fill(x.position + x.count, x.position + x.padded, x.position[x.count - 1]);
  if (!x.by_key) transpose_block(x.qt, x.padded, x.q, width_padded, x.padded, width_padded);
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
  const auto shrink = ExpNormal(d, hn::Sub(before, level));
  auto total = hn::Mul(hn::LoadU(d, x.total + column), shrink);
  for (int64_t j = 0; j < keys; ++j) {
    const auto p = ExpNormal(d, hn::Sub(hn::LoadU(d, score + j * x.padded), level));
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
void attend_block(const AttentionCall& call, const Columns& x, int64_t begin, int64_t end, BlockA k, BlockB v, int64_t first_key, int64_t keys, bool masked) {
  block_product<false>(keys, end - begin, call.width(), k, x.qt + begin, x.padded, x.score + begin, x.padded);
  for (int64_t c = begin; c < end; c += lanes_f32()) {
    if (masked) softmax_vector<true>(x, c, first_key, keys);
    else softmax_vector<false>(x, c, first_key, keys);
  }
  const int64_t last = std::min(end, x.count);
  if (first_key > 0) shrink_rows(x, begin, last);
  block_product<true>(last - begin, x.value_padded, keys, {x.score + begin, 1, x.padded}, v.data, v.ld, x.out + begin * x.value_padded, x.value_padded);
}

// Softmax of one column over `keys` keys that lie in the lanes: as softmax_vector, term by term.
void softmax_keys(const Columns& x, int64_t column, int64_t first_key, int64_t keys) {
  const DF32 d;
  const I32For<DF32> di;
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  float* score = x.score + column * kAttentionBlock;
  const auto newest = hn::Set(di, static_cast<int32_t>(std::min<int64_t>(x.position[column] - first_key, keys - 1)));
  const auto oldest = hn::Set(di, static_cast<int32_t>(x.position[column] - first_key - x.reach));
  auto most = hn::Set(d, minus_infinity);
  for (int64_t j = 0; j < keys; j += lanes_f32()) {
    const auto key = hn::Iota(di, static_cast<int32_t>(j));
    const auto hidden = hn::Or(hn::Gt(key, newest), hn::Lt(key, oldest));
    const auto s = hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, minus_infinity), hn::LoadU(d, score + j));
    hn::StoreU(s, d, score + j);
    most = hn::Max(most, s);
  }
  const float before = x.highest[column], highest = std::max(before, MaxLanesFixed(d, most));
  const float level = highest == minus_infinity ? 0.0f : highest;
  for (int64_t j = 0; j < keys; j += lanes_f32()) hn::StoreU(ExpNormal(d, hn::Sub(hn::LoadU(d, score + j), hn::Set(d, level))), d, score + j);
  x.highest[column] = highest;
  x.shrink[column] = hn::GetLane(ExpNormal(d, hn::Set(d, before - level)));
}

// l' = l exp(m - m') + sum_j p_j, key after key; the chains of kColumns columns run beside each other.
template <int kColumns>
HWY_INLINE void add_keys(const Columns& x, int64_t column, int64_t keys) {
  float total[kColumns];
  for (int c = 0; c < kColumns; ++c) total[c] = x.total[column + c] * x.shrink[column + c];
  const float* p = x.score + column * kAttentionBlock;
  for (int64_t j = 0; j < keys; ++j)
    for (int c = 0; c < kColumns; ++c) total[c] += p[c * kAttentionBlock + j];
  for (int c = 0; c < kColumns; ++c) x.total[column + c] = total[c];
}

// All columns against `keys` keys from position first_key on, a whole number of vectors into their block. The first `unseen` of them no column sees.
// kt [C, 64] begins at first_key, v at the first key that is seen.
template <class K, class V>
void attend_keys(const AttentionCall& call, const Columns& x, const K* kt, const V* v, int64_t ldv, int64_t first_key, int64_t keys, int64_t unseen) {
  block_product<false>(x.count, padded_width(keys), call.width(), {x.q, padded_width(call.width()), 1}, kt, kAttentionBlock, x.score, kAttentionBlock);
  for (int64_t c = 0; c < x.count; ++c) softmax_keys(x, c, first_key, keys);
  int64_t c = 0;
  for (; c + 4 <= x.count; c += 4) add_keys<4>(x, c, keys);
  for (; c + 2 <= x.count; c += 2) add_keys<2>(x, c, keys);
  if (c < x.count) add_keys<1>(x, c, keys);
  if (first_key > 0) shrink_rows(x, 0, x.count);
  block_product<true>(x.count, x.value_padded, keys - unseen, {x.score + unseen, kAttentionBlock, 1}, v, ldv, x.out, x.value_padded);
}

void store_columns(const AttentionCall& call, const AttentionTask& task, const Columns& x) {
  const int64_t value_width = call.value_width();
  for (int64_t j = 0; j < x.count; ++j) {
    const AttentionColumn at = column_at(call, task, j);
    store_row(call.o, at.row, at.head * value_width, value_width, x.out + j * x.value_padded, 1.0f / x.total[j]);
    if (!call.lse.empty()) call.lse.row<float>(at.row)[at.head] = x.highest[j] + std::log(x.total[j]);
  }
}

// Keys of one block that some column of a task sees: positions [first, first + count), which lie from row `row` of the view on.
struct SeenKeys {
  int64_t first, count, row;
};

template <class T>
const T* transposed_keys(const AttentionCall& call, const AttentionTask& task, int64_t row) {
  const int64_t width = call.width(), panel = row / kAttentionBlock * call.kv_heads + task.kv_head;
  return static_cast<const T*>(call.kv->k.data) + panel * width * kAttentionBlock + row % kAttentionBlock;
}

// The keys in f32, wherever they lie.
BlockA load_keys(const AttentionCall& call, const AttentionTask& task, const Columns& x, const SeenKeys& seen, bool once) {
  const KvView& kv = *call.kv;
  const int64_t width = call.width();
  if (!kv.keys_transposed()) {
    const BlockB rows = view_block(kv.k, seen.row, seen.count, task.kv_head * width, width, x.k_copy, once);
    return {rows.data, rows.ld, 1};
  }
  const auto copied = [&](const auto* kt) {
    const DF32 d;
    for (int64_t c = 0; c < width; ++c)
      for (int64_t j = 0; j < seen.count; j += lanes_f32()) {
        const auto lanes = static_cast<size_t>(std::min(lanes_f32(), seen.count - j));
        const auto* at = kt + c * kAttentionBlock + j;
        hn::StoreU(j + lanes_f32() <= seen.count ? LoadF32(d, at) : LoadF32N(d, at, lanes), d, x.k_copy + c * kAttentionBlock + j);
      }
    return BlockA{x.k_copy, 1, kAttentionBlock};
  };
  switch (kv.k.dtype) {
    case DType::bf16: return copied(transposed_keys<bf16>(call, task, seen.row));
    case DType::f16: return copied(transposed_keys<Half>(call, task, seen.row));
    default: return {transposed_keys<float>(call, task, seen.row), 1, kAttentionBlock};
  }
}

// Keys and values are read where they lie, each once for all columns.
template <class T>
void forward_keys(const AttentionCall& call, const AttentionTask& task, const Columns& x, const SeenKeys& seen) {
  const int64_t value_width = call.value_width(), col = task.kv_head * value_width;
  const int64_t unseen = seen.row % lanes_f32();
  const T* kt = transposed_keys<T>(call, task, seen.row - unseen);
  const Tensor& v = call.kv->v;
  if (value_width == x.value_padded) {
    const T* values = reinterpret_cast<const T*>(static_cast<const char*>(v.data) + seen.row * v.row_bytes) + col;
    return attend_keys(call, x, kt, values, v.row_bytes / static_cast<int64_t>(sizeof(T)), seen.first - unseen, seen.count + unseen, unseen);
  }
  const BlockB copy = view_block(v, seen.row, seen.count, col, value_width, x.v_copy, true);
  attend_keys(call, x, kt, copy.data, copy.ld, seen.first - unseen, seen.count + unseen, unseen);
}

void forward_keys(const AttentionCall& call, const AttentionTask& task, const Columns& x, const SeenKeys& seen) {
  switch (call.kv->k.dtype) {
    case DType::bf16: return forward_keys<bf16>(call, task, x, seen);
    case DType::f16: return forward_keys<Half>(call, task, x, seen);
    default: return forward_keys<float>(call, task, x, seen);
  }
}

void forward_columns(const AttentionCall& call, const AttentionTask& task, const Columns& x, const SeenKeys& seen) {
  const int64_t value_width = call.value_width();
  const BlockA k = load_keys(call, task, x, seen, x.padded <= lanes_f32());
  const BlockB v = view_block(call.kv->v, seen.row, seen.count, task.kv_head * value_width, value_width, x.v_copy, x.count <= 2 * kTileRows);
  const int64_t past = seen.first + seen.count;
  if (seen.first >= x.newest && past - 1 <= x.narrowest) return attend_block(call, x, 0, x.padded, k, v, seen.first, seen.count, false);
  // On the diagonal and at the window's edge a panel of one vector meets only the keys that one of its columns sees.
  for (int64_t c = 0; c < x.padded; c += lanes_f32()) {
    const auto [low, high] = std::minmax_element(x.position + c, x.position + c + lanes_f32());
    const int64_t begin = std::max(call.first_seen(*low), seen.first), end = std::min<int64_t>(past, *high + 1);
    if (begin >= end) continue;
    const int64_t skipped = begin - seen.first;
    attend_block(call, x, c, c + lanes_f32(), {k.data + skipped * k.row, k.row, k.step}, {v.data + skipped * v.ld, v.ld}, begin, end - begin, true);
  }
}

void forward_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const ArenaScope scope(scratch);
  const Columns x = load_columns(call, task, scratch);
  for (int64_t block = x.oldest / kAttentionBlock * kAttentionBlock; block <= x.widest; block += kAttentionBlock) {
    const int64_t first = std::max(block, x.oldest), end = std::min(block + kAttentionBlock, x.widest + 1);
    const SeenKeys seen{first, end - first, call.kv->row(task.sequence, first)};
    if (x.by_key) forward_keys(call, task, x, seen);
    else forward_columns(call, task, x, seen);
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
