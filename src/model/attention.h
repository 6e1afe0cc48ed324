// Causal self-attention: project, normalise queries and keys, rotate, attend, project out.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/kv_cache.h"
#include "model/norm.h"

namespace moe {

struct Attention {
  Param q, k, v, o;                      // [H*C,D], [G*C,D], [G*C,D], [D,H*C]
  Param q_bias, k_bias, v_bias, o_bias;  // absent without bias
  std::optional<Norm> q_norm, k_norm;    // weight [C] (per head) or [H*C], [G*C] (full)
  int64_t heads = 1, kv_heads = 1, head_width = 1;
  int64_t window = 0;  // keys a query sees, 0: all before it

  // Views into run.saved.
  struct Saved {
    Tensor q, k, v;  // [N,H*C], [N,G*C] A, after norm and rotation
    Tensor o;        // [N,H*C] A
    Tensor lse;      // [N,H] f32
    Norm::Saved q_norm, k_norm;
  };

  // y [N,D] f32; x [N,D] A. With a cache the keys and values of `layer` go there and are read from there.
  void forward(Run&, Tensor y, Tensor x, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const Saved&);

 private:
  // What follows a projection y [N,*] A, in place where there is no norm: its bias and norm.
  Tensor finish(Run&, Tensor y, const Param& bias, std::optional<Norm>& norm, Norm::Saved&);
  void project_backward(Run&, Tensor dx, bool accumulate, Tensor dy, Tensor x, Param& weight, Param& bias, std::optional<Norm>& norm, const Norm::Saved&);
  Tensor as_norm_rows(const Norm&, Tensor x) const;
};

}  // namespace moe
