// The MoE layer: router, dispatch, experts, combine, and shared experts. Without a router it is a
// dense FFN.
#pragma once

#include <optional>

#include "moe/exchange.h"
#include "moe/experts.h"
#include "moe/norm.h"
#include "moe/router.h"

namespace moe {

// Norms of an MoE layer's branches (Gemma 4: transformers:gemma4/modeling_gemma4.py,
// Gemma4TextDecoderLayer). u being the residual stream and x what the layer is given,
//   experts and weights are chosen by router(u) factor,
//   y = experts_out(sum_i w_i FFN_i(experts(u))) + shared_out(FFN_shared(x))
struct BranchNorms {
  Norm router, experts, experts_out, shared_out;
  float router_factor = 1;

  struct Saved {
    Norm::Saved router, experts, experts_out, shared_out;
  };
};

// What a layer's forward leaves: views into run.saved.
struct MoeLayerSaved {
  BranchNorms::Saved norms;
  Tensor passed;  // [N,D] A, what zero experts give back; absent without such
  Routing router;
  RoutingPlan plan;
  Rows rows;
  ExpertBank::Saved experts;
  Rows shared_rows;
  ExpertBank::Saved shared;
};

// y = sum_i w_i FFN_i(x)  (+ sigmoid(w_sg x) FFN_shared(x), or + FFN_shared(x)), or half of that;
// where i is a zero expert, FFN_i(x) = x
struct MoeLayer {
  std::optional<Router> router;  // absent: one expert, always on
  ExpertBank experts;
  // Every expert is a neuron of `experts`, which is a bank of one (moe/neurons.h): no shared
  // experts, weights of 1, and nothing goes back to the router.
  bool by_neuron = false;
  std::optional<ExpertBank> shared;  // one bank as wide as all shared experts together
  Param shared_gate;                 // [1,D], absent: the shared expert's weight is 1
  bool average = false;              // y is half of the sum: the mean of routed and shared experts
  bool late = false;  // y is the shared experts' alone; what the routed ones give is Pass::late
  std::optional<BranchNorms> norms;  // only with shared experts without a gate
  comm::Group group;  // whose processes hold a share of the routed experts each (moe/plan.h);
                      // forward and backward are then collective

  using Saved = MoeLayerSaved;

  // y [N,D] f32; x [N,D] A; u [N,D] f32, what branches with norms of their own see: read only where
  // there are such, and alive until backward
  void forward(Run&, Tensor y, Tensor x, Tensor u, const Pass&, Saved&);
  // dx [N,D] f32; du [N,D] f32, absent without norms of branches; dy [N,D] A
  void backward(Run&, Tensor dx, Tensor du, Tensor dy, Tensor x, const Pass&,
                const RoutingLosses& coef, const Saved&);

 private:
  void forward_by_neuron(Run&, Tensor y, Tensor x, const Pass&, Saved&);
  void forward_mixed(Run&, Tensor y, Tensor x, const Pass&, Saved&);
  // What the branches see, and where they leave what they make of it: without norms the layer's own
  // input and output.
  struct Branches {
    Tensor router, experts;          // [N,D] A
    Tensor experts_out, shared_out;  // [N,D] f32
  };
  Branches branches(Run&, Tensor y, Tensor x, Tensor u, const Pass&, Saved&);
  void join(Run&, Tensor y, const Branches&, Saved&);
  // y [N,D] f32, added to; and back: dx [N,D] f32, added to, and what of the router's backward is
  // zero experts', [N] f32 in run.scratch
  void pass_through(Run&, Tensor y, const Saved&);
  Tensor pass_through_backward(Run&, Tensor dx, Tensor dy, const Saved&);
  void routed_backward(Run&, Tensor drouter, Tensor dexperts, Tensor dy, const Pass&,
                       const RoutingLosses& coef, const Saved&, const Meanwhile& meanwhile);
  void norms_backward(Run&, Tensor du, Tensor drouter, Tensor dexperts, const Saved&);
  // What the backward of the shared experts gives, in run.scratch.
  struct SharedGradients {
    Tensor x;       // [N,D] f32
    Tensor weight;  // [N] f32, absent without a gate
  };
  SharedGradients alloc_shared_gradients(Run&, Tensor x) const;
  void shared_backward(Run&, SharedGradients& d, Tensor dy, const Saved&);
  void add_shared(Run&, Tensor dx, const SharedGradients& d, Tensor x, const Saved&);
};

}  // namespace moe
