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

// 2^t for t up to 127 and -infinity, to 5e-6: the whole part is an exponent, of the fraction a
// polynomial fitted on [0, 1] that is 1 at 0 and 2 at 1, so that whole powers are exact.
MOE_BF16 HWY_INLINE __m512 power_of_two(__m512 t) {
  const __m512 r = _mm512_reduce_ps(t, 0x09);  // t - floor(t), 0 where that is undefined
  __m512 y = _mm512_set1_ps(0.0132574104f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0526445432f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.240995055f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693102991f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, t);
}

// Where pairs of a block lie: vector j of row r, 16 of them, r * row + j * vector words from `at`
// on.
struct PairRows {
  Pair* at;
  int64_t row, vector;
};

// The same of exponentials of columns, two vectors of keys together.
struct PairsOfKeys {
  Pair* at;
  int64_t column, two_vectors;
};

// Queries, keys and values as pairs. Scores are in units of ln 2, so that p is a power of two. What
// stands for the running maximum m is a level that the scores of a column are at most kRise above:
// the first block of a stretch sets it to its maximum, and from there it rises in whole steps and
// only where it must, which changes no bit of p, l and o but their exponents. p reaches 2^kRise,
// which costs a float nothing, and hardly a block has to scale what was before it. What reads
// operands in tiles reads whole tiles of them: `kWhole` fills those up with zeros.
template <bool kWhole>
struct ForwardPairs {
  const AttentionCall& call;
  const AttentionTask& task;
  Columns x;
  int64_t pairs;      // of a key's numbers
  int64_t depth;      // the same, in whole tiles
  Pair* q;            // [count, depth]; in tiles [room, depth]
  PairRows k{};       // [depth, 64] of a block of keys
  Pair* k_rows = {};  // [64, pairs padded] the same before it is turned, where keys lie in rows
  PairRows v{};       // [32, value_padded, in whole pairs of vectors] of the block's values
  float* total;       // [count, 16] running sum l, lane by lane
  float unit;         // what makes of a score, where it has no cap a product, one in units of ln 2
  KeyBlock block{};
  Lines ahead{};        // of a block that comes later
  int64_t at_once = 0;  // so many of them a step

  MOE_BF16 ForwardPairs(const AttentionCall& of, const AttentionTask& todo, Arena& scratch)
      : call(of),
        task(todo),
        x(load_columns(of, task, scratch)),
        unit((of.cap > 0 ? of.cap : of.scale) * kLog2E) {
    const int64_t width = x.width, rows = kWhole ? x.room : x.count;
    pairs = (width + 1) / 2;
    depth = kWhole ? padded_width(pairs) : pairs;
    q = alloc<Pair>(scratch, rows * depth);
    if (kWhole) std::fill_n(q, rows * depth, 0);
    total = alloc<float>(scratch, x.count * kLanes);
    for (int64_t j = 0; j < x.count; ++j) {
      const AttentionColumn at = column_at(call, task, j);
      copy_pairs(q + j * depth, call.q, at.row, at.head * width, width);
    }
  }
  Pair* alloc_key_rows(Arena& scratch) const {
    const int64_t count = call.kv->keys_transposed() ? 0 : kKeyBlock * padded_width(pairs);
    Pair* rows = alloc<Pair>(scratch, count);
    std::fill_n(rows, count, 0);
    return rows;
  }
  // Vectors of a row of values that load_values() writes.
  int64_t value_vectors() const { return (x.value_padded + 2 * kLanes - 1) / (2 * kLanes) * 2; }
  MOE_BF16 void begin() {
    std::fill_n(x.highest, x.room, -kInfinity);
    std::fill_n(total, x.count * kLanes, 0.0f);
  }
  // Of products of a panel with the first `keys` of a block, tanh(s / cap) where there is a cap.
  HWY_INLINE void hold(const Panel& panel, float* score, int64_t keys) const {
    if (call.cap > 0) hold_back(panel.count, keys, score, kKeyBlock, call.scale / call.cap, 1);
  }
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f, kRise = 8.0f;
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
  // Whether each of `count` columns from `begin` on sees all 64 keys of the block at hand.
  bool sees_all(int64_t begin, int64_t count) const {
    for (int64_t j = begin; j < begin + count; ++j)
      if (x.first_seen[j] > block.position || x.position[j] + 1 < block.position + kKeyBlock)
        return false;
    return true;
  }
  // The keys of the block that a column sees, a bit each.
  uint64_t seen_by(int64_t column) const {
    const int64_t low = std::max<int64_t>(x.first_seen[column] - block.position, 0),
                  high = std::min(x.position[column] + 1 - block.position, kKeyBlock);
    return low < high ? ~uint64_t{0} >> (kKeyBlock - high + low) << low : 0;
  }
  // Softmax over the keys of kVectors vectors: scores become pairs p, and l moves on. Returns
  // whether some level rose: then `shrink` is what of p, l and o is left of each column, and l has
  // shrunk. `between(i)` is called behind column i.  score [columns, 64]; shrink [columns]
  template <int kVectors, bool kMasked, class F>
  MOE_BF16 bool softmax_panel(const Panel& panel, const float* score, const PairsOfKeys& p,
                              float* shrink, const F& between);
  // The same, by what the panel sees of the block.
  template <class F>
  MOE_BF16 bool softmax_panel(const Panel& panel, const float* score, const PairsOfKeys& p,
                              float* shrink, const F& between);
  template <int kVectors, bool kMasked>
  MOE_BF16 HWY_INLINE __m512 most_of(const float* score, int64_t column) const;
  // Where scores are too far above the column's level.
  MOE_BF16 HWY_INLINE __mmask16 is_above(__m512 most, int64_t column) const {
    return _mm512_cmp_ps_mask(
        _mm512_fmsub_ps(most, _mm512_set1_ps(unit), _mm512_set1_ps(x.highest[column])),
        _mm512_set1_ps(kRise), _CMP_GT_OQ);
  }
  template <int kVectors, bool kMasked>
  MOE_BF16 HWY_NOINLINE void rise(const Panel& panel, const float* score, float* shrink);
  // A block's keys, where they lie transposed, and values are to be fetched while this one's are
  // gone through.
  void fetch_beside(const Ahead& of);
  MOE_BF16 void load_keys();
  MOE_BF16 void load_values();
};

template <bool kWhole>
void ForwardPairs<kWhole>::fetch_beside(const Ahead& of) {
  ahead = lines_of(call, of);
  // steps in which a block is laid out, and in which all columns' products meet it
  const int64_t laid = pairs + kKeyBlock / 2, panels = (x.count + kTileRows - 1) / kTileRows,
                pieces = (x.value_padded + kTileVectors * kLanes - 1) / (kTileVectors * kLanes),
                met = fetches_all_the_while() ? panels * (pairs + pieces * kKeyBlock / 2) : 0;
  at_once = (ahead.count() + laid + met - 1) / (laid + met);
}

// Lanes without a key hold anything.
template <bool kWhole>
MOE_BF16 void ForwardPairs<kWhole>::load_keys() {
  const KvView& kv = *call.kv;
  const int64_t width = x.width;
  if (!kv.keys_transposed()) {
    const int64_t ld = padded_width(pairs);
    for (int64_t j = block.first; j < block.end; ++j)
      copy_pairs(k_rows + j * ld, kv.k, block.row + j, task.kv_head * width, width);
    for (int64_t j = 0; j < kKeyBlock / kLanes; ++j)
      transpose_block(reinterpret_cast<float*>(k.at + j * k.vector), k.row,
                      reinterpret_cast<const float*>(k_rows + j * kLanes * ld), ld, kLanes, ld);
    return;
  }
  const bf16* panel = transposed_keys<bf16>(call, task, block.row, x.width);
  Pair* to = k.at;
  for (int64_t c = 0; c < width; c += 2, panel += 2 * kKeyBlock, to += k.row) {
    fetch_some();
    for (int64_t j = 0; j < kKeyBlock / kLanes; j += 2) {
      const bf16* row = panel + j * kLanes;
      store_pairs(to + j * k.vector, to + (j + 1) * k.vector, _mm512_loadu_si512(row),
                  c + 1 < width ? _mm512_loadu_si512(row + kKeyBlock) : _mm512_setzero_si512());
    }
  }
}

// Zero where a pair has no such key; in tiles also what else a tile of pairs holds.
template <bool kWhole>
MOE_BF16 void ForwardPairs<kWhole>::load_values() {
  const Tensor from = values_from(call, task.kv_head, block.row);
  const int64_t width = x.value_width, first = block.first, end = block.end;
  const auto seen = [&](int64_t key) {
    return key < first || key >= end ? nullptr : from.row<bf16>(key);
  };
  const int64_t from_key = kWhole ? 0 : first & ~int64_t{1},
                to_key = kWhole ? padded_width(end / 2 + end % 2) * 2 : end;
  Pair* to = v.at + from_key / 2 * v.row;
  for (int64_t key = from_key; key < to_key; key += 2, to += v.row) {
    fetch_some();
    pair_rows(to, v.vector, seen(key), seen(key + 1), width);
  }
}

// Of each lane's keys that the column sees, the largest score.
template <bool kWhole>
template <int kVectors, bool kMasked>
MOE_BF16 HWY_INLINE __m512 ForwardPairs<kWhole>::most_of(const float* score, int64_t column) const {
  __m512 most = _mm512_set1_ps(-kInfinity);
  const uint64_t seen = kMasked ? seen_by(column) : ~uint64_t{0};
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const __m512 s = _mm512_loadu_ps(score + j * kLanes);
    most = kMasked ? _mm512_mask_max_ps(most, static_cast<__mmask16>(seen >> j * kLanes), most, s)
                   : _mm512_max_ps(most, s);
  }
  return most;
}

template <bool kWhole>
template <int kVectors, bool kMasked>
MOE_BF16 HWY_NOINLINE void ForwardPairs<kWhole>::rise(const Panel& panel, const float* score,
                                                      float* shrink) {
  for (int64_t i = 0; i < panel.count; ++i) {
    const int64_t column = panel.begin + i;
    const __m512 most = most_of<kVectors, kMasked>(score + i * kKeyBlock, column);
    shrink[i] = 1.0f;
    if (!is_above(most, column)) continue;
    // Fine enough that the largest p of the first block is nearly 1, coarse enough that whole steps
    // from there are exact.
    constexpr float kGrid = 1024.0f;
    const float before = x.highest[column], reached = _mm512_reduce_max_ps(most) * unit;
    x.highest[column] = before == -kInfinity ? std::ceil(reached * kGrid) / kGrid
                                             : before + std::ceil(reached - before);
    shrink[i] = std::exp2(before - x.highest[column]);
    float* running = total + column * kLanes;
    _mm512_storeu_ps(running, _mm512_mul_ps(_mm512_loadu_ps(running), _mm512_set1_ps(shrink[i])));
  }
}

template <bool kWhole>
template <int kVectors, bool kMasked, class F>
MOE_BF16 bool ForwardPairs<kWhole>::softmax_panel(const Panel& panel, const float* score,
                                                  const PairsOfKeys& p, float* shrink,
                                                  const F& between) {
  const int count = static_cast<int>(panel.count);
  const __m512 to_unit = _mm512_set1_ps(unit);
  __mmask16 above = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t column = panel.begin + i;
    above |= is_above(most_of<kVectors, kMasked>(score + i * kKeyBlock, column), column);
  }
  if (above != 0) rise<kVectors, kMasked>(panel, score, shrink);
  for (int i = 0; i < count; ++i) {
    const int64_t column = panel.begin + i;
    const float* at = score + i * kKeyBlock;
    float* running = total + column * kLanes;
    // where nothing was seen yet, -inf - -inf must not come about
    const __m512 level =
        _mm512_set1_ps(kMasked ? std::max(x.highest[column], -1e30f) : x.highest[column]);
    const uint64_t seen = kMasked ? seen_by(column) : ~uint64_t{0};
    __m512 e[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      e[j] = power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(at + j * kLanes), to_unit, level));
      if (kMasked) e[j] = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> j * kLanes), e[j]);
    }
    __m512 sum = _mm512_add_ps(e[0], e[1]);
    if constexpr (kVectors == 4) sum = _mm512_add_ps(sum, _mm512_add_ps(e[2], e[3]));
    _mm512_storeu_ps(running, _mm512_add_ps(_mm512_loadu_ps(running), sum));
    Pair* to = p.at + i * p.column;
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; j += 2)
      _mm512_storeu_si512(to + j / 2 * p.two_vectors, (__m512i)_mm512_cvtne2ps_pbh(e[j + 1], e[j]));
    between(i);
  }
  return above != 0;
}

template <bool kWhole>
template <class F>
MOE_BF16 bool ForwardPairs<kWhole>::softmax_panel(const Panel& panel, const float* score,
                                                  const PairsOfKeys& p, float* shrink,
                                                  const F& between) {
  if (panel.whole) return softmax_panel<4, false>(panel, score, p, shrink, between);
  if (panel.high > kKeyBlock / 2) return softmax_panel<4, true>(panel, score, p, shrink, between);
  return softmax_panel<2, true>(panel, score, p, shrink, between);
}

struct ForwardBf16 : ForwardPairs<false> {
  float* score;  // [6, 64]
  Pair* p;       // [6, 32] pairs of exponentials
  bool rose = false;

  static constexpr bool kTogether = true;

  // `beside`: one whose block this one may lay out in the same memory.
  MOE_BF16 ForwardBf16(const AttentionCall& of, const AttentionTask& todo,
                       const ForwardBf16* beside, Arena& scratch)
      : ForwardPairs(of, todo, scratch) {
    if (beside != nullptr) {
      k = beside->k;
      k_rows = beside->k_rows;
      v = beside->v;
      score = beside->score;
      p = beside->p;
      return;
    }
    const int64_t padded = padded_width(pairs), vectors = value_vectors();
    k = {alloc<Pair>(scratch, padded * kKeyBlock), kKeyBlock, kLanes};
    k_rows = alloc_key_rows(scratch);
    v = {alloc<Pair>(scratch, kKeyBlock / 2 * vectors * kLanes), vectors * kLanes, kLanes};
    score = alloc<float>(scratch, kTileRows * kKeyBlock);
    p = alloc<Pair>(scratch, kTileRows * kKeyBlock / 2);
  }
  MOE_BF16 void begin() {
    ForwardPairs::begin();
    std::fill_n(x.out, x.room * x.value_padded, 0.0f);
  }
  int64_t columns_at_once(bool) const { return kTileRows; }
  MOE_BF16 void load(const KeyBlock& next, const Ahead& then) {
    block = next;
    fetch_beside(then);
    load_keys();
    load_values();
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
    product(panel.count, padded_width(panel.high), pairs, {q + panel.begin * pairs, pairs, 1}, k.at,
            k.row, score, kKeyBlock, Written());
    hold(panel, score, padded_width(panel.high));
  }
  MOE_BF16 void softmax(const Panel& panel) {
    Panel seen = panel;
    seen.whole = panel.whole && panel.low == 0 && panel.high == kKeyBlock;
    rose =
        softmax_panel(seen, score, {p, kKeyBlock / 2, kLanes}, x.shrink + panel.begin, [](int) {});
  }
  MOE_BF16 void values(const Panel& panel) {
    const int64_t begin = panel.low / 2, keys = (panel.high + 1) / 2 - begin;
    const auto add = [&](auto into) MOE_BF16 {
      product(panel.count, x.value_padded, keys, {p + begin, kKeyBlock / 2, 1},
              v.at + begin * v.row, v.row, x.out + panel.begin * x.value_padded, x.value_padded,
              into);
    };
    if (rose) add(Scaled{x.shrink + panel.begin});
    else add(Added());
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
