// What chooses the tokens that a token attends to, where attention is sparse (DeepSeek-V3.2, arXiv
// 2512.02556, section 2.1; transformers:deepseek_v32/modeling_deepseek_v32.py), and attention to
// what was chosen. Forward only: nothing learns through a choice.
#pragma once

#include <vector>

#include "moe/norm.h"
#include "moe/pass.h"

namespace moe {

// score[n,j] = sum_h w[n,h] max(0, <q[n,h], k[j]>), with k = norm(k x) and w = weights x of the
// tokens, q made of what attention makes its queries of. Of each query and key the first R numbers
// turn. What transformers multiplies all scores by changes no choice.
struct Indexer {
  Param q;        // [H*C,Lq]
  Param k;        // [C,D]
  Norm k_norm;    // [C], LayerNorm
  Param weights;  // [H,D]

  // What later tokens need of these: [N,C] A in run.scratch, turned.  x [N,D] A
  Tensor keys(Run&, Tensor x, const ops::CosSinTable&);
  // kept [N,K] i32 as ops::choose_keys has it; from [N,Lq] A: what queries are made of; `keys`: of
  // the batch's sequences, transposed
  void choose(Run&, Tensor kept, Tensor x, Tensor from, const Pass&, const ops::KvView& keys);
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

// Bytes that attend_kept copies keys to at once, but always those of one query.
constexpr int64_t kKeptBytes = int64_t{8} << 20;

}  // namespace moe
