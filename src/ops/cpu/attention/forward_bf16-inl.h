// What the walk of forward-inl.h multiplies with in bf16 (bf16.cpp says what is rounded): pairs in
// vectors, or where there are tiles those (forward_tiles-inl.h).

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_FORWARD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_FORWARD_BF16_INL_H_
#undef MOE_OPS_CPU_ATTENTION_FORWARD_BF16_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_FORWARD_BF16_INL_H_
#endif

#include "ops/cpu/attention/forward-inl.h"
#include "ops/cpu/attention/pairs-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

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
    for (int64_t i = 0; i < most; ++i) {
      if (left == 0) {
        if (rows == 0) return;
        --rows;
        at = row;
        left = row_lines;
        row += row_bytes;
      }
      _mm_prefetch(at, kNearest ? _MM_HINT_T0 : _MM_HINT_T1);
      at += kLineBytes;
      --left;
    }
  }
  static constexpr int64_t kLineBytes = 64;
};

// 2^t for t <= 0 and -infinity, to 2e-7: the whole part is an exponent, of the fraction a
// polynomial fitted on [0, 1] that is 1 at 0.
MOE_BF16 HWY_INLINE __m512 power_of_two(__m512 t) {
  const __m512 r = _mm512_reduce_ps(t, 0x09);  // t - floor(t), 0 where that is undefined
  __m512 y = _mm512_set1_ps(0.00186713052f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.00901702978f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0557999127f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.240164444f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693151295f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, t);
}

// Queries, keys and values as pairs. The maximum m is of scores in units of ln 2, so that p is a
// power of two. What reads operands in tiles reads whole tiles of them: `kWhole` fills those up
// with zeros.
template <bool kWhole>
struct ForwardPairs {
  const AttentionCall& call;
  const AttentionTask& task;
  Columns x;
  int64_t pairs;  // of a key's numbers
  int64_t depth;  // the same, in whole tiles
  Pair* q;        // [count, depth]; in tiles [room, depth]
  Pair* k;        // [depth, 64] of a block of keys
  Pair* k_rows;   // [64, pairs padded] the same before it is turned, where keys lie in rows
  Pair* v;  // [32, value_padded] pairs of the block's values, and a vector that the last row may
            // run over into
  float* total;  // [count, 16] running sum l, lane by lane
  float unit;    // what makes of a score, where it has no cap a product, one in units of ln 2
  KeyBlock block{};
  Lines ahead{};        // of a block that comes later
  int64_t at_once = 0;  // so many of them a step

  // `beside`: one whose block this one may lay out in the same memory.
  MOE_BF16 ForwardPairs(const AttentionCall& of, const AttentionTask& todo,
                        const ForwardPairs* beside, Arena& scratch)
      : call(of),
        task(todo),
        x(load_columns(of, task, scratch)),
        unit((of.cap > 0 ? of.cap : of.scale) * kLog2E) {
    const int64_t width = x.width, rows = kWhole ? x.room : x.count;
    pairs = (width + 1) / 2;
    depth = kWhole ? padded_width(pairs) : pairs;
    q = alloc<Pair>(scratch, rows * depth);
    if (kWhole) std::fill_n(q, rows * depth, 0);
    if (beside != nullptr) {
      k = beside->k;
      k_rows = beside->k_rows;
      v = beside->v;
    } else {
      alloc_block(scratch);
    }
    total = alloc<float>(scratch, x.count * kLanes);
    for (int64_t j = 0; j < x.count; ++j) {
      const AttentionColumn at = column_at(call, task, j);
      copy_pairs(q + j * depth, call.q, at.row, at.head * width, width);
    }
  }
  void alloc_block(Arena& scratch) {
    const int64_t padded = padded_width(pairs),
                  turned = call.kv->keys_transposed() ? 0 : kKeyBlock * padded;
    k = alloc<Pair>(scratch, padded * kKeyBlock);
    k_rows = alloc<Pair>(scratch, turned);
    v = alloc<Pair>(scratch, kKeyBlock / 2 * x.value_padded + kLanes);
    if constexpr (kWhole) {
      std::fill_n(k, depth * kKeyBlock, 0);
      std::fill_n(k_rows, turned, 0);
    }
  }
  void begin() {
    forget(x);
    std::fill_n(total, x.count * kLanes, 0.0f);
  }
  // Of products of a panel with the first `keys` of a block, tanh(s / cap) where there is a cap.
  HWY_INLINE void hold(const Panel& panel, float* score, int64_t keys) const {
    if (call.cap > 0) hold_back(panel.count, keys, score, kKeyBlock, call.scale / call.cap, 1);
  }
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
  float highest_of(int64_t j) const { return x.highest[j] * kLn2; }
  float total_of(int64_t j) const {
    return SumLanesFixed(DF32(), hn::LoadU(DF32(), total + j * kLanes));
  }
  // Few queries are done with a block before the memory has brought another. The lines of the next
  // one are fetched in even steps all the while that this one is laid out and multiplied, to the
  // first level: in a burst the processor has room for few of them and waits (32 heads on 4 of 128
  // behind 32,768 tokens 26 GB/s then, 37 now). Many queries leave the memory time enough, and need
  // the first level themselves: what comes two blocks later goes to the second while one is laid
  // out.
  bool fetches_all_the_while() const { return !kWhole && x.count <= kFewColumns; }
  int64_t steps_ahead() const { return fetches_all_the_while() ? 1 : 2; }
  HWY_INLINE void fetch_some() {
    if (fetches_all_the_while()) ahead.template fetch_some<true>(at_once);
    else ahead.template fetch_some<false>(at_once);
  }
  // Softmax over the keys of kVectors vectors: scores become pairs p, m and l move on, and shrink
  // is exp(m - m').  score [columns, 64]; p [columns, 32]; shrink [columns and a vector]
  // `between_maxima(i)` and `between(i)` are called behind column i in either of two loops.
  template <int kVectors, class Maxima, class F>
  MOE_BF16 void softmax_panel(const Panel& panel, const float* score, Pair* p, float* shrink,
                              const Maxima& between_maxima, const F& between) const;
  // A block's keys, where they lie transposed, and values are to be fetched while this one's are
  // gone through.
  void fetch_beside(const Ahead& of);
  // `between` is called eight times or so while a block is laid out.
  template <class F>
  MOE_BF16 void load_keys(const F& between);
  template <class F>
  MOE_BF16 void load_values(const F& between);
};

template <bool kWhole>
void ForwardPairs<kWhole>::fetch_beside(const Ahead& of) {
  const auto lines_in = [](int64_t numbers) {
    return (numbers * static_cast<int64_t>(sizeof(bf16)) + Lines::kLineBytes - 1) /
           Lines::kLineBytes;
  };
  ahead = {};
  if (call.kv->keys_transposed()) {
    ahead.at =
        reinterpret_cast<const char*>(transposed_keys<bf16>(call, *of.task, of.row, x.width));
    ahead.left = lines_in(x.width * kKeyBlock);
  }
  const Tensor values = values_from(call, of.task->kv_head, of.row);
  ahead.row = static_cast<const char*>(values.data);
  ahead.rows = kKeyBlock;
  ahead.row_lines = lines_in(x.value_width);
  ahead.row_bytes = values.row_bytes;
  // steps in which a block is laid out, and in which all columns' products meet it
  const int64_t laid = pairs + kKeyBlock / 2, panels = (x.count + kTileRows - 1) / kTileRows,
                pieces = (x.value_padded + kTileVectors * kLanes - 1) / (kTileVectors * kLanes),
                met = fetches_all_the_while() ? panels * (pairs + pieces * kKeyBlock / 2) : 0;
  at_once = (ahead.count() + laid + met - 1) / (laid + met);
}

// Lanes without a key hold anything.
template <bool kWhole>
template <class F>
MOE_BF16 void ForwardPairs<kWhole>::load_keys(const F& between) {
  const KvView& kv = *call.kv;
  const int64_t width = x.width;
  if (!kv.keys_transposed()) {
    const int64_t ld = padded_width(pairs);
    for (int64_t j = block.first; j < block.end; ++j)
      copy_pairs(k_rows + j * ld, kv.k, block.row + j, task.kv_head * width, width);
    transpose_block(reinterpret_cast<float*>(k), kKeyBlock, reinterpret_cast<const float*>(k_rows),
                    ld, kKeyBlock, ld);
    return;
  }
  const bf16* panel = transposed_keys<bf16>(call, task, block.row, x.width);
  Pair* to = k;
  for (int64_t c = 0; c < width; c += 2, panel += 2 * kKeyBlock, to += kKeyBlock) {
    if (c % 16 == 0) between();
    fetch_some();
    for (int64_t j = 0; j < kKeyBlock; j += 2 * kLanes) {
      store_pairs(
          to + j, _mm512_loadu_si512(panel + j),
          c + 1 < width ? _mm512_loadu_si512(panel + kKeyBlock + j) : _mm512_setzero_si512());
    }
  }
}

// Zero where a pair has no such key; in tiles also what else a tile of pairs holds.
template <bool kWhole>
template <class F>
MOE_BF16 void ForwardPairs<kWhole>::load_values(const F& between) {
  const Tensor from = values_from(call, task.kv_head, block.row);
  const int64_t width = x.value_width, first = block.first, end = block.end;
  const auto seen = [&](int64_t key) {
    return key < first || key >= end ? nullptr : from.row<bf16>(key);
  };
  const int64_t from_key = kWhole ? 0 : first & ~int64_t{1},
                to_key = kWhole ? padded_width(end / 2 + end % 2) * 2 : end;
  Pair* to = v + from_key / 2 * x.value_padded;
  for (int64_t key = from_key; key < to_key; key += 2, to += x.value_padded) {
    fetch_some();
    pair_rows(to, seen(key), seen(key + 1), width);
    if (key % 8 == 0) between();
  }
}

// All maxima come before the first exponential, and nothing branches on them, so that the columns'
// chains run beside each other.
template <bool kWhole>
template <int kVectors, class Maxima, class F>
MOE_BF16 void ForwardPairs<kWhole>::softmax_panel(const Panel& panel, const float* score, Pair* p,
                                                  float* shrink, const Maxima& between_maxima,
                                                  const F& between) const {
  constexpr uint64_t kAll = ~uint64_t{0} >> (kKeyBlock - kVectors * kLanes);
  constexpr int64_t kMost = 2 * kLanes;  // columns of a panel
  const int count = static_cast<int>(panel.count);
  alignas(64) float level[kMost] = {}, fall[kMost] = {};
  uint64_t visible[kMost];
  const __m512 to_unit = _mm512_set1_ps(unit);
  for (int i = 0; i < count; ++i) {
    const float* at = score + i * kKeyBlock;
    const int64_t column = panel.begin + i;
    const int64_t low = std::max<int64_t>(x.first_seen[column] - block.position, 0),
                  high = std::min(x.position[column] + 1 - block.position, kKeyBlock);
    visible[i] = low < high ? ~uint64_t{0} >> (kKeyBlock - high + low) << low : 0;
    __m512 most = _mm512_set1_ps(-kInfinity);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      most = _mm512_mask_max_ps(most, static_cast<__mmask16>(visible[i] >> j * kLanes), most,
                                _mm512_mul_ps(_mm512_loadu_ps(at + j * kLanes), to_unit));
    const float before = x.highest[column], highest = std::max(before, _mm512_reduce_max_ps(most));
    x.highest[column] = highest;
    level[i] = highest == -kInfinity ? 0.0f : highest;  // -inf - -inf must not come about
    fall[i] = before - level[i];
    between_maxima(i);
  }
  for (int64_t i = 0; i < count; i += kLanes)
    _mm512_storeu_ps(shrink + i, power_of_two(_mm512_load_ps(fall + i)));
  for (int i = 0; i < count; ++i) {
    const float* at = score + i * kKeyBlock;
    Pair* pairs_at = p + i * kKeyBlock / 2;
    float* running = total + (panel.begin + i) * kLanes;
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      __m512 e = power_of_two(
          _mm512_fmsub_ps(_mm512_loadu_ps(at + j * kLanes), to_unit, _mm512_set1_ps(level[i])));
      if (visible[i] != kAll)
        e = _mm512_maskz_mov_ps(static_cast<__mmask16>(visible[i] >> j * kLanes), e);
      sum = _mm512_add_ps(sum, e);
      store_rounded(pairs_at + j * kLanes / 2, e);
    }
    _mm512_storeu_ps(running,
                     _mm512_fmadd_ps(_mm512_loadu_ps(running), _mm512_set1_ps(shrink[i]), sum));
    between(i);
  }
}

struct ForwardBf16 : ForwardPairs<false> {
  struct Fetching {
    Lines& lines;
    int64_t at_once;
    HWY_INLINE void operator()() const { lines.fetch_some<true>(at_once); }
  };
  float* score;  // [6, 64]
  Pair* p;       // [6, 32] pairs of exponentials

  static constexpr bool kTogether = true;

  MOE_BF16 ForwardBf16(const AttentionCall& of, const AttentionTask& todo,
                       const ForwardBf16* beside, Arena& scratch)
      : ForwardPairs(of, todo, beside, scratch) {
    score = beside != nullptr ? beside->score : alloc<float>(scratch, kTileRows * kKeyBlock);
    p = beside != nullptr ? beside->p : alloc<Pair>(scratch, kTileRows * kKeyBlock / 2);
  }
  int64_t columns_at_once(bool) const { return kTileRows; }
  MOE_BF16 void load(const KeyBlock& next, const Ahead& then) {
    block = next;
    fetch_beside(then);
    load_keys([] {});
    load_values([] {});
  }
  MOE_BF16 void attend(const KeyBlock& at, bool whole) { attend_panels(*this, at, whole); }
  void finish() {}
  template <class Into>
  MOE_BF16 void product(int64_t m, int64_t n, int64_t inner, const BlockA<Pair>& a, const Pair* b,
                        int64_t ldb, float* c, int64_t ldc, Into into) {
    if (fetches_all_the_while())
      pair_product(m, n, inner, a, b, ldb, c, ldc, into, Fetching{ahead, at_once});
    else pair_product(m, n, inner, a, b, ldb, c, ldc, into, NothingElse());
  }
  MOE_BF16 void scores(const Panel& panel) {
    product(panel.count, padded_width(panel.high), pairs, {q + panel.begin * pairs, pairs, 1}, k,
            kKeyBlock, score, kKeyBlock, Written());
    hold(panel, score, padded_width(panel.high));
  }
  MOE_BF16 void softmax(const Panel& panel) const {
    switch ((panel.high - 1) / kLanes) {
      case 3: return softmax_rows<4>(panel);
      case 2: return softmax_rows<3>(panel);
      case 1: return softmax_rows<2>(panel);
      default: return softmax_rows<1>(panel);
    }
  }
  template <int kVectors>
  MOE_BF16 void softmax_rows(const Panel& panel) const {
    const auto none = [](int) {};
    softmax_panel<kVectors>(panel, score, p, x.shrink + panel.begin, none, none);
  }
  MOE_BF16 void values(const Panel& panel) {
    const int64_t begin = panel.low / 2, keys = (panel.high + 1) / 2 - begin;
    product(panel.count, x.value_padded, keys, {p + begin, kKeyBlock / 2, 1},
            v + begin * x.value_padded, x.value_padded, x.out + panel.begin * x.value_padded,
            x.value_padded, Scaled{x.shrink + panel.begin});
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
