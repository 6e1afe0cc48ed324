// The forward of attention in AMX tiles, and the same sums to the bit without them where a task has
// few columns, as when a text is written token by token.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_FORWARD_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_FORWARD_TILES_INL_H_
#undef MOE_OPS_CPU_ATTENTION_FORWARD_TILES_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_FORWARD_TILES_INL_H_
#endif

#include "ops/cpu/attention/forward_bf16-inl.h"
#include "ops/cpu/attention/pair_tiles.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// Tasks of so few columns read keys and values where they lie.
constexpr int64_t kFewReadInPlace = 4;

// The same in AMX tiles, 32 columns a panel. Many columns meet the keys of a whole stretch: its
// blocks are laid out one after the other, then each panel takes scores and exponentials of block
// after block, and the values of all of them at once, so that its sums stay in the tiles. Of one
// panel's columns a block is done with before the next is laid out.
struct ForwardTiles : ForwardPairs<true> {
  static constexpr int64_t kPanel = 2 * kPairTile;
  static constexpr int64_t kBlocks = kStretch / kKeyBlock;
  static constexpr int64_t kTileWords = kPairTile * kPairTile;
  // Exponentials: of each two vectors of keys a tile's width of 32 columns.
  static constexpr int64_t kTwoVectors = kPanel * kPairTile;
  float* score;                // [32, 64]
  Pair* p;                     // [16 or 2 of two vectors of keys, 32, 16]
  Pair* keys = nullptr;        // of each block of the stretch
  Pair* values = nullptr;      // their first row
  KeyBlock blocks[kBlocks]{};  // of the stretch
  int64_t laid = 0;            // of them are laid out
  Ahead then[kBlocks]{};       // a stretch further on
  int64_t fetched = 0;         // of those that were fetched or are being fetched
  int64_t lines_a_column = 0;  // of a block

  // A stretch's values wait for its end, so no other task's may be laid out in between.
  static constexpr bool kTogether = false;

  MOE_BF16 ForwardTiles(const AttentionCall& of, const AttentionTask& todo, const ForwardTiles*,
                        Arena& scratch)
      : ForwardPairs(of, todo, scratch) {
    score = alloc<float>(scratch, kPanel * kKeyBlock);
    if (!has_blocks()) {
      p = alloc<Pair>(scratch, kPanel * kKeyBlock / 2);
      return;
    }
    const int64_t room = waits() ? kBlocks : 1, pairs_of_keys = room * kKeyBlock / 2;
    p = alloc<Pair>(scratch, kPanel * pairs_of_keys);
    // A line more, or vectors of a row would fall on the same few cache sets.
    k = {nullptr, kLanes, depth * kLanes + kLanes};
    v = {nullptr, kLanes, pairs_of_keys * kLanes + kLanes};
    keys = alloc<Pair>(scratch, room * block_words());
    std::fill_n(keys, room * block_words(), 0);
    k_rows = alloc_key_rows(scratch);
    values = alloc<Pair>(scratch, value_vectors() * v.vector);
    const int64_t numbers = (x.width + x.value_width) * kKeyBlock,
                  lines = numbers * static_cast<int64_t>(sizeof(bf16)) / Lines::kLineBytes;
    lines_a_column = waits() ? (lines + x.count - 1) / x.count : 0;
  }
  int64_t block_words() const { return kKeyBlock / kLanes * k.vector; }
  bool waits() const { return x.count > kPanel; }
  // Where few columns read keys and values where they lie (ForwardFew) nothing is laid out.
  bool has_blocks() const { return x.count > kFewReadInPlace || !call.kv->keys_transposed(); }
  int64_t steps_ahead() const { return waits() ? kBlocks : 2; }

  MOE_BF16 void begin() {
    ForwardPairs::begin();
    if (!waits()) std::fill_n(x.out, x.room * x.value_padded, 0.0f);
    laid = 0;
  }
  MOE_BF16 void load(const KeyBlock& at, const Ahead& further) {
    block = at;
    at_once = 0;
    if (!waits()) {
      fetch_beside(further);
      laid = 0;
    }
    k.at = keys + laid * block_words();
    v.at = values + laid * kKeyBlock / 2 * kLanes;
    load_keys();
    load_values();
    then[laid] = further;
    blocks[laid++] = at;
  }
  MOE_BF16 void attend(const KeyBlock&, bool) {
    if (waits()) return;
    const Panel panel = panel_of(x, block, 0, x.count, sees_all(0, x.count));
    if (panel.low >= panel.high) return;
    scores(0, panel);
    if (softmax(panel, p)) {
      for (int64_t i = 0; i < panel.count; ++i) shrink_row(x.out + i * x.value_padded, x.shrink[i]);
    }
    add_values(panel, 0, 1, true);
  }
  MOE_BF16 void finish() {
    if (!waits()) return;
    ahead = {};
    fetched = 0;
    for (int64_t c = 0; c < x.count; c += kPanel) walk(c, std::min(kPanel, x.count - c));
  }
  // A column's share of a block of the stretch behind this one.
  HWY_INLINE void fetch_further() {
    if (ahead.count() == 0 && fetched < laid) fetch_beside(then[fetched++]);
    ahead.template fetch_some<false>(lines_a_column);
  }
  MOE_BF16 void walk(int64_t begin, int64_t columns);
  MOE_BF16 void scores(int64_t at, const Panel& panel) {
    PairTiles{
        q + panel.begin * depth,        keys + at * block_words(), score, TilesAt::rows(depth),
        {kLanes, kTileWords, k.vector}, TilesAt::rows(kKeyBlock),  false}
        .run(padded_width(panel.count), panel.high > kKeyBlock / 2 ? kKeyBlock : kKeyBlock / 2,
             depth);
    hold(panel, score, kKeyBlock);
  }
  MOE_BF16 bool softmax(const Panel& panel, Pair* to) {
    return softmax_panel(panel, score, {to, kPairTile, kTwoVectors}, x.shrink,
                         [this](int) MOE_BF16 { fetch_further(); });
  }
  // Of the blocks [from, end) of the stretch, the last of which this panel was of.
  MOE_BF16 void add_values(const Panel& panel, int64_t from, int64_t end, bool add) const {
    constexpr int64_t kPairs = kKeyBlock / 2;
    PairTiles{p + from * 2 * kTwoVectors,
              values + from * kPairs * kLanes,
              x.out + panel.begin * x.value_padded,
              {kPairTile, kPairTile * kPairTile, kTwoVectors},
              {kLanes, kTileWords, v.vector},
              TilesAt::rows(x.value_padded),
              add}
        .run(padded_width(panel.count), x.value_padded,
             (end - from - 1) * kPairs + (panel.high > kKeyBlock / 2 ? kPairs : kPairs / 2));
  }
  MOE_BF16 void shrink_row(float* out, float factor) const {
    if (factor == 1.0f) return;
    for (int64_t c = 0; c < x.value_padded; c += kLanes)
      _mm512_storeu_ps(out + c, _mm512_mul_ps(_mm512_loadu_ps(out + c), _mm512_set1_ps(factor)));
  }
  // What a column's exponentials were before its level rose.
  MOE_BF16 void shrink_pairs(Pair* to, float factor) const {
    if (factor == 1.0f) return;
    const __m512i words = _mm512_loadu_si512(to), upper = _mm512_set1_epi32(-65536);
    const auto times = [factor](__m512i x) MOE_BF16 {
      return _mm512_mul_ps(_mm512_castsi512_ps(x), _mm512_set1_ps(factor));
    };
    const __m512i second = _mm512_castps_si512(times(_mm512_and_si512(words, upper))),
                  first = _mm512_castps_si512(times(_mm512_slli_epi32(words, 16)));
    _mm512_storeu_si512(
        to, _mm512_or_si512(_mm512_and_si512(second, upper), _mm512_srli_epi32(first, 16)));
  }
};

// All of the stretch that a panel sees.
MOE_BF16 void ForwardTiles::walk(int64_t begin, int64_t columns) {
  const auto [oldest, newest] =
      std::minmax_element(x.first_seen + begin, x.first_seen + begin + columns);
  const auto [lowest, highest] =
      std::minmax_element(x.position + begin, x.position + begin + columns);
  int64_t from = 0, end = laid;
  while (from < end && blocks[from].position + kKeyBlock <= *oldest) ++from;
  while (end > from && blocks[end - 1].position > *highest) --end;
  if (from == end) {
    std::fill_n(x.out + begin * x.value_padded, columns * x.value_padded, 0.0f);
    return;
  }
  Panel panel{begin, columns, 0, kKeyBlock, true};
  for (int64_t b = from; b < end; ++b) {
    block = blocks[b];
    panel.whole = *newest <= block.position && block.position + kKeyBlock <= *lowest + 1;
    if (b + 1 == end) panel.high = std::min(*highest + 1 - block.position, kKeyBlock);
    Pair* to = p + b * 2 * kTwoVectors;
    scores(b, panel);
    if (softmax(panel, to))
      for (Pair* before = p + from * 2 * kTwoVectors; before < to; before += kTwoVectors)
        for (int64_t i = 0; i < columns; ++i) shrink_pairs(before + i * kPairTile, x.shrink[i]);
  }
  add_values(panel, from, end, false);
}

// 16 numbers in f32.
MOE_BF16 HWY_INLINE __m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

HWY_INLINE void fetch(const void* line) {
  _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
}

// Of so few columns that laying a block out would cost more than its products: keys and values are
// read where they lie. Each sum is in the order of a tile's, to the bit: of every sixteen pairs the
// first numbers make one chain of fused multiply-adds and the second another, their sum is added to
// what was (Intel's manual of instruction set extensions, TDPBF16PS, whose subnormals are zero:
// FlushedSubnormals below).
template <int kColumns>
struct ForwardFew : ForwardTiles {
  static constexpr int64_t kDepth = 2 * kPairTile;  // numbers of sixteen pairs
  float* q_wide;                                    // [columns, C]
  float* p_wide;                                    // [columns, 64]
  Ahead further{};

  MOE_BF16 ForwardFew(const AttentionCall& of, const AttentionTask& todo, const ForwardFew*,
                      Arena& scratch)
      : ForwardTiles(of, todo, nullptr, scratch),
        q_wide(alloc<float>(scratch, kColumns * 2 * depth)),
        p_wide(alloc<float>(scratch, kColumns * kKeyBlock)) {
    for (int64_t j = 0; j < kColumns * depth; j += kLanes / 2) widen_pairs(q_wide + 2 * j, q + j);
  }
  MOE_BF16 static void widen_pairs(float* to, const Pair* from) {
    _mm512_storeu_ps(to, widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }
  MOE_BF16 void load(const KeyBlock& at, const Ahead& next) {
    block = at;
    further = next;
  }
  MOE_BF16 void attend(const KeyBlock&, bool) {
    const Panel panel = panel_of(x, block, 0, kColumns, sees_all(0, kColumns));
    for (int64_t j = 0; j < kKeyBlock / kLanes; j += kKeyVectors) scores_of<kKeyVectors>(j);
    hold(panel, score, kKeyBlock);
    Pair pairs_of_keys[kColumns * kKeyBlock / 2] = {};
    if (softmax_panel(panel, score, {pairs_of_keys, kKeyBlock / 2, kLanes}, x.shrink, [](int) {}))
      for (int64_t i = 0; i < kColumns; ++i) shrink_row(x.out + i * x.value_padded, x.shrink[i]);
    for (int64_t i = 0; i < kColumns; ++i)
      for (int64_t j = 0; j < kKeyBlock / 2; j += kLanes / 2)
        widen_pairs(p_wide + i * kKeyBlock + 2 * j, pairs_of_keys + i * kKeyBlock / 2 + j);
    keys_seen = panel.high > kKeyBlock / 2 ? kKeyBlock : kKeyBlock / 2;
    int64_t c = 0;
    for (; c + kLanes * kVectors <= x.value_width; c += kLanes * kVectors) values_of<kVectors>(c);
    for (; c < x.value_width; c += kLanes) values_of<1>(c);
  }
  int64_t keys_seen = kKeyBlock;  // of the block, in whole tiles
  // Vectors of keys, and of values, at once, so that their sums fit registers.
  static constexpr int kKeyVectors = kColumns <= 2 ? 4 : 2, kVectors = 8 / kColumns;
  template <int kVectorsHere>
  MOE_BF16 void scores_of(int64_t first) const;
  template <int kVectorsHere>
  MOE_BF16 void values_of(int64_t col) const;
};

// Of vectors of keys from `first` on.
template <int kColumns>
template <int kVectorsHere>
MOE_BF16 void ForwardFew<kColumns>::scores_of(int64_t first) const {
  const bf16 *keys = transposed_keys<bf16>(call, task, block.row, x.width) + first * kLanes,
             *then_keys =
                 transposed_keys<bf16>(call, *further.task, further.row, x.width) + first * kLanes;
  __m512 sum[kColumns][kVectorsHere];
  for (auto& column : sum)
    for (__m512& s : column) s = _mm512_setzero_ps();
  for (int64_t from = 0; from < x.width; from += kDepth) {
    __m512 part[2][kColumns][kVectorsHere];
    for (auto& half : part)
      for (auto& column : half)
        for (__m512& s : column) s = _mm512_setzero_ps();
    const auto add = [&](int64_t c, int half) MOE_BF16 __attribute__((always_inline)) {
      const bf16* row = keys + c * kKeyBlock;
#pragma GCC unroll 2
      for (int j = 0; j < kVectorsHere; j += 2) fetch(then_keys + c * kKeyBlock + j * kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < kVectorsHere; ++j) {
        const __m512 k16 =
            widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j * kLanes)));
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i)
          part[half][i][j] =
              _mm512_fmadd_ps(_mm512_set1_ps(q_wide[i * 2 * depth + c]), k16, part[half][i][j]);
      }
    };
    const int64_t end = std::min(from + kDepth, x.width);
    int64_t c = from;
    for (; c + 2 <= end; c += 2) {
      add(c, 0);
      add(c + 1, 1);
    }
    if (c < end) add(c, 0);
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kVectorsHere; ++j)
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_add_ps(part[0][i][j], part[1][i][j]));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectorsHere; ++j)
      _mm512_storeu_ps(score + i * kKeyBlock + (first + j) * kLanes, sum[i][j]);
}

// Of the columns of values from `col` on, the last vector's perhaps in part.
template <int kColumns>
template <int kVectorsHere>
MOE_BF16 void ForwardFew<kColumns>::values_of(int64_t col) const {
  const Tensor values_here = values_from(call, task.kv_head, block.row),
               values_then = values_from(call, further.task->kv_head, further.row);
  const auto row_of = [&](const Tensor& of, int64_t key) MOE_BF16 {
    return reinterpret_cast<const bf16*>(static_cast<const char*>(of.data) + key * of.row_bytes) +
           col;
  };
  const int64_t whole = keys_seen;
  const auto mask = static_cast<__mmask16>(
      first_lanes(std::min<int64_t>(kLanes, x.value_width - col - (kVectorsHere - 1) * kLanes)));
  __m512 sum[kColumns][kVectorsHere];
#pragma GCC unroll 8
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectorsHere; ++j)
      sum[i][j] = _mm512_loadu_ps(x.out + i * x.value_padded + col + j * kLanes);
  for (int64_t begin = 0; begin < whole; begin += kDepth) {
    __m512 part[2][kColumns][kVectorsHere];
    for (auto& half : part)
      for (auto& column : half)
        for (__m512& s : column) s = _mm512_setzero_ps();
    const auto add = [&](int64_t key, int half) MOE_BF16 __attribute__((always_inline)) {
      const bf16 *row = row_of(values_here, key), *then_row = row_of(values_then, key);
#pragma GCC unroll 4
      for (int j = 0; j < kVectorsHere; j += 2) fetch(then_row + j * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < kVectorsHere; ++j) {
        const __m512 v16 = widen(_mm256_maskz_loadu_epi16(
            j + 1 < kVectorsHere ? __mmask16{0xFFFF} : mask, row + j * kLanes));
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i)
          part[half][i][j] =
              _mm512_fmadd_ps(_mm512_set1_ps(p_wide[i * kKeyBlock + key]), v16, part[half][i][j]);
      }
    };
    int64_t key = std::max(begin, block.first);
    const int64_t end = std::min(begin + kDepth, block.end);
    if (key < end && key % 2 != 0) add(key++, 1);
    for (; key + 2 <= end; key += 2) {
      add(key, 0);
      add(key + 1, 1);
    }
    if (key < end) add(key, 0);
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kVectorsHere; ++j)
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_add_ps(part[0][i][j], part[1][i][j]));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectorsHere; ++j)
      _mm512_storeu_ps(x.out + i * x.value_padded + col + j * kLanes, sum[i][j]);
}

// Vectors take subnormal numbers for zero as long as this lives, as tiles always do.
class FlushedSubnormals {
 public:
  FlushedSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushedSubnormals() { _mm_setcsr(before_); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
  unsigned before_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
