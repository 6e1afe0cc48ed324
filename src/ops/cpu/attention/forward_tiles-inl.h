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

// The same in AMX tiles, 32 columns a panel. While the exponentials of one panel are taken its
// neighbours are multiplied: the values of the one before it, the scores of the one behind it.
// While keys are laid out, the values of the last panel of the block before them are; while values
// are, the scores of the first.
struct ForwardTiles : ForwardPairs<true> {
  static constexpr int64_t kPanel = 2 * kPairTile;
  struct Side {
    float* score;  // [32, 64]
    Pair* p;       // [32, 32] pairs of exponentials
    Panel panel;
  };
  Side sides[2];
  int here = 0;      // the side whose panel is next
  int64_t next = 0;  // the first column behind that panel
  bool more = false;
  TileSteps steps;

  // A panel's values wait for the block after it, so no other task's may be laid out in between.
  static constexpr bool kTogether = false;

  MOE_BF16 ForwardTiles(const AttentionCall& of, const AttentionTask& todo, const ForwardTiles*,
                        Arena& scratch)
      : ForwardPairs(of, todo, nullptr, scratch) {
    for (Side& side : sides)
      side = {alloc<float>(scratch, kPanel * kKeyBlock),
              alloc<Pair>(scratch, kPanel * kKeyBlock / 2),
              {}};
  }

  // Whether there is a panel, from column `next` on, that sees some of the block; it becomes a
  // side's.
  MOE_BF16 bool find(Side& side) {
    for (; next < x.count; next += kPanel) {
      side.panel = panel_of(x, block, next, std::min(kPanel, x.count - next), false);
      if (side.panel.low >= side.panel.high) continue;
      next += kPanel;
      return true;
    }
    return false;
  }
  MOE_BF16 void load(const KeyBlock& at, const Ahead& then) {
    block = at;
    fetch_beside(then);
    next = 0;
    const auto step = [this] { steps.step(); };
    load_keys(step);
    steps.finish();
    more = find(sides[here]);
    if (more) add_scores(sides[here]);
    load_values(step);
    steps.finish();
  }
  MOE_BF16 void attend(const KeyBlock&, bool) {
    for (; more; here ^= 1) {
      more = find(sides[here ^ 1]);
      if (more) add_scores(sides[here ^ 1]);
      softmax(sides[here]);
      steps.finish();
      add_values(sides[here]);
    }
  }
  void finish() { steps.finish(); }
  // Rows, and keys or their pairs, that a panel's products take: whole tiles.
  static int64_t rows_of(const Panel& panel) { return padded_width(panel.count); }
  static int64_t key_pairs_of(const Panel& panel) { return padded_width((panel.high + 1) / 2); }
  void add_scores(const Side& side) {
    const Panel& panel = side.panel;
    steps.add({q + panel.begin * depth, k, depth, kKeyBlock, side.score, kKeyBlock, false},
              rows_of(panel), 2 * key_pairs_of(panel), depth);
  }
  void add_values(const Side& side) {
    const Panel& panel = side.panel;
    steps.add({side.p, v, kKeyBlock / 2, x.value_padded, x.out + panel.begin * x.value_padded,
               x.value_padded, true},
              rows_of(panel), x.value_padded, key_pairs_of(panel));
  }
  MOE_BF16 void softmax(const Side& side) {
    if (key_pairs_of(side.panel) > kLanes) softmax_rows<4>(side);
    else softmax_rows<2>(side);
  }
  template <int kVectors>
  MOE_BF16 void softmax_rows(const Side& side);
};

// A step of the neighbours' products follows every fourth maximum and every second column.
template <int kVectors>
MOE_BF16 void ForwardTiles::softmax_rows(const Side& side) {
  alignas(64) float shrink[kPanel];
  const int64_t begin = side.panel.begin;
  hold(side.panel, side.score, kVectors * kLanes);
  softmax_panel<kVectors>(
      side.panel, side.score, side.p, shrink,
      [this](int i) {
        if (i % 4 == 3) steps.step();
      },
      [this, begin, &shrink](int i) MOE_BF16 {
        // Times 1 changes no bit: most columns have seen their maximum long before.
        if (shrink[i] != 1.0f) {
          float* out = x.out + (begin + i) * x.value_padded;
          for (int64_t c = 0; c < x.value_padded; c += kLanes)
            _mm512_storeu_ps(out + c,
                             _mm512_mul_ps(_mm512_loadu_ps(out + c), _mm512_set1_ps(shrink[i])));
        }
        if (i % 2 == 1) steps.step();
      });
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
  Ahead fetched{};

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
  MOE_BF16 void load(const KeyBlock& at, const Ahead& further) {
    block = at;
    fetched = further;
  }
  MOE_BF16 void attend(const KeyBlock&, bool) {
    Side& side = sides[0];
    side.panel = panel_of(x, block, 0, kColumns, false);
    scores();
    softmax(side);
    for (int64_t i = 0; i < kColumns; ++i)
      for (int64_t j = 0; j < key_pairs_of(side.panel); j += kLanes / 2)
        widen_pairs(p_wide + i * kKeyBlock + 2 * j, side.p + i * kKeyBlock / 2 + j);
    int64_t c = 0;
    for (; c + kLanes * kVectors <= x.value_width; c += kLanes * kVectors) values<kVectors>(c);
    for (; c < x.value_width; c += kLanes) values<1>(c);
  }
  static constexpr int kVectors = 8 / kColumns;  // of values at once, so that sums fit registers
  MOE_BF16 void scores() const;
  template <int kVectorsHere>
  MOE_BF16 void values(int64_t col) const;
};

template <int kColumns>
MOE_BF16 void ForwardFew<kColumns>::scores() const {
  constexpr int kKeys = kKeyBlock / kLanes;
  const bf16 *keys = transposed_keys<bf16>(call, task, block.row, x.width),
             *then_keys = transposed_keys<bf16>(call, *fetched.task, fetched.row, x.width);
  __m512 sum[kColumns][kKeys];
  for (auto& column : sum)
    for (__m512& s : column) s = _mm512_setzero_ps();
  for (int64_t from = 0; from < x.width; from += kDepth) {
    __m512 part[2][kColumns][kKeys];
    for (auto& half : part)
      for (auto& column : half)
        for (__m512& s : column) s = _mm512_setzero_ps();
    const auto add = [&](int64_t c, int half) MOE_BF16 {
      const bf16* row = keys + c * kKeyBlock;
      fetch(then_keys + c * kKeyBlock);
      fetch(then_keys + c * kKeyBlock + 2 * kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) {
        const __m512 k16 =
            widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j * kLanes)));
#pragma GCC unroll 2
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
    for (int i = 0; i < kColumns; ++i)
      for (int j = 0; j < kKeys; ++j)
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_add_ps(part[0][i][j], part[1][i][j]));
  }
  for (int i = 0; i < kColumns; ++i)
    for (int j = 0; j < kKeys; ++j)
      _mm512_storeu_ps(sides[0].score + i * kKeyBlock + j * kLanes, sum[i][j]);
}

// Of the columns of values from `col` on, the last vector's perhaps in part.
template <int kColumns>
template <int kVectorsHere>
MOE_BF16 void ForwardFew<kColumns>::values(int64_t col) const {
  const Tensor values_here = values_from(call, task.kv_head, block.row),
               values_then = values_from(call, fetched.task->kv_head, fetched.row);
  const auto row_of = [&](const Tensor& of, int64_t key) MOE_BF16 {
    return reinterpret_cast<const bf16*>(static_cast<const char*>(of.data) + key * of.row_bytes) +
           col;
  };
  const int64_t whole = 2 * key_pairs_of(sides[0].panel);
  const auto mask = static_cast<__mmask16>(
      first_lanes(std::min<int64_t>(kLanes, x.value_width - col - (kVectorsHere - 1) * kLanes)));
  __m512 sum[kColumns][kVectorsHere];
#pragma GCC unroll 2
  for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectorsHere; ++j)
      sum[i][j] = _mm512_loadu_ps(x.out + i * x.value_padded + col + j * kLanes);
  for (int64_t begin = 0; begin < whole; begin += kDepth) {
    __m512 part[2][kColumns][kVectorsHere];
    for (auto& half : part)
      for (auto& column : half)
        for (__m512& s : column) s = _mm512_setzero_ps();
    const auto add = [&](int64_t key, int half) MOE_BF16 {
      const bf16 *row = row_of(values_here, key), *then_row = row_of(values_then, key);
#pragma GCC unroll 4
      for (int j = 0; j < kVectorsHere; j += 2) fetch(then_row + j * kLanes);
#pragma GCC unroll 8
      for (int j = 0; j < kVectorsHere; ++j) {
        const __m512 v16 = widen(_mm256_maskz_loadu_epi16(
            j + 1 < kVectorsHere ? __mmask16{0xFFFF} : mask, row + j * kLanes));
#pragma GCC unroll 2
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
#pragma GCC unroll 2
    for (int i = 0; i < kColumns; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < kVectorsHere; ++j)
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_add_ps(part[0][i][j], part[1][i][j]));
  }
#pragma GCC unroll 2
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
