// Causal self-attention: project, rotate, attend, project out. With latents, keys and values are
// made of what a token keeps (model/latents.h), or are that (model/shared_attention.cpp).
#pragma once

#include <optional>

#include "model/compressor.h"
#include "model/config.h"
#include "model/indexer.h"
#include "model/kv_cache.h"
#include "model/latents.h"
#include "moe/norm.h"

namespace moe {

// Rows of parts of tokens, row n P + p being part p of token n: sorted by part, and from there
// back.
struct RowsByPart {
  std::vector<int32_t> sorted, back;
  std::vector<int64_t> offsets;  // [P+1] of each part's

  RowsByPart(int64_t tokens, int64_t parts);
};

struct Attention {
  AttentionShape shape;
  // [H*C,D], [G*C,D], [G*Cv,D] (absent where values are of keys), [D,H*Cv]; with latents of L
  // numbers, of which queries are made of Lq, [H*C,Lq] or of both [H*C,2 Lq], [H*(C-R),L],
  // [H*Cv,L]
  // of shared latents q is [H*C,Lq], k and v are absent and o is [D,P*W] where o_a is there
  Param q, k, v, o;
  Param o_a;                             // [P,W,H*C/P], absent without parts of heads
  Param q_bias, k_bias, v_bias, o_bias;  // absent without bias
  Param sinks;                           // [H], absent without
  Param gate;  // [H*Cv,D], or [H,D] of heads, or [H*Cv,2 Lq] of both latents, absent without
  std::optional<Norm> q_norm, k_norm;  // weight [C] (per head) or [H*C], [G*C] (full)
  std::optional<Norm> v_norm;          // per head, no weight
  std::optional<Latents> latents;
  std::optional<Indexer> indexer;             // of sparse attention, in layers that have one
  std::optional<Compressor> entries;          // in layers that have them
  std::optional<EntryIndexer> entry_indexer;  // where they are chosen

  // Views into run.saved.
  struct Saved {
    Tensor q, k, v;  // [N,H*C], [N,G*C], [N,G*Cv] A, after norm and rotation
    Tensor o;        // [N,H*Cv] A, before the gate
    Tensor gate;  // [N,H*Cv] A, or f32 and [N,H] too (own_gates), before its curve; absent without
    Tensor lse;   // [N,H] f32
    Tensor q_whole, k_whole, v_whole;  // q, k and v before they were clipped; absent without
    Norm::Saved q_norm, k_norm, v_norm;
    Latents::Saved latents;
    Tensor narrowed;  // [N,P*W] A, what o takes; absent without o_a
    Compressor::Saved entries, index;
    Tensor
        kept;  // [N,K] i32: the entries that a token sees, -1 behind them; absent where none does
  };

  // y [N,D] f32; x [N,D] A. With a cache the keys and values of `layer` go there and are read from
  // there.
  void forward(Run&, Tensor y, Tensor x, const Pass&, int64_t layer, Saved&);
  // Whether keys and values are all that later tokens ask of one.
  bool leaves_only_keys() const { return !shape.latent.shared && !entries && shape.top == 0; }
  // Of tokens whose hidden states nobody reads, in such attention: the cache gets their keys and
  // values, and nothing else is made of them.  x [N,D] A
  void remember(Run&, Tensor x, const Pass&, int64_t layer);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache in which all tokens saw all
  // before them.
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);

 private:
  // Queries, keys and values of x, with their biases and norms; `dgate` of a gate of latents alone.
  void project(Run&, Tensor x, Saved&);
  void project_backward(Run&, Tensor dx, Tensor dq, Tensor dk, Tensor dv, Tensor dgate, Tensor x,
                        const Saved&);
  // What follows the projections of keys and values.  yk, yv [N,*] A
  void finish_keys(Run&, Tensor yk, Tensor yv, Saved&);
  void project_latents(Run&, Tensor x, Saved&);
  void expand_latents(Run&, Saved&);
  void project_latents_backward(Run&, Tensor dx, Tensor dq, Tensor dk, Tensor dv, Tensor dgate,
                                Tensor x, const Saved&);
  // What keys turn by.
  const ops::CosSinTable& turns(const Pass&) const;
  // Queries and keys turned by their positions, in place; `inverse`: its backward.
  void rotate(Run&, Tensor q, Tensor k, const Pass&, bool inverse) const;
  // Of latent attention, and where nothing turns: q, or its gradient, times the factors of its
  // positions, where they grow.
  void grow(Run&, Tensor q, const Pass&) const;
  // The norms of queries and keys that are turned already, and from their gradients those of what
  // they saw.
  void norm_turned(Run&, Saved&);
  Tensor turned_normed(Run&, Norm&, Tensor x, Norm::Saved&);
  void norm_turned_backward(Run&, Tensor& dq, Tensor& dk, const Saved&);
  // Whether the gate is made of what queries are made of: of latents on both sides of their norm.
  bool gate_of_latents() const { return gate.present() && latents && latents->both; }
  // Of heads, or of the token beside latents; else the gate is projected with queries.
  void project_gate(Run&, Tensor x, Saved&);
  // What heads gave, weighted by the gate where there is one, in run.scratch then.
  Tensor gated(Run&, const Saved&) const;
  ops::GateCurve curve() const {
    return shape.gate_softplus ? ops::GateCurve::softplus : ops::GateCurve::sigmoid;
  }
  // From do_, its gradient: that of saved.o in place, dgate, and the gated again.
  Tensor gate_backward(Run&, Tensor do_, Tensor dgate, const Saved&) const;
  void attend(Run&, Tensor x, const Pass&, int64_t layer, Saved&);
  // What the cache keeps of a token: the part of its key that turns, turned, and its latent, in
  // run.scratch [N,R+L].
  Tensor latent_keys(Run&, const Pass&, const Saved&) const;
  void attend_latents(Run&, Tensor x, const Pass&, int64_t layer, Saved&);
  void choose(Run&, Tensor x, const Pass&, int64_t layer, const Saved&);
  void attend_backward(Run&, Tensor dq, Tensor dk, Tensor dv, Tensor do_, Tensor dentries,
                       const Pass&, const Saved&);

  // Of latents that are keys and values as they are (shared_attention.cpp): queries, keys and
  // values, turned; what heads gave turned back, or with `inverse` its gradient; the same in
  // scratch; what the projection back takes, and backward; what entries the batch makes and which
  // of them each token sees.
  void project_shared(Run&, const Pass&, Saved&);
  void turn_back(Run&, Tensor o, const Pass&, bool inverse) const;
  Tensor turned_back(Run&, const Pass&, const Saved&) const;
  Tensor narrowed(Run&, Tensor o, Saved&);
  void narrowed_backward(Run&, Tensor do_, Tensor dnarrowed, Tensor turned);
  void out_shared_backward(Run&, Tensor do_, Tensor dy, const Pass&, const Saved&);
  void make_entries(Run&, Tensor x, const Pass&, int64_t layer, Saved&);

  // What follows a projection y [N,*] A, in place where there is no norm: its bias and norm, and
  // what clips it, which leaves `whole` as it was.
  Tensor finish(Run&, Tensor y, const Param& bias, std::optional<Norm>& norm, Norm::Saved&,
                Tensor& whole);
  // The gradient of what a norm saw, in scratch, or dy itself where there is none.
  Tensor before_norm(Run&, Tensor dy, std::optional<Norm>& norm, const Norm::Saved&);
  void projection_backward(Run&, Tensor dx, bool accumulate, Tensor dy, Tensor x, Param& weight,
                           Param& bias);
  Tensor as_norm_rows(const Norm&, Tensor x) const;

  // A view of k or v with a matrix for each head, and of its term.
  struct HeadBank {
    Param w, b;
    LowRankTerm term;
  };
  static Param& bank_of(HeadBank&, const Param& w, int64_t heads);

  HeadBank k_bank_, v_bank_;
};

}  // namespace moe
