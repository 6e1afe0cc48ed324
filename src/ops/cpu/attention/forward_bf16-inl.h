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

HWY_INLINE void fetch(const void* line) {
  _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
}

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
  const AttentionTask* then;  // the task after it, or this one
  Columns x;
  int64_t pairs;  // of a key's numbers
  int64_t depth;  // the same, in whole tiles
  Pair* q;        // [count, depth]; in tiles [room, depth]
  Pair* k;        // [depth, 64] of a block of keys
  Pair* k_rows;   // [64, pairs padded] the same before it is turned, where keys lie in rows
  Pair* v;  // [32, value_padded] pairs of the block's values, and a vector that the last row may
            // run over into
  float* total;  // [count, 16] running sum l, lane by lane
  float unit;    // what makes of a product a score in units of ln 2
  KeyBlock block{};

  MOE_BF16 ForwardPairs(const AttentionCall& of, std::span<const AttentionTask> tasks,
                        Arena& scratch)
      : call(of),
        task(tasks.front()),
        then(&tasks[tasks.size() > 1]),
        x(load_columns(of, task, scratch)),
        unit(of.scale * kLog2E) {
    const int64_t width = x.width, rows = kWhole ? x.room : x.count;
    pairs = (width + 1) / 2;
    depth = kWhole ? padded_width(pairs) : pairs;
    q = alloc<Pair>(scratch, rows * depth);
    k = alloc<Pair>(scratch, padded_width(pairs) * kKeyBlock);
    const int64_t turned = call.kv->keys_transposed() ? 0 : kKeyBlock * padded_width(pairs);
    k_rows = alloc<Pair>(scratch, turned);
    v = alloc<Pair>(scratch, kKeyBlock / 2 * x.value_padded + kLanes);
    total = alloc<float>(scratch, x.count * kLanes);
    if constexpr (kWhole) {
      std::fill_n(q, rows * depth, 0);
      std::fill_n(k, depth * kKeyBlock, 0);
      std::fill_n(k_rows, turned, 0);
    }
    for (int64_t j = 0; j < x.count; ++j) {
      const AttentionColumn at = column_at(call, task, j);
      copy_pairs(q + j * depth, call.q, at.row, at.head * width, width);
    }
  }
  void begin() {
    forget(x);
    std::fill_n(total, x.count * kLanes, 0.0f);
  }
  static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
  float highest_of(int64_t j) const { return x.highest[j] * kLn2; }
  float total_of(int64_t j) const {
    return SumLanesFixed(DF32(), hn::LoadU(DF32(), total + j * kLanes));
  }
  // Few queries are done with a block before the memory has brought another, and a head's rows lie
  // too far apart for the hardware to foresee: a line of the block that is this many further on is
  // fetched to the second level (to the first, which waits for few lines at once, was 12% slower in
  // decode).
  static constexpr int64_t kBlocksAhead = 2;
  struct Ahead {
    const AttentionTask* task;
    int64_t row;
  };
  Ahead ahead() const {
    const int64_t at = block.position + kBlocksAhead * kKeyBlock;
    if (at < x.past) return {&task, call.kv->row(task.sequence, at)};
    // A later column of the next task may see keys before those that its first one sees.
    const int64_t position = call.positions[static_cast<size_t>(column_at(call, *then, 0).row)],
                  first = std::max(call.first_seen(position) / kKeyBlock * kKeyBlock,
                                   then->first_stretch * kStretch),
                  further = first + at - (x.past + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    if (then != &task && further <= position) return {then, call.kv->row(then->sequence, further)};
    return {&task, block.row};  // fetching what was read does nothing
  }
  // Softmax over the keys of kVectors vectors: scores become pairs p, m and l move on, and shrink
  // is exp(m - m').  score [columns, 64]; p [columns, 32]; shrink [columns and a vector]
  // `between_maxima(i)` and `between(i)` are called behind column i in either of two loops.
  template <int kVectors, class Maxima, class F>
  MOE_BF16 void softmax_panel(const Panel& panel, const float* score, Pair* p, float* shrink,
                              const Maxima& between_maxima, const F& between) const;
  // `between` is called eight times or so while a block is laid out.
  template <class F>
  MOE_BF16 void load_keys(const Ahead& fetched, const F& between) const;
  template <class F>
  MOE_BF16 void load_values(const Ahead& fetched, const F& between) const;
};

// Lanes without a key hold anything.
template <bool kWhole>
template <class F>
MOE_BF16 void ForwardPairs<kWhole>::load_keys(const Ahead& fetched, const F& between) const {
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
  const bf16 *panel = transposed_keys<bf16>(call, task, block.row, x.width),
             *ahead = transposed_keys<bf16>(call, *fetched.task, fetched.row, x.width);
  Pair* to = k;
  for (int64_t c = 0; c < width;
       c += 2, panel += 2 * kKeyBlock, ahead += 2 * kKeyBlock, to += kKeyBlock) {
    if (c % 16 == 0) between();
    for (int64_t j = 0; j < kKeyBlock; j += 2 * kLanes) {
      fetch(ahead + j);
      fetch(ahead + kKeyBlock + j);
      store_pairs(
          to + j, _mm512_loadu_si512(panel + j),
          c + 1 < width ? _mm512_loadu_si512(panel + kKeyBlock + j) : _mm512_setzero_si512());
    }
  }
}

// Zero where a pair has no such key; in tiles also what else a tile of pairs holds.
template <bool kWhole>
template <class F>
MOE_BF16 void ForwardPairs<kWhole>::load_values(const Ahead& fetched, const F& between) const {
  const Tensor& from = call.kv->v;
  const int64_t width = x.value_width, row = block.row, first = block.first, end = block.end,
                row_bytes = from.row_bytes;
  const auto numbers_of = [&](const AttentionTask& of, int64_t at) {
    return reinterpret_cast<const bf16*>(static_cast<const char*>(from.data) + at * row_bytes) +
           of.kv_head * width;
  };
  const auto numbers = [&](int64_t at) { return numbers_of(task, at); };
  const auto seen = [&](int64_t key) {
    return key < first || key >= end ? nullptr : numbers(row + key);
  };
  const int64_t from_key = kWhole ? 0 : first & ~int64_t{1},
                to_key = kWhole ? padded_width(end / 2 + end % 2) * 2 : end;
  Pair* to = v + from_key / 2 * x.value_padded;
  for (int64_t key = from_key; key < to_key; key += 2, to += x.value_padded) {
    for (int64_t c = 0; c < width && key < end; c += 2 * kLanes) {
      fetch(numbers_of(*fetched.task, fetched.row + key) + c);
      fetch(numbers_of(*fetched.task, fetched.row + key + 1) + c);
    }
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
  float* score;  // [6, 64]
  Pair* p;       // [6, 32] pairs of exponentials

  MOE_BF16 ForwardBf16(const AttentionCall& of, std::span<const AttentionTask> tasks,
                       Arena& scratch)
      : ForwardPairs(of, tasks, scratch),
        score(alloc<float>(scratch, kTileRows * kKeyBlock)),
        p(alloc<Pair>(scratch, kTileRows * kKeyBlock / 2)) {}
  int64_t columns_at_once(bool) const { return kTileRows; }
  MOE_BF16 void load(const KeyBlock& next) {
    block = next;
    const Ahead fetched = ahead();
    load_keys(fetched, [] {});
    load_values(fetched, [] {});
  }
  MOE_BF16 void attend(const KeyBlock& at, bool whole) { attend_panels(*this, at, whole); }
  void finish() {}
  MOE_BF16 void scores(const Panel& panel) const {
    pair_product(panel.count, padded_width(panel.high), pairs, {q + panel.begin * pairs, pairs, 1},
                 k, kKeyBlock, score, kKeyBlock, Written());
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
  MOE_BF16 void values(const Panel& panel) const {
    const int64_t begin = panel.low / 2, depth = (panel.high + 1) / 2 - begin;
    pair_product(panel.count, x.value_padded, depth, {p + begin, kKeyBlock / 2, 1},
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
