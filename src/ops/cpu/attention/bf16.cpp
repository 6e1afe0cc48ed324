// Attention in bf16 pairs (VDPBF16PS), twice the numbers an instruction that f32.cpp takes: what
// the loops of forward-inl.h and backward-inl.h multiply with where keys and values are bf16 and
// the processor has products of it. Queries in f32 are rounded to bf16; scores are sums of exact
// products in f32; the exponentials p, P and dS are rounded to bf16 before they meet values, dO, Q
// and K, as FlashAttention does in halves. Sums are f32, l and lse of the unrounded p.
//
// A pair is a word of 32 bits, the first of its two numbers in the lower half: two neighbouring
// numbers of a row where a product sums over the width, two neighbouring keys or queries where it
// sums over those. Each element is one chain over its pairs in ascending order, keys counted from
// position 0, so its bits depend on its own row of A and column of B alone, neither on the columns
// beside it nor on how a text was cut.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/error.h"
#include "ops/cpu/attention/backward-inl.h"
#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/attention/forward-inl.h"
#include "ops/cpu/attention/pair_tiles.h"
#include "ops/cpu/attention/tasks.h"
#include "ops/cpu/gemm/tile_product.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

#define MOE_BF16 __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

using Pair = uint32_t;
constexpr int64_t kLanes = 16;

// A mask of the first `count` of 32 lanes, or of the first of 16 in its lower half.
HWY_INLINE uint32_t first_lanes(int64_t count) {
  return count >= 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
}

// Columns [col, col + cols) of row r as pairs, the last one filled with zero.
MOE_BF16 HWY_INLINE void copy_pairs(Pair* dst, const Tensor& t, int64_t r, int64_t col,
                                    int64_t cols) {
  if (t.dtype == DType::bf16) {
    const bf16* src = t.row<bf16>(r) + col;
    const int64_t pairs = (cols + 1) / 2;
    for (int64_t c = 0; c < cols; c += 2 * kLanes)
      _mm512_mask_storeu_epi32(dst + c / 2, static_cast<__mmask16>(first_lanes(pairs - c / 2)),
                               _mm512_maskz_loadu_epi16(first_lanes(cols - c), src + c));
    return;
  }
  dst[(cols - 1) / 2] = 0;
  const float* src = t.row<float>(r) + col;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const auto mask = static_cast<__mmask16>(first_lanes(cols - c));
    _mm256_mask_storeu_epi16(reinterpret_cast<bf16*>(dst) + c, mask,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, src + c)));
  }
}

// 32 pairs of which a holds the first numbers and b the second.
MOE_BF16 HWY_INLINE void store_pairs(Pair* dst, __m512i a, __m512i b) {
  // Numbers of b count from 32.
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(a, low, b));
  _mm512_storeu_si512(dst + kLanes, _mm512_permutex2var_epi16(a, high, b));
}

// Pairs of the numbers of two rows, a null row for zeros; whole vectors of 32 are written, zero
// beyond `cols`.
MOE_BF16 HWY_INLINE void pair_rows(Pair* dst, const bf16* first, const bf16* second, int64_t cols) {
  for (int64_t c = 0; c < cols; c += 2 * kLanes) {
    const auto mask = first_lanes(cols - c);
    const auto numbers = [&](const bf16* row) MOE_BF16 {
      return row == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(mask, row + c);
    };
    store_pairs(dst + c, numbers(first), numbers(second));
  }
}

// 16 numbers rounded, which make 8 pairs.
MOE_BF16 HWY_INLINE void store_rounded(Pair* dst, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), (__m256i)_mm512_cvtneps_pbh(x));
}

// a [kRows, depth]; b [depth, kVectors * 16]; c [kRows, kVectors * 16]
template <int kRows, int kVectors, class Into>
MOE_BF16 HWY_INLINE void pair_tile(BlockA<Pair> a, const Pair* HWY_RESTRICT b, int64_t ldb,
                                   float* HWY_RESTRICT c, int64_t ldc, int64_t depth, Into into) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = into.start(c + i * ldc + j * kLanes, i).raw;
  for (int64_t k = 0; k < depth; ++k, a.data += a.step, b += ldb) {
    __m512i row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const __m512i all = _mm512_set1_epi32(static_cast<int>(a.data[i * a.row]));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j)
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)all, (__m512bh)row[j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * ldc + j * kLanes, sum[i][j]);
}

// kRows rows of C, n columns.
template <int kRows, class Into>
MOE_BF16 void pair_panel(int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b, int64_t ldb,
                         float* c, int64_t ldc, Into into) {
  for (; n >= kTileVectors * kLanes;
       n -= kTileVectors * kLanes, b += kTileVectors * kLanes, c += kTileVectors * kLanes)
    pair_tile<kRows, kTileVectors>(a, b, ldb, c, ldc, depth, into);
  switch (n / kLanes) {
    case 3: return pair_tile<kRows, 3>(a, b, ldb, c, ldc, depth, into);
    case 2: return pair_tile<kRows, 2>(a, b, ldb, c, ldc, depth, into);
    case 1: return pair_tile<kRows, 1>(a, b, ldb, c, ldc, depth, into);
    default: return;
  }
}

// C = A B into what C holds, summed over pairs.  A [m, depth]; B [depth, n]; C [m, n]; n a multiple
// of 16
template <class Into>
MOE_BF16 void pair_product(int64_t m, int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b,
                           int64_t ldb, float* c, int64_t ldc, Into into) {
  for (; m >= kTileRows;
       m -= kTileRows, a.data += kTileRows * a.row, c += kTileRows * ldc, into.skip(kTileRows))
    pair_panel<kTileRows>(n, depth, a, b, ldb, c, ldc, into);
  switch (m) {
    case 5: return pair_panel<5>(n, depth, a, b, ldb, c, ldc, into);
    case 4: return pair_panel<4>(n, depth, a, b, ldb, c, ldc, into);
    case 3: return pair_panel<3>(n, depth, a, b, ldb, c, ldc, into);
    case 2: return pair_panel<2>(n, depth, a, b, ldb, c, ldc, into);
    case 1: return pair_panel<1>(n, depth, a, b, ldb, c, ldc, into);
    default: return;
  }
}

// ---- forward ------------------------------------------------------------------------------------

HWY_INLINE void fetch(const void* line) {
  _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
}

struct ForwardBf16 {
  const AttentionCall& call;
  const AttentionTask& task;
  const AttentionTask* then;  // the task after it, or this one
  Columns x;
  int64_t pairs;  // of a key's numbers
  Pair* q;        // [count, pairs]
  Pair* k;        // [pairs, 64] of a block of keys
  Pair* k_rows;   // [64, pairs padded] the same before it is turned, where keys lie in rows
  Pair* v;  // [32, value_padded] pairs of the block's values, and a vector that the last row may
            // run over into
  float* score;  // [6, 64]
  Pair* p;       // [6, 32] pairs of exponentials
  float* total;  // [count, 16] running sum l, lane by lane
  KeyBlock block{};

  MOE_BF16 ForwardBf16(const AttentionCall& of, std::span<const AttentionTask> tasks,
                       Arena& scratch)
      : call(of),
        task(tasks.front()),
        then(&tasks[tasks.size() > 1]),
        x(load_columns(of, task, scratch)) {
    const int64_t width = x.width;
    pairs = (width + 1) / 2;
    q = alloc<Pair>(scratch, x.count * pairs);
    k = alloc<Pair>(scratch, padded_width(pairs) * kKeyBlock);
    k_rows = alloc<Pair>(scratch, call.kv->keys_transposed() ? 0 : kKeyBlock * padded_width(pairs));
    v = alloc<Pair>(scratch, kKeyBlock / 2 * x.value_padded + kLanes);
    score = alloc<float>(scratch, kTileRows * kKeyBlock);
    p = alloc<Pair>(scratch, kTileRows * kKeyBlock / 2);
    total = alloc<float>(scratch, x.count * kLanes);
    for (int64_t j = 0; j < x.count; ++j) {
      const AttentionColumn at = column_at(call, task, j);
      copy_pairs(q + j * pairs, call.q, at.row, at.head * width, width);
    }
    std::fill_n(total, x.count * kLanes, 0.0f);
  }
  float total_of(int64_t j) const {
    return SumLanesFixed(DF32(), hn::LoadU(DF32(), total + j * kLanes));
  }
  int64_t columns_at_once(bool) const { return kTileRows; }
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
                  first = call.first_seen(position) / kKeyBlock * kKeyBlock,
                  further = first + at - (x.past + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    if (then != &task && further <= position) return {then, call.kv->row(then->sequence, further)};
    return {&task, block.row};  // fetching what was read does nothing
  }
  MOE_BF16 void load(const KeyBlock& next) {
    block = next;
    const Ahead fetched = ahead();
    load_keys(fetched);
    load_values(fetched);
  }
  MOE_BF16 void load_keys(const Ahead& fetched) const;
  MOE_BF16 void load_values(const Ahead& fetched) const;
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
  MOE_BF16 void softmax_rows(const Panel& panel) const;
  MOE_BF16 void values(const Panel& panel) const {
    const int64_t begin = panel.low / 2, depth = (panel.high + 1) / 2 - begin;
    pair_product(panel.count, x.value_padded, depth, {p + begin, kKeyBlock / 2, 1},
                 v + begin * x.value_padded, x.value_padded, x.out + panel.begin * x.value_padded,
                 x.value_padded, Scaled{x.shrink + panel.begin});
  }
};

// Lanes without a key hold anything.
MOE_BF16 void ForwardBf16::load_keys(const Ahead& fetched) const {
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
       c += 2, panel += 2 * kKeyBlock, ahead += 2 * kKeyBlock, to += kKeyBlock)
    for (int64_t j = 0; j < kKeyBlock; j += 2 * kLanes) {
      fetch(ahead + j);
      fetch(ahead + kKeyBlock + j);
      store_pairs(
          to + j, _mm512_loadu_si512(panel + j),
          c + 1 < width ? _mm512_loadu_si512(panel + kKeyBlock + j) : _mm512_setzero_si512());
    }
}

// Zero where a pair has no such key.
MOE_BF16 void ForwardBf16::load_values(const Ahead& fetched) const {
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
  Pair* to = v + first / 2 * x.value_padded;
  for (int64_t key = first & ~int64_t{1}; key < end; key += 2, to += x.value_padded) {
    for (int64_t c = 0; c < width; c += 2 * kLanes) {
      fetch(numbers_of(*fetched.task, fetched.row + key) + c);
      fetch(numbers_of(*fetched.task, fetched.row + key + 1) + c);
    }
    pair_rows(to, seen(key), seen(key + 1), width);
  }
}

// Softmax over the keys of kVectors vectors: scores become pairs p, and m and l move on. All maxima
// come before the first exponential, and nothing branches on them, so that the columns' chains run
// beside each other.
template <int kVectors>
MOE_BF16 void ForwardBf16::softmax_rows(const Panel& panel) const {
  constexpr uint64_t kAll = ~uint64_t{0} >> (kKeyBlock - kVectors * kLanes);
  const DF32 d;
  const int count = static_cast<int>(panel.count);
  alignas(64) float level[kLanes] = {}, fall[kLanes] = {};
  float* shrink = x.shrink + panel.begin;
  for (int i = 0; i < count; ++i) {
    float* at = score + i * kKeyBlock;
    const int64_t column = panel.begin + i;
    const int64_t low = std::max<int64_t>(x.first_seen[column] - block.position, 0),
                  high = std::min(x.position[column] + 1 - block.position, kKeyBlock);
    const uint64_t visible = low < high ? ~uint64_t{0} >> (kKeyBlock - high + low) << low : 0;
    __m512 s[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      s[j] = _mm512_mul_ps(_mm512_loadu_ps(at + j * kLanes), _mm512_set1_ps(call.scale));
    if (visible != kAll) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j)
        s[j] = _mm512_mask_mov_ps(_mm512_set1_ps(-kInfinity),
                                  static_cast<__mmask16>(visible >> j * kLanes), s[j]);
    }
    __m512 most = s[0];
#pragma GCC unroll 4
    for (int j = 1; j < kVectors; ++j) most = _mm512_max_ps(most, s[j]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(at + j * kLanes, s[j]);
    const float before = x.highest[column], highest = std::max(before, _mm512_reduce_max_ps(most));
    x.highest[column] = highest;
    level[i] = highest == -kInfinity
                   ? 0.0f
                   : highest;  // where every score is -inf: -inf - -inf must not come about
    fall[i] = before - level[i];
  }
  _mm512_storeu_ps(shrink, ExpNormal(d, VF32{_mm512_load_ps(fall)}).raw);
  for (int i = 0; i < count; ++i) {
    const float* at = score + i * kKeyBlock;
    Pair* pairs_at = p + i * kKeyBlock / 2;
    float* running = total + (panel.begin + i) * kLanes;
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const __m512 e =
          ExpNormal(d,
                    VF32{_mm512_sub_ps(_mm512_loadu_ps(at + j * kLanes), _mm512_set1_ps(level[i]))})
              .raw;
      sum = _mm512_add_ps(sum, e);
      store_rounded(pairs_at + j * kLanes / 2, e);
    }
    _mm512_storeu_ps(running,
                     _mm512_fmadd_ps(_mm512_loadu_ps(running), _mm512_set1_ps(shrink[i]), sum));
  }
}

// ---- backward -----------------------------------------------------------------------------------

// Pairs of which a holds the first numbers and b the second, rounded.
MOE_BF16 HWY_INLINE __m512i round_pairs(__m512 a, __m512 b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

struct BackwardBf16 {
  using Element = Pair;
  static constexpr int64_t kNumbers = 2;
  static constexpr bool kScaledQueries = false;
  static constexpr bool kWholeBlocks = false;
  static int64_t padded_rows(int64_t rows) { return padded_width(rows); }

  MOE_BF16 static void load_rows(const Operand<Pair>& x, const Tensor& t, int64_t row, int64_t rows,
                                 int64_t col, float) {
    for (int64_t i = 0; i < rows; ++i) copy_pairs(x.rows + i * x.ld, t, row + i, col, x.width);
  }
  // pair_rows() writes whole vectors of 32: what runs over the end of a row is overwritten by the
  // next one, or lies in the slack after the last.
  static void alloc_stacked(Operand<Pair>& x, int64_t rows, Arena& scratch) {
    x.stacks = (rows + 1) / 2;
    x.stacked = alloc<Pair>(scratch, x.stacks * x.padded + kLanes);
  }
  MOE_BF16 static void stack(const Operand<Pair>& x, const Tensor& t, int64_t row, int64_t rows,
                             int64_t col) {
    for (int64_t i = 0; i < rows; i += 2)
      pair_rows(x.stacked + i / 2 * x.padded, t.row<bf16>(row + i) + col,
                i + 1 < rows ? t.row<bf16>(row + i + 1) + col : nullptr, x.width);
  }
  template <class Inner>
  static void alloc_gradients(Workspace<Inner>& w, Arena& scratch) {
    for (Pair** x : {&w.p, &w.ds, &w.ds_keys}) *x = alloc<Pair>(scratch, kKeyBlock * kKeyBlock / 2);
  }
  template <class Into>
  MOE_BF16 static void product(int64_t m, int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b,
                               int64_t ldb, float* c, int64_t ldc, Into into) {
    pair_product(m, n, depth, a, b, ldb, c, ldc, into);
  }
  // Where the keys are odd the last pair's second number is zero.
  template <bool kMasked, class Inner>
  MOE_BF16 static void softmax_gradient(const Workspace<Inner>& w, int64_t column, int64_t keys,
                                        float factor, Sight sight) {
    const QueryVector<kMasked> queries(w.lse, w.delta, factor, column, sight);
    const auto gradient = [&](int64_t j) MOE_BF16 {
      const int64_t at = j * kKeyBlock + column;
      const VF32 p = queries.probability(w.score + at, j), ds = queries.gradient(p, w.dp + at);
      store_rounded(w.p + at / 2, p.raw);
      store_rounded(w.ds + at / 2, ds.raw);
      return ds.raw;
    };
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      const __m512 even = gradient(j), odd = gradient(j + 1);
      _mm512_storeu_si512(w.ds_keys + j / 2 * kKeyBlock + column, round_pairs(even, odd));
    }
    if (j < keys)
      _mm512_storeu_si512(w.ds_keys + j / 2 * kKeyBlock + column,
                          round_pairs(gradient(j), _mm512_setzero_ps()));
  }
};

// The same with products in AMX tiles, which take sixteen pairs of sixteen rows at once: all that a
// tile reads is zero where nothing is.
struct BackwardTiles : BackwardBf16 {
  static constexpr bool kWholeBlocks = true;
  // Two tiles of rows, one of pairs of them.
  static int64_t padded_rows(int64_t rows) {
    return (rows + 2 * kPairTile - 1) / (2 * kPairTile) * (2 * kPairTile);
  }
  MOE_BF16 static void load_rows(const Operand<Pair>& x, const Tensor& t, int64_t row, int64_t rows,
                                 int64_t col, float scale) {
    for (int64_t i = 0; x.ld > x.depth && i < rows; ++i)
      std::fill(x.rows + i * x.ld + x.depth, x.rows + (i + 1) * x.ld, 0);
    BackwardBf16::load_rows(x, t, row, rows, col, scale);
  }
  static void alloc_stacked(Operand<Pair>& x, int64_t rows, Arena& scratch) {
    BackwardBf16::alloc_stacked(x, padded_rows(rows), scratch);
  }
  MOE_BF16 static void stack(const Operand<Pair>& x, const Tensor& t, int64_t row, int64_t rows,
                             int64_t col) {
    BackwardBf16::stack(x, t, row, rows, col);
    std::fill(x.stacked + (rows + 1) / 2 * x.padded, x.stacked + padded_rows(rows) / 2 * x.padded,
              0);
  }
  template <class Into>
  MOE_BF16 static void product(int64_t m, int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b,
                               int64_t ldb, float* c, int64_t ldc, Into) {
    PairTiles{a.data, b, a.row, ldb, c, ldc, std::is_same_v<Into, Added>}.run(m, n, depth);
  }
  // Of the keys [begin, end) and 16 queries from `column` on.
  MOE_BF16 static void clear(const Workspace<BackwardTiles>& w, int64_t column, int64_t begin,
                             int64_t end) {
    for (int64_t j = begin; j < end; ++j)
      for (Pair* x : {w.p, w.ds})
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + (j * kKeyBlock + column) / 2),
                            _mm256_setzero_si256());
    for (int64_t j = begin; j < end; j += 2)
      _mm512_storeu_si512(w.ds_keys + j / 2 * kKeyBlock + column, _mm512_setzero_si512());
  }
};

MOE_BF16 void forward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                           Arena& scratch) {
  for (; !tasks.empty(); tasks = tasks.subspan(1)) forward_task<ForwardBf16>(call, tasks, scratch);
}

MOE_BF16 void backward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch) {
  if (!has_tiles()) {
    for (const AttentionTask& task : tasks) backward_task<BackwardBf16>(call, task, scratch);
    return;
  }
  const TilesInUse tiles;
  for (const AttentionTask& task : tasks) backward_task<BackwardTiles>(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace moe::ops {

#if HWY_TARGETS & HWY_AVX3
void attention_forward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch) {
  N_AVX3::forward_bf16(call, tasks, scratch);
}
void attention_backward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                             Arena& scratch) {
  N_AVX3::backward_bf16(call, tasks, scratch);
}
#else
void attention_forward_bf16(const AttentionCall&, std::span<const AttentionTask>, Arena&) {
  fail("attention in bf16 is not compiled for this processor");
}
void attention_backward_bf16(const AttentionCall&, std::span<const AttentionTask>, Arena&) {
  fail("attention in bf16 is not compiled for this processor");
}
#endif

}  // namespace moe::ops
#endif
