// Backward kernel of attention: probabilities are made again from lse, block by block (Dao et al. 2022, algorithm 4; Dao 2023). With
//   P = exp(scale Q K^T - lse);  delta_q = sum_c do_qc o_qc  (= sum_k P_qk dP_qk)
//   dV = P^T dO;  dP = dO V^T;  dS = P (dP - delta);  dQ = scale dS K;  dK = scale dS^T Q
// Scores are held transposed, [key, query], as in the forward. A task is one sequence and one key/value head: it walks its heads in order, for each the query
// blocks in order, for each the key blocks up to the diagonal; dk and dv are summed in f32 over all of it and rounded once, so the bits do not depend on
// threads.

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/attention/attention_tasks.h"
#include "ops/cpu/quant/block_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

// What a task keeps in scratch. "padded" widths are whole vectors; what lies beyond the true width is zero.
struct Workspace {
  int64_t width_padded, value_padded;  // C, Cv padded
  float* dk;                           // [length, width_padded] running sums of the task
  float* dv;                           // [length, value_padded]
  float* q;                            // [64, width_padded] scale * q of a query block
  float* qt;                           // [width_padded, 64] the same transposed
  float* dout;                         // [64, value_padded]
  float* dout_t;                       // [value_padded, 64]
  float* out;                          // [value_padded] one row of o
  float* dq;                           // [64, width_padded] running sum of the query block, to be scaled
  float* lse;                          // [64]
  float* delta;                        // [64]
  float* p;                            // [64, 64] P^T
  float* ds;                           // [64, 64] dP^T, then dS^T
  float* k_copy;                       // [64, width_padded]
  float* v_copy;                       // [64, value_padded]
};

Workspace make_workspace(const AttentionCall& call, int64_t length, Arena& scratch) {
  constexpr int64_t kBlock = kAttentionBlock;
  Workspace w{};
  w.width_padded = padded_width(call.width());
  w.value_padded = padded_width(call.value_width());
  w.dk = alloc_f32(scratch, length * w.width_padded);
  w.dv = alloc_f32(scratch, length * w.value_padded);
  w.q = alloc_f32(scratch, kBlock * w.width_padded);
  w.qt = alloc_f32(scratch, kBlock * w.width_padded);
  w.dout = alloc_f32(scratch, kBlock * w.value_padded);
  w.dout_t = alloc_f32(scratch, kBlock * w.value_padded);
  w.out = alloc_f32(scratch, w.value_padded);
  w.dq = alloc_f32(scratch, kBlock * w.width_padded);
  w.lse = alloc_f32(scratch, kBlock);
  w.delta = alloc_f32(scratch, kBlock);
  w.p = alloc_f32(scratch, kBlock * kBlock);
  w.ds = alloc_f32(scratch, kBlock * kBlock);
  w.k_copy = alloc_f32(scratch, kBlock * w.width_padded);
  w.v_copy = alloc_f32(scratch, kBlock * w.value_padded);
  std::fill(w.dk, w.dk + length * w.width_padded, 0.0f);
  std::fill(w.dv, w.dv + length * w.value_padded, 0.0f);
  return w;
}

// Query rows [row, row + queries) of one head, filled up with zeros to whole vectors.
void load_queries(const AttentionCall& call, const Workspace& w, int64_t head, int64_t row, int64_t queries) {
  const DF32 d;
  const int64_t width = call.width(), value_width = call.value_width(), padded = padded_width(queries);
  for (int64_t i = 0; i < queries; ++i) {
    float* dout = w.dout + i * w.value_padded;
    load_row(w.q + i * w.width_padded, call.q, row + i, head * width, width, w.width_padded, call.scale);
    load_row(dout, call.do_, row + i, head * value_width, value_width, w.value_padded, 1.0f);
    load_row(w.out, call.o, row + i, head * value_width, value_width, w.value_padded, 1.0f);
    w.delta[i] = SumColumns(d, w.value_padded, [&](int64_t c, auto part) HWY_ATTR { return hn::Mul(Load(d, dout + c, part), Load(d, w.out + c, part)); });
    w.lse[i] = call.lse.row<float>(row + i)[head];
  }
  std::fill(w.q + queries * w.width_padded, w.q + padded * w.width_padded, 0.0f);
  std::fill(w.dout + queries * w.value_padded, w.dout + padded * w.value_padded, 0.0f);
  std::fill(w.delta + queries, w.delta + padded, 0.0f);
  std::fill(w.lse + queries, w.lse + padded, 0.0f);
  transpose_block(w.qt, padded, w.q, w.width_padded, padded, w.width_padded);
  transpose_block(w.dout_t, padded, w.dout, w.value_padded, padded, w.value_padded);
  std::fill(w.dq, w.dq + queries * w.width_padded, 0.0f);
}

// w.p = exp(s - lse), w.ds = p (dp - delta) for one vector of queries from `column` on.
template <bool kMasked>
HWY_INLINE void softmax_gradient(const Workspace& w, int64_t column, int64_t keys, int64_t stride, Sight sight) {
  const DF32 d;
  const I32For<DF32> di;
  const auto lse = hn::LoadU(d, w.lse + column);
  const auto delta = hn::LoadU(d, w.delta + column);
  const auto last = hn::Iota(di, static_cast<int32_t>(column + sight.ahead));
  const auto first = hn::Sub(last, hn::Set(di, static_cast<int32_t>(sight.window - 1)));
  for (int64_t j = 0; j < keys; ++j) {
    float* score = w.p + j * stride + column;
    float* gradient = w.ds + j * stride + column;
    auto p = ExpNormal(d, hn::Sub(hn::LoadU(d, score), lse));
    if constexpr (kMasked) {
      const auto key = hn::Set(di, static_cast<int32_t>(j));
      p = hn::IfThenZeroElse(hn::RebindMask(d, hn::Or(hn::Gt(key, last), hn::Lt(key, first))), p);
    }
    hn::StoreU(p, d, score);
    hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, gradient), delta)), d, gradient);
  }
}

// A key block before the queries' own, seen whole by all of them or, at the window's edge, in part.
void earlier_block(const AttentionCall& call, const Workspace& w, BlockB k, BlockB v, float* dk, float* dv, int64_t queries, Sight sight) {
  const bool whole = sight.ahead + queries <= sight.window;
  const int64_t padded = padded_width(queries);
  block_product<false>(kAttentionBlock, padded, call.width(), {k.data, k.ld, 1}, w.qt, padded, w.p, padded);
  block_product<false>(kAttentionBlock, padded, call.value_width(), {v.data, v.ld, 1}, w.dout_t, padded, w.ds, padded);
  for (int64_t c = 0; c < padded; c += lanes_f32()) {
    if (whole) softmax_gradient<false>(w, c, kAttentionBlock, padded, sight);
    else softmax_gradient<true>(w, c, kAttentionBlock, padded, sight);
  }
  block_product<true>(kAttentionBlock, w.value_padded, queries, {w.p, padded, 1}, w.dout, w.value_padded, dv, w.value_padded);
  block_product<true>(kAttentionBlock, w.width_padded, queries, {w.ds, padded, 1}, w.q, w.width_padded, dk, w.width_padded);
  block_product<true>(queries, w.width_padded, kAttentionBlock, {w.ds, 1, padded}, k.data, k.ld, w.dq, w.width_padded);
}

// The block on the diagonal has as many keys as queries. Panels of one vector of queries meet the keys up to their last query; the products that sum over
// queries begin, for a panel of keys, at the first query that sees one of them, so no score outside the computed panels is read.
void diagonal_block(const AttentionCall& call, const Workspace& w, BlockB k, BlockB v, float* dk, float* dv, int64_t queries, Sight sight) {
  const int64_t padded = padded_width(queries), lanes = lanes_f32();
  for (int64_t c = 0; c < padded; c += lanes) {
    const int64_t seen = std::min(c + lanes, queries), rows = seen - c;
    block_product<false>(seen, lanes, call.width(), {k.data, k.ld, 1}, w.qt + c, padded, w.p + c, padded);
    block_product<false>(seen, lanes, call.value_width(), {v.data, v.ld, 1}, w.dout_t + c, padded, w.ds + c, padded);
    softmax_gradient<true>(w, c, seen, padded, sight);
    block_product<true>(rows, w.width_padded, seen, {w.ds + c, 1, padded}, k.data, k.ld, w.dq + c * w.width_padded, w.width_padded);
  }
  for (int64_t c = 0; c < queries; c += lanes) {
    const int64_t rows = std::min(lanes, queries - c), seeing = queries - c;
    block_product<true>(rows, w.value_padded, seeing, {w.p + c * padded + c, padded, 1}, w.dout + c * w.value_padded, w.value_padded, dv + c * w.value_padded,
                        w.value_padded);
    block_product<true>(rows, w.width_padded, seeing, {w.ds + c * padded + c, padded, 1}, w.q + c * w.width_padded, w.width_padded, dk + c * w.width_padded,
                        w.width_padded);
  }
}

void backward_task(const AttentionCall& call, const AttentionTask& task, Arena& scratch) {
  const ArenaScope scope(scratch);
  const KvView& kv = *call.kv;
  const int64_t width = call.width(), value_width = call.value_width(), group = call.group();
  const int64_t first = kv.bounds[static_cast<size_t>(task.sequence)];
  const int64_t length = (task.end - task.begin) / group;
  const Workspace w = make_workspace(call, length, scratch);
  for (int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < length; query += kAttentionBlock) {
      const int64_t queries = std::min(kAttentionBlock, length - query);
      load_queries(call, w, head, first + query, queries);
      for (int64_t key = call.first_seen(query) / kAttentionBlock * kAttentionBlock; key <= query; key += kAttentionBlock) {
        const int64_t keys = key < query ? kAttentionBlock : queries;
        const BlockB k = view_block(kv.k, first + key, keys, task.kv_head * width, width, w.k_copy, false);
        const BlockB v = view_block(kv.v, first + key, keys, task.kv_head * value_width, value_width, w.v_copy, false);
        float *dk = w.dk + key * w.width_padded, *dv = w.dv + key * w.value_padded;
        const Sight sight{query - key, call.window > 0 ? std::min(call.window, length) : length};
        if (key < query) earlier_block(call, w, k, v, dk, dv, queries, sight);
        else diagonal_block(call, w, k, v, dk, dv, queries, sight);
      }
      for (int64_t i = 0; i < queries; ++i) store_row(call.dq, first + query + i, head * width, width, w.dq + i * w.width_padded, call.scale);
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    store_row(call.dk, first + i, task.kv_head * width, width, w.dk + i * w.width_padded, 1.0f);
    store_row(call.dv, first + i, task.kv_head * value_width, value_width, w.dv + i * w.value_padded, 1.0f);
  }
}

void backward_tasks(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  for (const AttentionTask& task : tasks) backward_task(call, task, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {

HWY_EXPORT(backward_tasks);

void attention_backward_tasks(const AttentionCall& call, std::span<const AttentionTask> tasks, Arena& scratch) {
  HWY_DYNAMIC_DISPATCH(backward_tasks)(call, tasks, scratch);
}

}  // namespace moe::ops
#endif
