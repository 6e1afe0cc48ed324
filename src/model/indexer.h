// What chooses the tokens that a token attends to, where attention is sparse (DeepSeek-V3.2, arXiv
// 2512.02556, section 2.1; transformers:deepseek_v32/modeling_deepseek_v32.py), or blocks of them
// (MiniMax-M3; transformers:minimax_m3_vl/modeling_minimax_m3_vl.py), and attention to what was
// chosen. Forward only: nothing learns through a choice.
#pragma once

#include <optional>
#include <vector>

#include "moe/norm.h"
#include "moe/pass.h"

namespace moe {

// score[n,j] = sum_h w[n,h] max(0, <q[n,h], k[j]>), with k = norm(k x) and w = weights x of the
// tokens, q made of what attention makes its queries of. Of each query and key the first R numbers
// turn. What transformers multiplies all scores by changes no choice. Where blocks are chosen each
// head chooses by itself: score[n,h,j] = <q[n,h], k[j]>, with q = norm(q x) of the tokens too.
struct Indexer {
  Param q;                     // [H*C,Lq], of blocks [H*C,D]
  Param k;                     // [C,D]
  Norm k_norm;                 // [C], LayerNorm; of blocks RMSNorm
  std::optional<Norm> q_norm;  // of blocks alone: [C], RMSNorm of each head
  Param weights;               // [H,D]; absent of blocks

  // What later tokens need of these: [N,C] A in run.scratch, turned.  x [N,D] A
  Tensor keys(Run&, Tensor x, const ops::CosSinTable&);
  // kept [N,K] i32 as ops::choose_keys has it; from [N,Lq] A: what queries are made of; `keys`: of
  // the batch's sequences, transposed
  void choose(Run&, Tensor kept, Tensor x, Tensor from, const Pass&, const ops::KvView& keys);
  // kept [N,H*B] i32 as ops::choose_blocks has it
  void choose_blocks(Run&, Tensor kept, Tensor x, const Pass&, const ops::KvView& keys,
                     int64_t block, int64_t local);
};

// Keys [N,C] of a batch that has no cache, as one keeps them: transposed, each sequence from a
// block of its own on. In run.scratch; the view holds on to `bounds` and `first_row`, which is
// filled.
ops::KvView laid_as_kept(Run&, Tensor keys, std::span<const int64_t> bounds,
                         std::vector<int64_t>& first_row);

// Attention of H heads to one head's keys and values, those that `kept` [N,K] lists for each query.
// o [N,H*Cv], q [N,H*C] A; lse [N,H] f32 or absent; keys lie as rows, values are part of them
void attend_kept(Run&, Tensor o, Tensor lse, Tensor q, const ops::KvView&, Tensor kept,
                 std::span<const int32_t> positions, int64_t heads, float scale);

// Attention of H heads to the keys and values of G, of which `kept` [N,G*B] lists for each query
// and key/value head the blocks of `block` tokens that it sees. Keys and values lie as rows; those
// of a cache are read where they are, others copied to where blocks can be named.
// o [N,H*Cv], q [N,H*C] A
void attend_blocks(Run&, Tensor o, Tensor q, const ops::KvView&, Tensor kept,
                   std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
                   int64_t block, float scale);

// Bytes that attend_kept copies keys to at once, but always those of one query.
constexpr int64_t kKeptBytes = int64_t{8} << 20;

}  // namespace moe
