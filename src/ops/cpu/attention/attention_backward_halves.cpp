// Backward kernel of attention where everything is bf16 and the processor multiplies pairs of bf16 (VDPBF16PS). The algorithm and its letters are those of
// attention_backward.cpp; P and dS are rounded to bf16 before they meet dO, Q and K, as FlashAttention does in halves, and all sums are f32.
//
// Scores are held transposed, [key, query]. S and dP sum over pairs of a head's numbers, dV and dK over pairs of neighbouring queries, dQ over pairs of
// neighbouring keys, so each operand lies in scratch as the pairs that its product asks for: keys and values once for a task, queries once for a block.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/attention_backward_halves.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/error.h"
#include "ops/cpu/attention/attention_tasks.h"
#include "ops/cpu/gemm/pair_gemm-inl.h"
#include "ops/cpu/quant/block_gemm-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

// The width of a head, of q and k or of v and o, as the products count it.
struct HeadWidth {
  int64_t width;         // numbers of a row
  int64_t padded;        // the same in whole vectors
  int64_t pairs;         // pairs of a row
  int64_t pairs_padded;  // the same in whole vectors
};

HeadWidth width_of(int64_t width) {
  const int64_t pairs = (width + 1) / 2;
  return {width, padded_width(width), pairs, padded_width(pairs)};
}

struct Workspace {
  HeadWidth qk, v;      // C and Cv
  uint32_t* k_rows;     // [length, qk.pairs] pairs of a key's numbers
  uint32_t* v_rows;     // [length, v.pairs]
  uint32_t* k_pairs;    // [length / 2, qk.padded] pairs of neighbouring keys
  float* dk;            // [length, qk.padded] running sums of the task, to be scaled
  float* dv;            // [length, v.padded]
  uint32_t* rows;       // [64, the larger pairs_padded] a query block before it is turned
  uint32_t* q_turned;   // [qk.pairs_padded, 64]
  uint32_t* do_turned;  // [v.pairs_padded, 64]
  uint32_t* q_pairs;    // [32, qk.padded] pairs of neighbouring queries
  uint32_t* do_pairs;   // [32, v.padded]
  float* out;           // [2, v.padded] one row of o and of dO
  float* dq;            // [64, qk.padded] running sum of the query block, to be scaled
  float* lse;           // [64]
  float* delta;         // [64]
  float* score;         // [64, 64] S^T
  float* dp;            // [64, 64] dP^T
  uint32_t* p;          // [64, 32] P^T, pairs of neighbouring queries
  uint32_t* ds;         // [64, 32] dS^T, the same
  uint32_t* ds_keys;    // [32, 64] dS^T, pairs of neighbouring keys
};

// pair_rows() writes whole vectors of 32: what runs over the end of a row is overwritten by the next one, or lies in the slack after the last.
uint32_t* alloc_pairs(Arena& scratch, int64_t rows, const HeadWidth& head) { return alloc<uint32_t>(scratch, (rows + 1) / 2 * head.padded + kLanes); }

Workspace make_workspace(const AttentionCall& call, int64_t length, Arena& scratch) {
  Workspace w{.qk = width_of(call.width()), .v = width_of(call.value_width())};
  w.k_rows = alloc<uint32_t>(scratch, length * w.qk.pairs);
  w.v_rows = alloc<uint32_t>(scratch, length * w.v.pairs);
  w.k_pairs = alloc_pairs(scratch, length, w.qk);
  w.dk = alloc<float>(scratch, length * w.qk.padded);
  w.dv = alloc<float>(scratch, length * w.v.padded);
  w.rows = alloc<uint32_t>(scratch, kBlock * std::max(w.qk.pairs_padded, w.v.pairs_padded));
  w.q_turned = alloc<uint32_t>(scratch, w.qk.pairs_padded * kBlock);
  w.do_turned = alloc<uint32_t>(scratch, w.v.pairs_padded * kBlock);
  w.q_pairs = alloc_pairs(scratch, kBlock, w.qk);
  w.do_pairs = alloc_pairs(scratch, kBlock, w.v);
  w.out = alloc<float>(scratch, 2 * w.v.padded);
  w.dq = alloc<float>(scratch, kBlock * w.qk.padded);
  w.lse = alloc<float>(scratch, kBlock);
  w.delta = alloc<float>(scratch, kBlock);
  w.score = alloc<float>(scratch, kBlock * kBlock);
  w.dp = alloc<float>(scratch, kBlock * kBlock);
  w.p = alloc<uint32_t>(scratch, kBlock * kBlock / 2);
  w.ds = alloc<uint32_t>(scratch, kBlock * kBlock / 2);
  w.ds_keys = alloc<uint32_t>(scratch, kBlock / 2 * kBlock);
  std::fill_n(w.dk, length * w.qk.padded, 0.0f);
  std::fill_n(w.dv, length * w.v.padded, 0.0f);
  return w;
}

// Rows [row, row + rows) of t, columns [col, ...): neighbouring rows paired.
MOE_HALVES void pair_neighbours(uint32_t* dst, const HeadWidth& head, const Tensor& t, int64_t row, int64_t rows, int64_t col) {
  for (int64_t i = 0; i < rows; i += 2)
    pair_rows(dst + i / 2 * head.padded, t.row<bf16>(row + i) + col, i + 1 < rows ? t.row<bf16>(row + i + 1) + col : nullptr, head.width);
}

// The same rows turned, [pairs, 64], zero where a vector of them is not filled.
MOE_HALVES void turn_rows(uint32_t* dst, const Workspace& w, const HeadWidth& head, const Tensor& t, int64_t row, int64_t rows, int64_t col) {
  const int64_t ld = head.pairs_padded, padded = padded_width(rows);
  for (int64_t i = 0; i < rows; ++i) copy_pairs(w.rows + i * ld, t, row + i, col, head.width);
  std::fill(w.rows + rows * ld, w.rows + padded * ld, 0u);
  transpose_block(reinterpret_cast<float*>(dst), kBlock, reinterpret_cast<const float*>(w.rows), ld, padded, ld);
}

MOE_HALVES void load_keys(const AttentionCall& call, const Workspace& w, int64_t kv_head, int64_t first, int64_t length) {
  const KvView& kv = *call.kv;
  for (int64_t j = 0; j < length; ++j) {
    copy_pairs(w.k_rows + j * w.qk.pairs, kv.k, first + j, kv_head * w.qk.width, w.qk.width);
    copy_pairs(w.v_rows + j * w.v.pairs, kv.v, first + j, kv_head * w.v.width, w.v.width);
  }
  pair_neighbours(w.k_pairs, w.qk, kv.k, first, length, kv_head * w.qk.width);
}

// Query rows [row, row + queries) of one head, filled up with zeros to whole vectors.
MOE_HALVES void load_queries(const AttentionCall& call, const Workspace& w, int64_t head, int64_t row, int64_t queries) {
  const DF32 d;
  const int64_t padded = padded_width(queries);
  float *out = w.out, *dout = w.out + w.v.padded;
  turn_rows(w.q_turned, w, w.qk, call.q, row, queries, head * w.qk.width);
  turn_rows(w.do_turned, w, w.v, call.do_, row, queries, head * w.v.width);
  pair_neighbours(w.q_pairs, w.qk, call.q, row, queries, head * w.qk.width);
  pair_neighbours(w.do_pairs, w.v, call.do_, row, queries, head * w.v.width);
  for (int64_t i = 0; i < queries; ++i) {
    load_row(dout, call.do_, row + i, head * w.v.width, w.v.width, w.v.padded, 1.0f);
    load_row(out, call.o, row + i, head * w.v.width, w.v.width, w.v.padded, 1.0f);
    w.delta[i] = SumColumns(d, w.v.padded, [&](int64_t c, auto part) HWY_ATTR { return hn::Mul(Load(d, dout + c, part), Load(d, out + c, part)); });
    w.lse[i] = call.lse.row<float>(row + i)[head];
  }
  std::fill(w.delta + queries, w.delta + padded, 0.0f);
  std::fill(w.lse + queries, w.lse + padded, 0.0f);
  std::fill_n(w.dq, queries * w.qk.padded, 0.0f);
}

// Pairs of which a holds the first numbers and b the second, rounded.
MOE_HALVES HWY_INLINE __m512i round_pairs(__m512 a, __m512 b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

// w.p = exp(scale s - lse), w.ds and w.ds_keys = p (dp - delta) for one vector of queries from `column` on. Where the keys are odd the last pair's second
// number is zero.
template <bool kMasked>
MOE_HALVES HWY_INLINE void softmax_gradient(const Workspace& w, int64_t column, int64_t keys, float scale, Sight sight) {
  const DF32 d;
  const __m512 lse = _mm512_loadu_ps(w.lse + column), delta = _mm512_loadu_ps(w.delta + column), factor = _mm512_set1_ps(scale);
  const __m512i counted = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i last = _mm512_add_epi32(counted, _mm512_set1_epi32(static_cast<int>(column + sight.ahead)));
  const __m512i first = _mm512_sub_epi32(last, _mm512_set1_epi32(static_cast<int>(sight.window - 1)));
  const auto gradient = [&](int64_t j) MOE_HALVES {
    __m512 p = ExpNormal(d, VF32{_mm512_fmsub_ps(_mm512_loadu_ps(w.score + j * kBlock + column), factor, lse)}).raw;
    if constexpr (kMasked) {
      const __m512i key = _mm512_set1_epi32(static_cast<int>(j));
      p = _mm512_maskz_mov_ps(_mm512_cmple_epi32_mask(key, last) & _mm512_cmpge_epi32_mask(key, first), p);
    }
    const __m512 ds = _mm512_mul_ps(p, _mm512_sub_ps(_mm512_loadu_ps(w.dp + j * kBlock + column), delta));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(w.p + (j * kBlock + column) / 2), (__m256i)_mm512_cvtneps_pbh(p));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(w.ds + (j * kBlock + column) / 2), (__m256i)_mm512_cvtneps_pbh(ds));
    return ds;
  };
  int64_t j = 0;
  for (; j + 2 <= keys; j += 2) {
    const __m512 even = gradient(j), odd = gradient(j + 1);
    _mm512_storeu_si512(w.ds_keys + j / 2 * kBlock + column, round_pairs(even, odd));
  }
  if (j < keys) _mm512_storeu_si512(w.ds_keys + j / 2 * kBlock + column, round_pairs(gradient(j), _mm512_setzero_ps()));
}

// C = A B or C += A B over pairs.  A [m, depth]; B [depth, n]; C [m, n]; n a multiple of 16
template <class Into>
MOE_HALVES void pairs_product(int64_t m, int64_t n, int64_t depth, PairsA a, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, Into into) {
  const auto rows = [&]<int kRows>() MOE_HALVES {
    pair_product<kRows>(n, depth, a, b, ldb, c, ldc, into);
    m -= kRows;
    a.data += kRows * a.row;
    c += kRows * ldc;
  };
  while (m >= kRowsAtOnce) rows.template operator()<kRowsAtOnce>();
  switch (m) {
    case 5: return rows.template operator()<5>();
    case 4: return rows.template operator()<4>();
    case 3: return rows.template operator()<3>();
    case 2: return rows.template operator()<2>();
    case 1: return rows.template operator()<1>();
    default: return;
  }
}

// What the keys from `key` on, counted from the task's first, contribute to.
struct KeyBlock {
  const uint32_t *k_rows, *v_rows, *k_pairs;
  float *dk, *dv;
};

KeyBlock key_block(const Workspace& w, int64_t key) {
  return {w.k_rows + key * w.qk.pairs, w.v_rows + key * w.v.pairs, w.k_pairs + key / 2 * w.qk.padded, w.dk + key * w.qk.padded, w.dv + key * w.v.padded};
}

// w.score = K Q^T and w.dp = V dO^T for `columns` queries from `column` on.
MOE_HALVES void score_products(const Workspace& w, const KeyBlock& b, int64_t keys, int64_t column, int64_t columns) {
  pairs_product(keys, columns, w.qk.pairs, {b.k_rows, w.qk.pairs, 1}, w.q_turned + column, kBlock, w.score + column, kBlock, Written());
  pairs_product(keys, columns, w.v.pairs, {b.v_rows, w.v.pairs, 1}, w.do_turned + column, kBlock, w.dp + column, kBlock, Written());
}

// dv += P^T dO and dk += dS^T Q for keys [key, key + keys) of the block, summed over queries [query, queries); `query` is even.
MOE_HALVES void key_products(const Workspace& w, const KeyBlock& b, int64_t key, int64_t keys, int64_t query, int64_t queries) {
  const int64_t depth = (queries - query + 1) / 2, at = (key * kBlock + query) / 2;
  pairs_product(keys, w.v.padded, depth, {w.p + at, kBlock / 2, 1}, w.do_pairs + query / 2 * w.v.padded, w.v.padded, b.dv + key * w.v.padded, w.v.padded,
                Added());
  pairs_product(keys, w.qk.padded, depth, {w.ds + at, kBlock / 2, 1}, w.q_pairs + query / 2 * w.qk.padded, w.qk.padded, b.dk + key * w.qk.padded, w.qk.padded,
                Added());
}

// dq += dS K for queries [query, query + queries), summed over the block's first `keys`.
MOE_HALVES void query_products(const Workspace& w, const KeyBlock& b, int64_t query, int64_t queries, int64_t keys) {
  pairs_product(queries, w.qk.padded, (keys + 1) / 2, {w.ds_keys + query, 1, kBlock}, b.k_pairs, w.qk.padded, w.dq + query * w.qk.padded, w.qk.padded, Added());
}

// A key block before the queries' own, seen whole by all of them or, at the window's edge, in part.
MOE_HALVES void earlier_block(const AttentionCall& call, const Workspace& w, const KeyBlock& b, int64_t queries, Sight sight) {
  const bool whole = sight.ahead + queries <= sight.window;
  const int64_t padded = padded_width(queries);
  score_products(w, b, kBlock, 0, padded);
  for (int64_t c = 0; c < padded; c += kLanes) {
    if (whole) softmax_gradient<false>(w, c, kBlock, call.scale, sight);
    else softmax_gradient<true>(w, c, kBlock, call.scale, sight);
  }
  key_products(w, b, 0, kBlock, 0, queries);
  query_products(w, b, 0, queries, kBlock);
}

// The block on the diagonal has as many keys as queries. Panels of one vector of queries meet the keys up to their last query; the products that sum over
// queries begin, for a panel of keys, at the first query that sees one of them, so no score outside the computed panels is read.
MOE_HALVES void diagonal_block(const AttentionCall& call, const Workspace& w, const KeyBlock& b, int64_t queries, Sight sight) {
  for (int64_t c = 0; c < queries; c += kLanes) {
    const int64_t seen = std::min(c + kLanes, queries);
    score_products(w, b, seen, c, kLanes);
    softmax_gradient<true>(w, c, seen, call.scale, sight);
    query_products(w, b, c, seen - c, seen);
  }
  for (int64_t c = 0; c < queries; c += kLanes) key_products(w, b, c, std::min(kLanes, queries - c), c, queries);
}

MOE_HALVES void backward_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const ArenaScope scope(scratch);
  const int64_t group = call.group(), first = call.kv->bounds[static_cast<size_t>(task.sequence)], length = (task.end - task.begin) / group;
  const Workspace w = make_workspace(call, length, scratch);
  load_keys(call, w, task.kv_head, first, length);
  for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < length; query += kBlock) {
      const int64_t queries = std::min(kBlock, length - query);
      load_queries(call, w, head, first + query, queries);
      for (int64_t key = call.first_seen(query) / kBlock * kBlock; key <= query; key += kBlock) {
        const Sight sight{query - key, call.window > 0 ? std::min(call.window, length) : length};
        if (key < query) earlier_block(call, w, key_block(w, key), queries, sight);
        else diagonal_block(call, w, key_block(w, key), queries, sight);
      }
      for (int64_t i = 0; i < queries; ++i) store_row(call.dq, first + query + i, head * w.qk.width, w.qk.width, w.dq + i * w.qk.padded, call.scale);
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    store_row(call.dk, first + i, task.kv_head * w.qk.width, w.qk.width, w.dk + i * w.qk.padded, call.scale);
    store_row(call.dv, first + i, task.kv_head * w.v.width, w.v.width, w.dv + i * w.v.padded, 1.0f);
  }
}

void backward_halves(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  for (const AttentionTask& task : tasks) backward_task(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace moe::ops {

#if HWY_TARGETS & HWY_AVX3
void attention_backward_halves(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  N_AVX3::backward_halves(call, tasks, scratch);
}
#else
void attention_backward_halves(const AttentionCall&, std::span<const AttentionTask>, Arena&) { fail("attention of halves is not compiled for this processor"); }
#endif

}  // namespace moe::ops
#endif
