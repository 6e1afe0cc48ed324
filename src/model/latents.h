// What latent attention makes of a token before there are heads (DeepSeek-V2, arXiv 2405.04434,
// section 2.1): few numbers of which queries are made, few of which keys and values are, and the
// part of a key that turns with the position, the same for all heads.
#pragma once

#include <optional>

#include "moe/norm.h"

namespace moe {

// q = s' norm(q_a x), kv = s norm(kv_a x), k_rope = k_rope x;  both = (q, q_a x) where queries are
// made of both
struct Latents {
  Param q_a;                   // [Lq,D]; absent: queries are made of the token itself
  std::optional<Norm> q_norm;  // [Lq]
  bool both = false;
  Param kv_a;                         // [L,D]
  Param k_rope;                       // [R,D]; absent where latents are the keys, and turn
  Norm kv_norm;                       // [L]
  float q_factor = 1, kv_factor = 1;  // s', s

  // Views into run.saved.
  struct Saved {
    Tensor q;       // [N,Lq] A, absent without q_a
    Tensor both;    // [N,2 Lq] A, absent where queries are made of q alone
    Tensor kv;      // [N,L] A
    Tensor k_rope;  // [N,R] A, before it is turned; absent likewise
    Norm::Saved q_norm, kv_norm;
  };

  // x [N,D] A
  void forward(Run&, Tensor x, Saved&);
  // Of tokens that ask nothing: kv and k_rope alone.
  void forward_keys(Run&, Tensor x, Saved&);
  // What an indexer's queries are made of.
  Tensor normed_of(Tensor x, const Saved& saved) const { return saved.q.empty() ? x : saved.q; }
  // What queries are made of.
  Tensor queries_of(Tensor x, const Saved& saved) const {
    return both ? saved.both : normed_of(x, saved);
  }
  // dx [N,D] f32; dq like what queries are made of, dkv [N,L], dk_rope [N,R] A; dq and dk_rope
  // absent where what they are of is
  void backward_acc(Run&, Tensor dx, Tensor dq, Tensor dkv, Tensor dk_rope, Tensor x, const Saved&);
};

}  // namespace moe
