// The MoE layer: router, dispatch, experts, combine, and shared experts. Without a router it is a
// dense FFN.
#pragma once

#include <optional>

#include "moe/experts.h"
#include "moe/router.h"

namespace moe {

// What a layer's forward leaves: views into run.saved.
struct MoeLayerSaved {
  Routing router;
  RoutingPlan plan;
  Rows rows;
  ExpertBank::Saved experts;
  Rows shared_rows;
  ExpertBank::Saved shared;
};

// y = sum_i w_i FFN_i(x)  (+ sigmoid(w_sg x) FFN_shared(x), or + FFN_shared(x))
struct MoeLayer {
  std::optional<Router> router;  // absent: one expert, always on
  ExpertBank experts;
  std::optional<ExpertBank> shared;  // one bank as wide as all shared experts together
  Param shared_gate;                 // [1,D], absent: the shared expert's weight is 1
  comm::Group group;  // whose processes hold a share of the routed experts each (moe/plan.h);
                      // forward and backward are then collective

  using Saved = MoeLayerSaved;

  // y [N,D] f32; x [N,D] A
  void forward(Run&, Tensor y, Tensor x, const Pass&, Saved&);
  // dx [N,D] f32; dy [N,D] A
  void backward(Run&, Tensor dx, Tensor dy, Tensor x, const Pass&, const RoutingLosses& coef,
                const Saved&);

 private:
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
