// What makes entries of tokens, each of which stands for several (DeepSeek-V4, arXiv 2606.19348,
// sections 2.3.1 and 2.3.2; transformers:deepseek_v4/modeling_deepseek_v4.py), and what chooses
// among them. Nothing learns through a choice.
#pragma once

#include <span>
#include <vector>

#include "model/config.h"
#include "moe/norm.h"
#include "moe/pass.h"

namespace moe {

// The entries whose last token is in a batch, sequence by sequence.
struct MadeEntries {
  std::vector<int64_t> bounds;       // [S+1]: which of them are a sequence's
  std::vector<int32_t> number;       // [T] in its sequence
  std::vector<int32_t> first_token;  // [T] position of the first token that it stands for

  MadeEntries(const Batch&, int64_t tokens);
  int64_t count() const { return std::ssize(number); }
};

// Entries = norm(pool(kv x, gate x + bias)), turned by the position of the first token that they
// stand for.
struct Compressor {
  Param kv, gate;  // [P*C,D]
  Param bias;      // [M,P*C]
  Norm norm;       // [C]

  // Views into run.saved.
  struct Saved {
    Tensor kv, gate;  // [N,P*C] A
    Tensor pooled;    // [T,C] A; absent where T is 0, as are entries
    Tensor entries;   // [T,C] A, turned
    Norm::Saved norm;
  };

  int64_t parts() const { return kv.value.rows() / norm.weight.value.numel(); }
  // x [N,D] A; state of each sequence as ops::pool_tokens_forward has it
  void forward(Run&, Tensor x, const Pass&, const MadeEntries&, std::span<float* const> state,
               Saved&);
  // dx [N,D] f32; dentries [T,C] A, written to
  void backward_acc(Run&, Tensor dx, Tensor dentries, Tensor x, const Pass&, const MadeEntries&,
                    const Saved&);
};

// As an Indexer (model/indexer.h) chooses keys, with entries of its own for keys.
struct EntryIndexer {
  Compressor keys;
  Param q;        // [H*C,Lq]
  Param weights;  // [H,D]

  // kept [N,K] i32: of the entries of its sequence those that a token sees, and -1 behind them. x
  // [N,D], from [N,Lq] A; keys [*,C] f32 or bf16: of each sequence's entries, one behind another,
  // those of s from bounds[s] on
  void choose(Run&, Tensor kept, Tensor x, Tensor from, const Pass&, Tensor keys,
              std::span<const int64_t> bounds, int64_t tokens);
};

// How many entries a token sees.
inline int64_t entries_seen(int32_t position, int64_t tokens) {
  return (position + int64_t{1}) / tokens;
}

}  // namespace moe
