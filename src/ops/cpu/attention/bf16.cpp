// Attention in bf16 pairs (VDPBF16PS, or AMX tiles), twice the numbers an instruction that f32.cpp
// takes: what the loops of forward-inl.h and backward-inl.h multiply with where keys and values are
// bf16 and the processor has products of it. Queries in f32 are rounded to bf16; scores are sums of
// exact products in f32; the exponentials p, P and dS are rounded to bf16 before they meet values,
// dO, Q and K, as FlashAttention does in halves. Sums are f32, l and lse of the unrounded p.
//
// A pair is a word of 32 bits, the first of its two numbers in the lower half: two neighbouring
// numbers of a row where a product sums over the width, two neighbouring keys or queries where it
// sums over those. Each element is one chain over its pairs in ascending order, or in AMX tiles
// over what each sixteen pairs come to, keys counted from position 0, so its bits depend on its own
// row of A and column of B alone, neither on the columns beside it nor on how a text was cut.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/error.h"
#include "ops/cpu/attention/backward-inl.h"
#include "ops/cpu/attention/forward_bf16-inl.h"
#include "ops/cpu/attention/forward_tiles-inl.h"
#include "ops/cpu/attention/pair_tiles.h"
#include "ops/cpu/attention/pairs-inl.h"
#include "ops/cpu/attention/tasks.h"
#include "ops/cpu/gemm/tile_product.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// ---- backward -----------------------------------------------------------------------------------

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
      pair_rows(x.stacked + i / 2 * x.padded, kLanes, t.row<bf16>(row + i) + col,
                i + 1 < rows ? t.row<bf16>(row + i + 1) + col : nullptr, x.width);
  }
  template <class Inner>
  static void alloc_gradients(Workspace<Inner>& w, Arena& scratch) {
    for (Pair** x : {&w.p, &w.ds, &w.ds_keys}) *x = alloc<Pair>(scratch, kKeyBlock * kKeyBlock / 2);
  }
  template <class Into>
  MOE_BF16 static void product(int64_t m, int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b,
                               int64_t ldb, float* c, int64_t ldc, Into into) {
    pair_product(m, n, depth, a, b, ldb, c, ldc, into, NothingElse());
  }
  // Where the keys are odd the last pair's second number is zero.
  template <bool kMasked, bool kCapped, class Inner>
  MOE_BF16 static void softmax_gradient(const Workspace<Inner>& w, int64_t column, int64_t keys,
                                        float factor, Sight sight) {
    const QueryVector<kMasked, kCapped> queries(w.lse, w.delta, factor, column, sight);
    const auto gradient = [&](int64_t j) MOE_BF16 {
      const int64_t at = j * kKeyBlock + column;
      const VF32 p = queries.probability(w.score + at, j),
                 ds = queries.gradient(p, w.score + at, w.dp + at);
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
    PairTiles{a.data,
              b,
              c,
              TilesAt::rows(a.row),
              TilesAt::rows(ldb),
              TilesAt::rows(ldc),
              std::is_same_v<Into, Added>}
        .run(m, n, depth);
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
  if (!has_tiles()) {
    while (!tasks.empty()) tasks = forward_tasks<ForwardBf16>(call, tasks, scratch);
    return;
  }
  const TilesInUse tiles;
  const FlushedSubnormals flushed;
  while (!tasks.empty()) {
    const int64_t columns = tasks.front().end - tasks.front().begin;
    const bool in_place = call.kv->keys_transposed() && columns <= kFewReadInPlace;
    if (in_place && columns == 1) tasks = forward_tasks<ForwardFew<1>>(call, tasks, scratch);
    else if (in_place && columns == 2) tasks = forward_tasks<ForwardFew<2>>(call, tasks, scratch);
    else if (in_place && columns == 3) tasks = forward_tasks<ForwardFew<3>>(call, tasks, scratch);
    else if (in_place && columns == 4) tasks = forward_tasks<ForwardFew<4>>(call, tasks, scratch);
    else tasks = forward_tasks<ForwardTiles>(call, tasks, scratch);
  }
}

MOE_BF16 void join_bf16(const AttentionCall& call, const AttentionTask& whole, Arena& scratch) {
  if (!has_tiles()) return join_task(call, whole, scratch);
  const FlushedSubnormals flushed;
  join_task(call, whole, scratch);
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

// The block of keys and values that a task lays out anew is met by so many columns; in tiles they
// are done with it sooner.
int64_t columns_of_task_bf16() { return has_tiles() ? 8 * kKeyBlock : kKeyBlock; }

#if HWY_TARGETS & HWY_AVX3
void attention_forward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                            Arena& scratch) {
  N_AVX3::forward_bf16(call, tasks, scratch);
}
void attention_join_bf16(const AttentionCall& call, const AttentionTask& whole, Arena& scratch) {
  N_AVX3::join_bf16(call, whole, scratch);
}
void attention_backward_bf16(const AttentionCall& call, std::span<const AttentionTask> tasks,
                             Arena& scratch) {
  N_AVX3::backward_bf16(call, tasks, scratch);
}
#else
void attention_forward_bf16(const AttentionCall&, std::span<const AttentionTask>, Arena&) {
  fail("attention in bf16 is not compiled for this processor");
}
void attention_join_bf16(const AttentionCall&, const AttentionTask&, Arena&) {
  fail("attention in bf16 is not compiled for this processor");
}
void attention_backward_bf16(const AttentionCall&, std::span<const AttentionTask>, Arena&) {
  fail("attention in bf16 is not compiled for this processor");
}
#endif

}  // namespace moe::ops
#endif
