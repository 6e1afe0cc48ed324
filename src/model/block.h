// One decoder block: attention and a feed-forward layer, each added to the residual stream.
#pragma once

#include <span>

#include "model/attention.h"
#include "model/norm.h"
#include "moe/layer.h"

namespace moe {

// What a block is told about the pass it is in.
struct BlockPass {
  const Batch* batch = nullptr;
  const RoutingSpec* routing = nullptr;
  KvCache* cache = nullptr;
  int64_t layer = 0;
  RngKey key;  // of this layer and step; empty: no randomness
  float dropout = 0;
  std::span<const int64_t> step_counts;   // [E] of this layer, as Forward has them; empty: none
  Tensor recorded = {};                   // [N,K] i32 of this layer, as Forward has them; absent: the router chooses
  const ops::RopeTurns* turns = nullptr;  // of the batch's positions; null: they are not rotary
};

// pre-norm:  u = h + drop(attn(norm1(h)));  h' = u + drop(ffn(norm2(u)))
// post-norm: u = norm1(h + drop(attn(h)));  h' = norm2(u + drop(ffn(u)))
struct Block {
  NormPlacement placement = NormPlacement::pre;
  Norm norm1, norm2;
  Attention attention;
  MoeLayer ffn;

  // One residual sublayer's views into run.saved.
  struct SublayerSaved {
    Tensor x;  // [N,D] A, what the sublayer saw
    Norm::Saved norm;
  };
  struct Saved {
    SublayerSaved attention_in, ffn_in;
    Attention::Saved attention;
    MoeLayer::Saved ffn;
  };

  // out, h [N,D] f32, different memory
  void forward(Run&, Tensor out, Tensor h, const BlockPass&, Saved&);
  // Its halves: u from h, out from u.  u [N,D] f32; different memory
  void forward_attention(Run&, Tensor u, Tensor h, const BlockPass&, Saved&);
  void forward_ffn(Run&, Tensor out, Tensor u, const BlockPass&, Saved&);
  // dh [N,D] f32: on entry the gradient of the block's output, on return of its input
  void backward(Run&, Tensor dh, const BlockPass&, const RoutingLosses& coef, const Saved&);

 private:
  template <class F>
  void sublayer_forward(Run&, Tensor out, Tensor h, Norm&, const BlockPass&, RngKey dropout_key, SublayerSaved&, F&& body);
  template <class F>
  void sublayer_backward(Run&, Tensor dh, Norm&, const BlockPass&, RngKey dropout_key, const SublayerSaved&, F&& body);
};

}  // namespace moe
