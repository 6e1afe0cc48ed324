// Attention in f32: what the loops of forward-inl.h and backward-inl.h multiply with where keys and
// values are not bf16 or the processor has no products of it.
//
// The forward has two ways to lay scores in the lanes of vectors. ForwardByColumn holds them [key,
// column]: softmax runs down the lanes, each column alone, and keys are read where they lie, one
// broadcast at a time. Where a task has few columns, as when a text is written token by token, and
// keys lie transposed, ForwardByKey holds them [column, key] and no lane goes empty. Each score is
// the same chain over the width and each sum the same chain over the keys, so both ways give the
// same bits.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/f32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/attention/backward-inl.h"
#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/attention/forward-inl.h"
#include "ops/cpu/attention/tasks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// ---- forward ------------------------------------------------------------------------------------

// What both f32 ways begin with.
struct ForwardF32 {
  const AttentionCall& call;
  const AttentionTask& task;
  Columns x;
  float* q;       // [room, C padded] scale * q
  float* score;   // scores of a block, then their exponentials
  float* total;   // [room] running sum l
  float* v_copy;  // [64, value_padded]
  KeyBlock block{};

  static constexpr bool kTogether = true;

  // `beside`: one whose block this one may work on in the same memory.
  ForwardF32(const AttentionCall& of, const AttentionTask& todo, const ForwardF32* beside,
             Arena& scratch)
      : call(of), task(todo), x(load_columns(of, task, scratch)) {
    const int64_t width = x.width, padded = padded_width(width);
    q = alloc<float>(scratch, x.room * padded);
    total = alloc<float>(scratch, x.room);
    score = beside != nullptr ? beside->score : alloc<float>(scratch, kKeyBlock * x.room);
    v_copy = beside != nullptr ? beside->v_copy : alloc<float>(scratch, kKeyBlock * x.value_padded);
    for (int64_t j = 0; j < x.count; ++j) {
      const AttentionColumn at = column_at(call, task, j);
      load_row(q + j * padded, call.q, at.row, at.head * width, width, padded, call.scale);
    }
  }
  void begin() {
    forget(x);
    std::fill_n(total, x.room, 0.0f);
  }
  void finish() {}
  float highest_of(int64_t j) const { return x.highest[j]; }
  float total_of(int64_t j) const { return total[j]; }
  // Scores [m, n], below the cap.
  HWY_INLINE void hold(int64_t m, int64_t n, float* at, int64_t ld) const {
    if (call.cap > 0) hold_back(m, n, at, ld, 1 / call.cap, call.cap);
  }
  BlockB load_values(bool once) const {
    const int64_t width = x.value_width;
    return view_block(values_from(call, task.kv_head, block.row), 0, block.first, block.end, 0,
                      width, v_copy, once);
  }
};

struct ForwardByColumn : ForwardF32 {
  float* q_turned;  // [C padded, room]
  float* k_copy;    // [64, C padded] or [C, 64]
  BlockA<float> k{};
  BlockB v{};

  ForwardByColumn(const AttentionCall& of, const AttentionTask& todo, const ForwardByColumn* beside,
                  Arena& scratch)
      : ForwardF32(of, todo, beside, scratch) {
    const int64_t padded = padded_width(x.width);
    q_turned = alloc<float>(scratch, padded * x.room);
    k_copy = beside != nullptr ? beside->k_copy : alloc<float>(scratch, kKeyBlock * padded);
    std::fill(q + x.count * padded, q + x.room * padded, 0.0f);
    transpose_block(q_turned, x.room, q, padded, x.room, padded);
  }
  // On the diagonal and at the window's edge a panel of one vector meets only the keys that one of
  // its columns sees.
  int64_t columns_at_once(bool whole) const { return whole ? x.room : lanes_f32(); }
  static int64_t steps_ahead() { return 0; }  // nothing is fetched
  void attend(const KeyBlock& at, bool whole) { attend_panels(*this, at, whole); }
  void load(const KeyBlock& next, const Ahead&) {
    block = next;
    k = load_keys();
    v = load_values(x.count <= 2 * kTileRows);
  }
  BlockA<float> load_keys() const;
  void scores(const Panel& p) const {
    block_product(p.high - p.low, padded_width(p.count), x.width,
                  {k.data + p.low * k.row, k.row, k.step}, q_turned + p.begin, x.room,
                  score + p.low * x.room + p.begin, x.room, Written());
    hold(p.high - p.low, padded_width(p.count), score + p.low * x.room + p.begin, x.room);
  }
  void softmax(const Panel& p) const {
    for (int64_t c = p.begin; c < p.begin + p.count; c += lanes_f32()) {
      if (p.whole) softmax_vector<false>(c, p.low, p.high);
      else softmax_vector<true>(c, p.low, p.high);
    }
  }
  template <bool kMasked>
  void softmax_vector(int64_t column, int64_t low, int64_t high) const;
  void values(const Panel& p) const {
    block_product(p.count, x.value_padded, p.high - p.low,
                  BlockA<float>{score + p.low * x.room + p.begin, 1, x.room}, v.data + p.low * v.ld,
                  v.ld, x.out + p.begin * x.value_padded, x.value_padded,
                  Scaled{x.shrink + p.begin});
  }
};

// The keys in f32, wherever they lie.
BlockA<float> ForwardByColumn::load_keys() const {
  const KvView& kv = *call.kv;
  const int64_t width = x.width;
  if (!kv.keys_transposed()) {
    const BlockB rows = view_block(kv.k, block.row, block.first, block.end, task.kv_head * width,
                                   width, k_copy, x.room <= lanes_f32());
    return {rows.data, rows.ld, 1};
  }
  const auto copied = [&](const auto* kt) {
    const DF32 d;
    for (int64_t c = 0; c < width; ++c)
      for (int64_t j = block.first / lanes_f32() * lanes_f32(); j < block.end; j += lanes_f32())
        hn::StoreU(LoadF32(d, kt + c * kKeyBlock + j), d, k_copy + c * kKeyBlock + j);
    return BlockA<float>{k_copy, 1, kKeyBlock};
  };
  switch (kv.k.dtype) {
    case DType::bf16: return copied(transposed_keys<bf16>(call, task, block.row, x.width));
    case DType::f16: return copied(transposed_keys<Half>(call, task, block.row, x.width));
    default: return {transposed_keys<float>(call, task, block.row, x.width), 1, kKeyBlock};
  }
}

// Softmax of keys [low, high) for one vector of columns: scores become p, and m, l and exp(m - m')
// move on.
template <bool kMasked>
void ForwardByColumn::softmax_vector(int64_t column, int64_t low, int64_t high) const {
  const DF32 d;
  const I32For<DF32> di;
  const auto minus_infinity = hn::Set(d, -kInfinity);
  float* s = score + column;
  const auto position = hn::Set(di, static_cast<int32_t>(block.position));
  const auto last = hn::Sub(hn::LoadU(di, x.position + column), position),
             first = hn::Sub(hn::LoadU(di, x.first_seen + column), position);
  const auto before = hn::LoadU(d, x.highest + column);
  auto highest = before;
  for (int64_t j = low; j < high; ++j) {
    auto score_j = hn::LoadU(d, s + j * x.room);
    if constexpr (kMasked) {
      const auto key = hn::Set(di, static_cast<int32_t>(j));
      score_j = hn::IfThenElse(hn::RebindMask(d, hn::Or(hn::Gt(key, last), hn::Lt(key, first))),
                               minus_infinity, score_j);
      hn::StoreU(score_j, d, s + j * x.room);
    }
    highest = hn::Max(highest, score_j);
  }
  // A column that has seen nothing yet keeps a maximum of -inf and sums of 0; -inf - -inf must not
  // come about.
  auto level = highest;
  if constexpr (kMasked) level = hn::IfThenZeroElse(hn::Eq(highest, minus_infinity), highest);
  const auto shrink = ExpNormal(d, hn::Sub(before, level));
  auto sum = hn::Mul(hn::LoadU(d, total + column), shrink);
  for (int64_t j = low; j < high; ++j) {
    const auto p = ExpNormal(d, hn::Sub(hn::LoadU(d, s + j * x.room), level));
    hn::StoreU(p, d, s + j * x.room);
    sum = hn::Add(sum, p);
  }
  hn::StoreU(highest, d, x.highest + column);
  hn::StoreU(sum, d, total + column);
  hn::StoreU(shrink, d, x.shrink + column);
}

// Keys and values are read where they lie, in type T, each once for a tile of columns, while those
// of the next step are fetched in even steps.
template <class T>
struct ForwardByKey : ForwardF32 {
  const T* kt = nullptr;  // [C, 64]
  // row i of the block at values_at[i * ld], where whole vectors can be read
  const T* values_at = nullptr;
  BlockB v{};           // else a copy
  Lines ahead{};        // of the next step
  int64_t steps;        // in which a block's keys and values are met
  int64_t at_once = 0;  // lines a step

  ForwardByKey(const AttentionCall& of, const AttentionTask& todo, const ForwardByKey* beside,
               Arena& scratch)
      : ForwardF32(of, todo, beside, scratch),
        steps(few_rows_tiles(x.count, kKeyBlock) * steps_of(x.width) +
              few_rows_tiles(x.count, x.value_padded) * steps_of(kKeyBlock)) {}
  // Of one tile that meets so many rows.
  static int64_t steps_of(int64_t rows) { return (rows + Fetching::kRows - 1) / Fetching::kRows; }
  int64_t columns_at_once(bool) const { return x.count; }
  static int64_t steps_ahead() { return 1; }
  void attend(const KeyBlock& at, bool whole) { attend_panels(*this, at, whole); }
  void load(const KeyBlock& next, const Ahead& then) {
    block = next;
    ahead = lines_of(call, then);
    at_once = (ahead.count() + steps - 1) / steps;
    kt = transposed_keys<T>(call, task, block.row, x.width);
    const int64_t width = x.value_width;
    if (width == x.value_padded)
      values_at = static_cast<const T*>(values_from(call, task.kv_head, block.row).data);
    else v = load_values(true);
  }
  // The first key of the vector that holds key `low`.
  static int64_t vector_of(int64_t low) { return low / lanes_f32() * lanes_f32(); }
  void scores(const Panel& p) {
    const int64_t width = x.width, low = vector_of(p.low);
    few_rows_product(x.count, padded_width(p.high - low), width,
                     BlockA<float>{q, padded_width(width), 1}, kt + low, kKeyBlock, score + low,
                     kKeyBlock, Written(), Fetching{ahead, at_once});
    hold(x.count, padded_width(p.high - low), score + low, kKeyBlock);
  }
  void softmax(const Panel& p) const {
    const int64_t low = vector_of(p.low);
    for (int64_t c = 0; c < x.count; ++c) softmax_column(c, low, p.high);
    int64_t c = 0;
    for (; c + 4 <= x.count; c += 4) add_keys<4>(c, low, p.high);
    for (; c + 2 <= x.count; c += 2) add_keys<2>(c, low, p.high);
    if (c < x.count) add_keys<1>(c, low, p.high);
  }
  void softmax_column(int64_t column, int64_t low, int64_t high) const;
  template <int kColumns>
  void add_keys(int64_t column, int64_t low, int64_t high) const;
  void values(const Panel& p) {
    const BlockA<float> weights{score + p.low, kKeyBlock, 1};
    const auto weigh = [&](const auto* rows, int64_t ld) {
      few_rows_product(x.count, x.value_padded, p.high - p.low, weights, rows + p.low * ld, ld,
                       x.out, x.value_padded, Scaled{x.shrink}, Fetching{ahead, at_once});
    };
    if (values_at != nullptr)
      weigh(values_at, call.kv->v.row_bytes / static_cast<int64_t>(sizeof(T)));
    else weigh(v.data, v.ld);
  }
};

// Softmax of one column over keys [low, high) that lie in the lanes: as ForwardByColumn's, term by
// term.
template <class T>
void ForwardByKey<T>::softmax_column(int64_t column, int64_t low, int64_t high) const {
  const DF32 d;
  const I32For<DF32> di;
  float* s = score + column * kKeyBlock;
  const auto last = hn::Set(di, static_cast<int32_t>(x.position[column] - block.position));
  const auto first = hn::Set(di, static_cast<int32_t>(x.first_seen[column] - block.position));
  auto most = hn::Set(d, -kInfinity);
  for (int64_t j = low; j < high; j += lanes_f32()) {
    const auto key = hn::Iota(di, static_cast<int32_t>(j));
    const auto hidden = hn::Or(hn::Gt(key, last), hn::Lt(key, first));
    const auto seen =
        hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, -kInfinity), hn::LoadU(d, s + j));
    hn::StoreU(seen, d, s + j);
    most = hn::Max(most, seen);
  }
  const float before = x.highest[column], highest = std::max(before, MaxLanesFixed(d, most));
  const float level = highest == -kInfinity ? 0.0f : highest;
  for (int64_t j = low; j < high; j += lanes_f32())
    hn::StoreU(ExpNormal(d, hn::Sub(hn::LoadU(d, s + j), hn::Set(d, level))), d, s + j);
  x.highest[column] = highest;
  x.shrink[column] = hn::GetLane(ExpNormal(d, hn::Set(d, before - level)));
}

// l' = l exp(m - m') + sum_j p_j, key after key; the chains of kColumns columns run beside each
// other.
template <class T>
template <int kColumns>
void ForwardByKey<T>::add_keys(int64_t column, int64_t low, int64_t high) const {
  float sum[kColumns];
  for (int c = 0; c < kColumns; ++c) sum[c] = total[column + c] * x.shrink[column + c];
  const float* p = score + column * kKeyBlock;
  for (int64_t j = low; j < high; ++j)
    for (int c = 0; c < kColumns; ++c) sum[c] += p[c * kKeyBlock + j];
  for (int c = 0; c < kColumns; ++c) total[column + c] = sum[c];
}

// ---- backward -----------------------------------------------------------------------------------

struct BackwardF32 {
  using Element = float;
  static constexpr int64_t kNumbers = 1;
  static constexpr bool kScaledQueries = true;
  static constexpr bool kWholeBlocks = false;
  static int64_t padded_rows(int64_t rows) { return padded_width(rows); }

  static void load_rows(const Operand<float>& x, const Tensor& t, int64_t row, int64_t rows,
                        int64_t col, float scale) {
    for (int64_t i = 0; i < rows; ++i)
      load_row(x.rows + i * x.ld, t, row + i, col, x.width, x.ld, scale);
  }
  // Rows are summed over as they lie, and gradients take the place of scores.
  static void alloc_stacked(Operand<float>& x, int64_t, Arena&) { x.stacked = x.rows; }
  static void stack(const Operand<float>&, const Tensor&, int64_t, int64_t, int64_t) {}
  static void alloc_gradients(Workspace<BackwardF32>& w, Arena&) {
    w.p = w.score;
    w.ds = w.ds_keys = w.dp;
  }
  template <class Into>
  static void product(int64_t m, int64_t n, int64_t depth, BlockA<float> a, const float* b,
                      int64_t ldb, float* c, int64_t ldc, Into into) {
    block_product(m, n, depth, a, b, ldb, c, ldc, into);
  }
  template <bool kMasked, bool kCapped>
  static void softmax_gradient(const Workspace<BackwardF32>& w, int64_t column, int64_t keys,
                               float factor, Sight sight) {
    const DF32 d;
    const QueryVector<kMasked, kCapped> queries(w.lse, w.delta, factor, column, sight);
    for (int64_t j = 0; j < keys; ++j) {
      float *score = w.p + j * kKeyBlock + column, *dp = w.ds + j * kKeyBlock + column;
      const VF32 p = queries.probability(score, j), ds = queries.gradient(p, score, dp);
      hn::StoreU(p, d, score);
      hn::StoreU(ds, d, dp);
    }
  }
};

// Of so many columns, vectors of keys are the better ones.
constexpr int64_t kFewColumnsF32 = 8;

void forward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  while (!tasks.empty()) {
    const AttentionTask& task = tasks.front();
    const DType keys = call.kv->k.dtype;
    if (!call.kv->keys_transposed() || task.end - task.begin > kFewColumnsF32)
      tasks = forward_tasks<ForwardByColumn>(call, tasks, scratch);
    else if (keys == DType::bf16) tasks = forward_tasks<ForwardByKey<bf16>>(call, tasks, scratch);
    else if (keys == DType::f16) tasks = forward_tasks<ForwardByKey<Half>>(call, tasks, scratch);
    else tasks = forward_tasks<ForwardByKey<float>>(call, tasks, scratch);
  }
}

void join_f32(const AttentionCall& call, const AttentionTask& whole, Arena& scratch) {
  join_task(call, whole, scratch);
}

void backward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  for (const AttentionTask& task : tasks) backward_task<BackwardF32>(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {

HWY_EXPORT(forward_f32);
HWY_EXPORT(join_f32);
HWY_EXPORT(backward_f32);

void attention_forward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks,
                           Arena& scratch) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(call, tasks, scratch);
}
void attention_join_f32(const AttentionCall& call, const AttentionTask& whole, Arena& scratch) {
  HWY_DYNAMIC_DISPATCH(join_f32)(call, whole, scratch);
}
void attention_backward_f32(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(call, tasks, scratch);
}

}  // namespace moe::ops
#endif
