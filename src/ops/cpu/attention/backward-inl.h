// The loops of attention's backward, written once over the inner part that multiplies (f32.cpp,
// bf16.cpp). Probabilities are made again from lse, block by block (Dao et al. 2022, algorithm 4;
// Dao 2023). With
//   P = exp(scale Q K^T - lse);  delta_q = sum_c do_qc o_qc  (= sum_k P_qk dP_qk)
//   dV = P^T dO;  dP = dO V^T;  dS = P (dP - delta);  dQ = scale dS K;  dK = scale dS^T Q
// and with a cap c, t being tanh(scale Q K^T / c):
//   P = exp(c t - lse);  dS = P (dP - delta) (1 - t^2)
// Scores are held transposed, [key, query]. A task is one sequence and one key/value head: it walks
// its heads in order, for each the query blocks in order, for each the key blocks up to the
// diagonal; dk and dv are summed in f32 over all of it and rounded once, so the bits do not depend
// on threads.
//
// S and dP sum over a head's numbers, dV and dK over queries, dQ over keys. The inner part says of
// what elements, one number or a pair of them, and lays each operand out as its product asks for
// it: keys and values once for a task, queries once for a block.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_BACKWARD_INL_H_
#undef MOE_OPS_CPU_ATTENTION_BACKWARD_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/attention/tasks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// Rows of one head as the products ask for them. What lies beyond the true width is zero or never
// read.
template <class Element>
struct Operand {
  int64_t width, padded;  // numbers of a row; the same in whole vectors
  int64_t depth, ld;      // elements of a row; the same in whole vectors
  Element* rows;          // [rows, ld] for sums over the width
  Element* turned;        // [ld, 64] the same turned; or absent
  Element* stacked;  // [rows / numbers of an element, padded] for sums over the rows; or absent
  int64_t stacks;    // rows of `stacked`
  Element* across;   // [padded, stacks] stacked, turned; or absent
};

// An inner part has
//   Element                     what its product multiplies, kNumbers of them at once: numbers that
//                               follow each other along the sum
//   kScaledQueries              whether q is multiplied by the scale, or what its products give
//   kWholeBlocks                whether a block is multiplied whole, those on the diagonal too, and
//                               dQ is summed turned
//   padded_rows(n)              rows that n of them are filled up to with zeros
//   load_rows(...)              rows of a matrix as elements, times the scale
//   stack(...)                  a matrix for sums over its rows: alloc_stacked() is its memory
//   alloc_gradients(w)          p, ds and ds_keys
//   product(...)                block_product() of elements
//   softmax_gradient<kMasked, kCapped>()  those, of one vector of queries
//   clear(...)                  those of one vector of queries are zero for some keys
// The walk is inlined, so that an inner part of more instructions than the target has (bf16.cpp)
// needs no calls for its steps.
template <class Inner>
struct Workspace {
  using Element = typename Inner::Element;
  Operand<Element> k, v, q, dout;
  float* dk;         // [length, k.padded] running sums of the task
  float* dv;         // [length, v.padded]
  float* dq;         // [64, k.padded] running sum of the query block, to be scaled
  float* dq_turned;  // [k.padded, 64] the same where it is summed turned
  float* out;        // [2, v.padded] one row of o and of dO
  float* lse;        // [64]
  float* delta;      // [64]
  float* score;      // [64, 64] S^T
  float* dp;         // [64, 64] dP^T
  Element* p;        // [64, 64 / kNumbers] P^T
  Element* ds;       // [64, 64 / kNumbers] dS^T
  Element* ds_keys;  // [64 / kNumbers, 64] dS^T, for sums over keys
};

template <class Inner>
Operand<typename Inner::Element> alloc_operand(Arena& scratch, int64_t rows, int64_t width) {
  const int64_t depth = (width + Inner::kNumbers - 1) / Inner::kNumbers, ld = padded_width(depth);
  return {width,
          padded_width(width),
          depth,
          ld,
          alloc<typename Inner::Element>(scratch, Inner::padded_rows(rows) * ld),
          nullptr,
          nullptr,
          0,
          nullptr};
}

template <class Inner>
Workspace<Inner> make_workspace(const AttentionCall& call, int64_t length, Arena& scratch) {
  using Element = typename Inner::Element;
  const int64_t width = call.width(), value_width = call.value_width();
  Workspace<Inner> w{};
  w.k = alloc_operand<Inner>(scratch, length, width);
  w.v = alloc_operand<Inner>(scratch, length, value_width);
  w.q = alloc_operand<Inner>(scratch, kKeyBlock, width);
  w.dout = alloc_operand<Inner>(scratch, kKeyBlock, value_width);
  for (Operand<Element>* x : {&w.q, &w.dout})
    x->turned = alloc<Element>(scratch, x->ld * kKeyBlock);
  Inner::alloc_stacked(w.k, length, scratch);
  for (Operand<Element>* x : {&w.q, &w.dout}) Inner::alloc_stacked(*x, kKeyBlock, scratch);
  const int64_t rows = Inner::padded_rows(length);
  w.dk = alloc<float>(scratch, rows * w.k.padded);
  w.dv = alloc<float>(scratch, rows * w.v.padded);
  w.dq = alloc<float>(scratch, kKeyBlock * w.k.padded);
  if constexpr (Inner::kWholeBlocks) {
    w.dq_turned = alloc<float>(scratch, kKeyBlock * w.k.padded);
    w.k.across = alloc<Element>(scratch, w.k.padded * w.k.stacks);
  }
  w.out = alloc<float>(scratch, 2 * w.v.padded);
  w.lse = alloc<float>(scratch, kKeyBlock);
  w.delta = alloc<float>(scratch, kKeyBlock);
  w.score = alloc<float>(scratch, kKeyBlock * kKeyBlock);
  w.dp = alloc<float>(scratch, kKeyBlock * kKeyBlock);
  Inner::alloc_gradients(w, scratch);
  std::fill_n(w.dk, rows * w.k.padded, 0.0f);
  std::fill_n(w.dv, rows * w.v.padded, 0.0f);
  return w;
}

// Rows [row, row + rows) of t, columns from `col` on, times `scale`; turned, where that is asked
// for, with zeros up to whole vectors of rows.
template <class Inner>
void load_operand(const Operand<typename Inner::Element>& x, const Tensor& t, int64_t row,
                  int64_t rows, int64_t col, float scale) {
  Inner::load_rows(x, t, row, rows, col, scale);
  if (x.stacked != nullptr) Inner::stack(x, t, row, rows, col);
  if (x.across != nullptr)
    transpose_block(reinterpret_cast<float*>(x.across), x.stacks,
                    reinterpret_cast<const float*>(x.stacked), x.padded, x.stacks, x.padded);
  const int64_t padded = Inner::padded_rows(rows);
  std::fill(x.rows + rows * x.ld, x.rows + padded * x.ld, typename Inner::Element{});
  if (x.turned == nullptr) return;
  transpose_block(reinterpret_cast<float*>(x.turned), kKeyBlock,
                  reinterpret_cast<const float*>(x.rows), x.ld, padded, x.ld);
}

// Query rows [row, row + queries) of one head, filled up with zeros to whole vectors.
template <class Inner>
void load_queries(const AttentionCall& call, const Workspace<Inner>& w, int64_t head, int64_t row,
                  int64_t queries) {
  const DF32 d;
  const int64_t padded = Inner::padded_rows(queries), col = head * w.v.width;
  load_operand<Inner>(w.q, call.q, row, queries, head * w.q.width,
                      Inner::kScaledQueries ? call.scale : 1.0f);
  load_operand<Inner>(w.dout, call.do_, row, queries, col, 1.0f);
  float *out = w.out, *dout = w.out + w.v.padded;
  for (int64_t i = 0; i < queries; ++i) {
    load_row(dout, call.do_, row + i, col, w.v.width, w.v.padded, 1.0f);
    load_row(out, call.o, row + i, col, w.v.width, w.v.padded, 1.0f);
    w.delta[i] = SumColumns(d, w.v.padded, [&](int64_t c, auto part) HWY_ATTR {
      return hn::Mul(Load(d, dout + c, part), Load(d, out + c, part));
    });
    w.lse[i] = call.lse.row<float>(row + i)[head];
  }
  std::fill(w.delta + queries, w.delta + padded, 0.0f);
  std::fill(w.lse + queries, w.lse + padded, 0.0f);
  std::fill_n(Inner::kWholeBlocks ? w.dq_turned : w.dq, kKeyBlock * w.k.padded, 0.0f);
}

// Which keys of a block the queries of another see: query i stands `ahead` + i positions after the
// block's first key and sees none before the last `window`.
struct Sight {
  int64_t ahead, window;
};

// P and dS of one vector of queries, from `column` of their block on, key after key; `kCapped`: a
// score is t, and the scale the cap.
template <bool kMasked, bool kCapped>
struct QueryVector {
  VF32 factor, lse, delta;
  hn::Vec<I32For<DF32>> last, first;

  HWY_INLINE QueryVector(const float* lse_at, const float* delta_at, float scale, int64_t column,
                         Sight sight)
      : factor(hn::Set(DF32(), scale)),
        lse(hn::LoadU(DF32(), lse_at + column)),
        delta(hn::LoadU(DF32(), delta_at + column)) {
    const I32For<DF32> di;
    last = hn::Iota(di, static_cast<int32_t>(column + sight.ahead));
    first = hn::Sub(last, hn::Set(di, static_cast<int32_t>(sight.window - 1)));
  }
  HWY_INLINE VF32 probability(const float* score, int64_t key) const {
    const DF32 d;
    const VF32 p = ExpNormal(d, hn::MulSub(hn::LoadU(d, score), factor, lse));
    if constexpr (!kMasked) return p;
    const auto at = hn::Set(I32For<DF32>(), static_cast<int32_t>(key));
    return hn::IfThenZeroElse(hn::RebindMask(d, hn::Or(hn::Gt(at, last), hn::Lt(at, first))), p);
  }
  HWY_INLINE VF32 gradient(VF32 p, const float* score, const float* dp) const {
    const DF32 d;
    const VF32 ds = hn::Mul(p, hn::Sub(hn::LoadU(d, dp), delta));
    if constexpr (!kCapped) return ds;
    const VF32 t = hn::LoadU(d, score);
    return hn::Mul(ds, hn::NegMulAdd(t, t, hn::Set(d, 1.0f)));
  }
};

// What the scores are yet to be multiplied by, and dk.
template <class Inner>
float factor_of(const AttentionCall& call) {
  return Inner::kScaledQueries ? 1.0f : call.scale;
}

// S = K Q^T, or with a cap t, and dP = V dO^T of keys [key, key + keys) of the task and `columns`
// queries from `column` on.
template <class Inner>
HWY_INLINE void score_products(const AttentionCall& call, const Workspace<Inner>& w, int64_t key,
                               int64_t keys, int64_t column, int64_t columns) {
  Inner::product(keys, columns, w.k.depth, {w.k.rows + key * w.k.ld, w.k.ld, 1},
                 w.q.turned + column, kKeyBlock, w.score + column, kKeyBlock, Written());
  if (call.cap > 0)
    hold_back(keys, columns, w.score + column, kKeyBlock, factor_of<Inner>(call) / call.cap, 1);
  Inner::product(keys, columns, w.v.depth, {w.v.rows + key * w.v.ld, w.v.ld, 1},
                 w.dout.turned + column, kKeyBlock, w.dp + column, kKeyBlock, Written());
}

// P and dS of one vector of queries and the first `seen` keys of the block; `whole`: they all see
// all of these.
template <class Inner>
HWY_INLINE void softmax_gradient(const AttentionCall& call, const Workspace<Inner>& w,
                                 int64_t column, int64_t seen, bool whole, Sight sight) {
  if (call.cap > 0) Inner::template softmax_gradient<true, true>(w, column, seen, call.cap, sight);
  else if (whole)
    Inner::template softmax_gradient<false, false>(w, column, seen, factor_of<Inner>(call), sight);
  else
    Inner::template softmax_gradient<true, false>(w, column, seen, factor_of<Inner>(call), sight);
}

// dv += P^T dO and dk += dS^T Q for keys [key + from, key + from + keys), summed over queries
// [query, queries); `query` is a multiple of the lanes.
template <class Inner>
HWY_INLINE void key_products(const Workspace<Inner>& w, int64_t key, int64_t from, int64_t keys,
                             int64_t query, int64_t queries) {
  constexpr int64_t kNumbers = Inner::kNumbers;
  const int64_t depth = (queries - query + kNumbers - 1) / kNumbers,
                at = (from * kKeyBlock + query) / kNumbers, row = query / kNumbers;
  Inner::product(keys, w.v.padded, depth, {w.p + at, kKeyBlock / kNumbers, 1},
                 w.dout.stacked + row * w.v.padded, w.v.padded, w.dv + (key + from) * w.v.padded,
                 w.v.padded, Added());
  Inner::product(keys, w.k.padded, depth, {w.ds + at, kKeyBlock / kNumbers, 1},
                 w.q.stacked + row * w.k.padded, w.k.padded, w.dk + (key + from) * w.k.padded,
                 w.k.padded, Added());
}

// dq += dS K for queries [query, query + queries), summed over keys [key, key + keys).
template <class Inner>
HWY_INLINE void query_products(const Workspace<Inner>& w, int64_t key, int64_t keys, int64_t query,
                               int64_t queries) {
  constexpr int64_t kNumbers = Inner::kNumbers;
  if constexpr (Inner::kWholeBlocks)
    return Inner::product(w.k.padded, queries, keys / kNumbers,
                          {w.k.across + key / kNumbers, w.k.stacks, 1}, w.ds_keys + query,
                          kKeyBlock, w.dq_turned + query, kKeyBlock, Added());
  Inner::product(queries, w.k.padded, (keys + kNumbers - 1) / kNumbers,
                 {w.ds_keys + query, 1, kKeyBlock}, w.k.stacked + key / kNumbers * w.k.padded,
                 w.k.padded, w.dq + query * w.k.padded, w.k.padded, Added());
}

// A key block before the queries' own, seen whole by all of them or, at the window's edge, in part.
template <class Inner>
HWY_INLINE void earlier_block(const AttentionCall& call, const Workspace<Inner>& w, int64_t key,
                              int64_t queries, Sight sight) {
  const bool whole = sight.ahead + queries <= sight.window;
  const int64_t padded = padded_width(queries);
  score_products(call, w, key, kKeyBlock, 0, padded);
  for (int64_t c = 0; c < padded; c += lanes_f32())
    softmax_gradient(call, w, c, kKeyBlock, whole, sight);
  key_products(w, key, 0, kKeyBlock, 0, queries);
  query_products(w, key, kKeyBlock, 0, queries);
}

// A block whose products take all of its queries and keys, filled up with zeros; on the diagonal
// what no query sees is zero without being looked at.
template <class Inner>
HWY_INLINE void whole_block(const AttentionCall& call, const Workspace<Inner>& w, int64_t key,
                            int64_t keys, int64_t queries, Sight sight) {
  const bool diagonal = sight.ahead == 0,
             whole = !diagonal && sight.ahead + queries <= sight.window;
  score_products(call, w, key, keys, 0, queries);
  for (int64_t c = 0; c < queries; c += lanes_f32()) {
    const int64_t seen = diagonal ? std::min(c + lanes_f32(), keys) : keys;
    softmax_gradient(call, w, c, seen, whole, sight);
    Inner::clear(w, c, seen, keys);
  }
  key_products(w, key, 0, keys, 0, queries);
  query_products(w, key, keys, 0, queries);
}

// The block on the diagonal has as many keys as queries. Panels of one vector of queries meet the
// keys up to their last query; the products that sum over queries begin, for a panel of keys, at
// the first query that sees one of them, so no score outside the computed panels is read.
template <class Inner>
HWY_INLINE void diagonal_block(const AttentionCall& call, const Workspace<Inner>& w, int64_t key,
                               int64_t queries, Sight sight) {
  const int64_t lanes = lanes_f32();
  for (int64_t c = 0; c < queries; c += lanes) {
    const int64_t seen = std::min(c + lanes, queries);
    score_products(call, w, key, seen, c, lanes);
    softmax_gradient(call, w, c, seen, false, sight);
    query_products(w, key, seen, c, seen - c);
  }
  for (int64_t c = 0; c < queries; c += lanes)
    key_products(w, key, c, std::min(lanes, queries - c), c, queries);
}

template <class Inner>
HWY_INLINE void backward_task(const AttentionCall& call, const AttentionTask& task,
                              Arena& scratch) {
  const ArenaScope scope(scratch);
  const int64_t group = call.group(), first = call.kv->bounds[static_cast<size_t>(task.sequence)],
                length = (task.end - task.begin) / group;
  const Workspace<Inner> w = make_workspace<Inner>(call, length, scratch);
  load_operand<Inner>(w.k, call.kv->k, first, length, task.kv_head * w.k.width, 1.0f);
  load_operand<Inner>(w.v, call.kv->v, first, length, task.kv_head * w.v.width, 1.0f);
  for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < length; query += kKeyBlock) {
      const int64_t queries = std::min(kKeyBlock, length - query);
      load_queries(call, w, head, first + query, queries);
      for (int64_t key = call.first_seen(query) / kKeyBlock * kKeyBlock; key <= query;
           key += kKeyBlock) {
        const Sight sight{query - key, call.window > 0 ? std::min(call.window, length) : length};
        if constexpr (Inner::kWholeBlocks)
          whole_block(call, w, key, key < query ? kKeyBlock : Inner::padded_rows(queries),
                      Inner::padded_rows(queries), sight);
        else if (key < query) earlier_block(call, w, key, queries, sight);
        else diagonal_block(call, w, key, queries, sight);
      }
      if constexpr (Inner::kWholeBlocks)
        transpose_block(w.dq, w.k.padded, w.dq_turned, kKeyBlock, w.k.padded,
                        Inner::padded_rows(queries));
      for (int64_t i = 0; i < queries; ++i)
        store_row(call.dq, first + query + i, head * w.k.width, w.k.width, w.dq + i * w.k.padded,
                  call.scale);
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    store_row(call.dk, first + i, task.kv_head * w.k.width, w.k.width, w.dk + i * w.k.padded,
              factor_of<Inner>(call));
    store_row(call.dv, first + i, task.kv_head * w.v.width, w.v.width, w.dv + i * w.v.padded, 1.0f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
