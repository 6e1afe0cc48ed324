// One decoder block: attention and a feed-forward layer, or one of the two, each added to the
// residual stream.
#pragma once

#include "model/attention.h"
#include "model/delta_net.h"
#include "model/gated_conv.h"
#include "model/hyper_connection.h"
#include "model/lightning.h"
#include "model/selective_scan.h"
#include "model/state_scan.h"
#include "moe/layer.h"
#include "moe/norm.h"
#include "moe/norm_gate.h"

namespace moe {

// pre:    u = h + s drop(attn(attn_norm(h)));  h' = u + s drop(ffn(ffn_norm(u)))
// post:   u = attn_norm(h + s drop(attn(h)));  h' = ffn_norm(u + s drop(ffn(u)))
// output: u = h + s drop(attn_norm(attn(h)));  h' = u + s drop(ffn_norm(ffn(u)))
// both:   u = h + s drop(attn_out_norm(attn(attn_norm(h))));  h' likewise
// beside: x = attn_norm(h);  h' = h + s drop(attn(x)) + s drop(ffn(x))
// beside_each: the same, but ffn(ffn_norm(h))
// carried: x = attn_norm(h);  u = a x + b drop(attn(x));  h' likewise of u, by a and b of its own
// Of pre the FFN alone may be as of both, in layers that route, and gates may stand behind norms.
// Layers without attention may be as of pre where the others are as of output.
// and, with a scale c of the layer, h' times c.
// With several residual streams (pre alone, without s and c) h and u are what is collapsed of them,
// and what a sublayer gives is spread over them (model/hyper_connection.h).
// attn being linear attention, lightning attention, a gated convolution or a state space in layers
// that have it, or the sum of a state space and attention, each times a number, where they are
// beside one another. A block that has one of the two sublayers alone is its half of these: h' = u,
// or u = h.
struct Block {
  int64_t layer = 0;                // of the model
  bool mixes = true, feeds = true;  // which of the sublayers it has, at least one
  NormPlacement placement = NormPlacement::pre;
  float dropout = 0;
  float residual = 1;                               // s
  Multipliers::Sum attn_sum, ffn_sum;               // a and b
  Norm attn_norm, ffn_norm;                         // of beside both have the first alone
  std::optional<Norm> attn_out_norm, ffn_out_norm;  // of sublayers with norms before and behind
  std::optional<NormGate> attn_norm_gate, ffn_norm_gate;
  Attention attention;
  std::optional<DeltaNet> linear;          // in place of attention
  std::optional<GatedConv> conv;           // likewise
  std::optional<SelectiveScan> selective;  // likewise
  std::optional<StateScan> scan;           // likewise, or beside it
  std::optional<Lightning> lightning;      // in place of attention
  bool attends = true;                     // whether it has attention
  float scan_out = 1, attention_out = 1;
  std::optional<HyperConnection> attn_streams, ffn_streams;
  Param layer_scale;        // [1], a buffer; absent without
  bool joins_late = false;  // what routed experts of the block before gave (Pass::late) is added
  MoeLayer ffn;

  // One residual sublayer's views into run.saved.
  struct SublayerSaved {
    Tensor x;  // [N,D] A, what the sublayer saw
    Norm::Saved norm, out_norm;
    HyperConnection::Saved streams;
    NormGate::Saved gate;
  };
  struct Saved {
    SublayerSaved attention_in, ffn_in;
    Attention::Saved attention;
    DeltaNet::Saved linear;
    GatedConv::Saved conv;
    SelectiveScan::Saved selective;
    StateScan::Saved scan;
    Lightning::Saved lightning;
    MoeLayer::Saved ffn;
  };

  // out, h [N,D] f32, or [N,SD] of S streams; different memory
  void forward(Run&, Tensor out, Tensor h, const Pass&, Saved&);
  // Its halves: u from h, out from u; where the FFN stands beside attention, which does not see u,
  // the first alone.  u f32 of h's shape; different memory
  void forward_attention(Run&, Tensor u, Tensor h, const Pass&, Saved&);
  void forward_ffn(Run&, Tensor out, Tensor u, const Pass&, Saved&);
  // Whether keys and values are all that later tokens ask of this block about one; and what leaves
  // no more than that of tokens whose hidden states behind it nobody reads.
  bool leaves_only_keys() const;
  void remember(Run&, Tensor h, const Pass&);
  // dh f32 of h's shape: on entry the gradient of the block's output, on return of its input
  void backward(Run&, Tensor dh, const Pass&, const RoutingLosses& coef, const Saved&);

 private:
  void forward_beside(Run&, Tensor out, Tensor h, const Pass&, Saved&);
  void backward_beside(Run&, Tensor dh, const Pass&, const RoutingLosses& coef, const Saved&);
  // Attention, or what stands in its place.  y [N,D] f32; dx [N,D] f32; x, dy [N,D] A
  void mix_forward(Run&, Tensor y, Tensor x, const Pass&, Saved&);
  void mix_backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);
  // dy times a factor, which is not 1 in memory of its own.
  static Tensor times(Run&, Tensor dy, float factor);
  // sum = h + s drop(y), y being changed; and back: dy = s drop(dsum).  sum, h [N,D] f32, which may
  // be the same; y, dy [N,D]
  void add_dropped(Run&, Tensor sum, Tensor h, Tensor y, RngKey dropout_key) const;
  void dropped_backward(Run&, Tensor dy, Tensor dsum, RngKey dropout_key) const;
  void scale_layer(Run&, Tensor x) const;
  // The norm of a sublayer, and what may stand behind it and behind the sublayer.
  struct SublayerNorms {
    Norm& norm;
    std::optional<NormGate>& gate;
    std::optional<Norm>& out_norm;
  };
  // What the sublayer sees of h, into saved.x.
  void enter(Run&, Tensor h, const SublayerNorms&, SublayerSaved&);
  template <class F>
  void sublayer_forward(Run&, Tensor out, Tensor h, SublayerNorms, RngKey dropout_key,
                        SublayerSaved&, F&& body);
  template <class F>
  void sublayer_backward(Run&, Tensor dh, SublayerNorms, RngKey dropout_key, const SublayerSaved&,
                         F&& body);
  // The same of a sublayer whose norm gives the residual, too.
  template <class F>
  void carried(Run&, Tensor out, Tensor h, Norm&, Multipliers::Sum, RngKey dropout_key,
               SublayerSaved&, F&& body);
  template <class F>
  void carried_backward(Run&, Tensor dh, Norm&, Multipliers::Sum, RngKey dropout_key,
                        const SublayerSaved&, F&& body);
  // The same of a sublayer between streams.  out, h, dh [N,SD] f32
  template <class F>
  void between_streams(Run&, Tensor out, Tensor h, HyperConnection&, Norm&, RngKey dropout_key,
                       SublayerSaved&, F&& body);
  template <class F>
  void between_streams_backward(Run&, Tensor dh, HyperConnection&, Norm&, RngKey dropout_key,
                                const SublayerSaved&, F&& body);
};

}  // namespace moe
