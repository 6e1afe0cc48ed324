// A convolution over the last few tokens between two gates (LFM2, transformers:lfm2_moe/
// modeling_lfm2_moe.py, Lfm2MoeShortConv): in place of attention, with a state of fixed size in
// place of keys and values.
#pragma once

#include "model/config.h"
#include "model/kv_cache.h"
#include "ops/ops.h"

namespace moe {

// y = o (c x' * conv(b x' * x x')), x' being what the layer sees.
struct GatedConv {
  Param b, c, x;  // [D,D]
  Param conv;     // [D,J]
  Param o;        // [D,D]

  // Views into run.saved, each [N,D] A.
  struct Saved {
    Tensor b, c, x;
    Tensor gated;  // b * x
    Tensor convolved;
  };

  // y [N,D] f32; in [N,D] A. With a cache the states of `layer` are there, and go on there.
  void forward(Run&, Tensor y, Tensor in, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor in, const Pass&, const Saved&);
};

}  // namespace moe
