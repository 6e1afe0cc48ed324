// Mamba-1's layer (arXiv 2312.00752, section 3.4; transformers:mamba/modeling_mamba.py, MambaMixer,
// jamba/modeling_jamba.py, JambaMambaMixer): in place of attention, with a state of fixed size in
// place of keys and values.
#pragma once

#include <array>

#include "model/config.h"
#include "model/kv_cache.h"
#include "ops/ops.h"

namespace moe {

// u = silu(conv(x in));  (d, B, C) = made u, each behind an RMSNorm or none of them;
// s = the selective scan of u, by steps made of step d;  y = o (s silu(z in)).
struct SelectiveScan {
  StateSpace shape;                 // I values, each a head of its own
  Param z, x;                       // [I,D]
  Param conv, conv_bias;            // [I,J], [I] or absent
  Param made;                       // [R+2C,I]
  Param step_norm, b_norm, c_norm;  // [R], [C], [C], or absent
  float eps = 1e-5f;                // of these
  Param step;                       // [I,R]
  Param dt_bias, a_log, skip;       // [I], [I,C], [I]
  Param o;                          // [D,I]

  // Views into run.saved.
  struct Saved {
    Tensor projected, seen;      // [N,I] A, before and after the convolution
    Tensor z, dt, scanned;       // [N,I] A
    Tensor made;                 // [N,R+2C] A
    Tensor steps, bc;            // [N,R], [N,2C] A: its parts behind their norms, if there are such
    Tensor chunks;               // [*,C*I] f32, absent where nothing goes back
    std::array<Tensor, 3> rstd;  // [N] f32 of each norm, absent without
  };

  // y [N,D] f32; in [N,D] A. With a cache the states of `layer` are there, and go on there.
  void forward(Run&, Tensor y, Tensor in, const Pass&, int64_t layer, Saved&);
  // dx [N,D] f32; dy [N,D] A. Only after a forward without a cache.
  void backward(Run&, Tensor dx, Tensor dy, Tensor in, const Pass&, const Saved&);

 private:
  bool has_norms() const { return b_norm.present(); }
  // Of a tensor [N,R+2C] what steps are made of; B and C.
  Tensor of_step(Tensor t) const { return t.slice_cols(0, shape.step_rank); }
  Tensor of_bc(Tensor t) const { return t.slice_cols(shape.step_rank, t.cols()); }
  // Of these two tensors what norm i of the three is of, and its weight.
  Tensor part_of(Tensor steps, Tensor bc, size_t i) const {
    const int64_t begin = i == 2 ? shape.states : 0;
    return i == 0 ? steps : bc.slice_cols(begin, begin + shape.states);
  }
  Param& norm_of(size_t i) { return i == 0 ? step_norm : i == 1 ? b_norm : c_norm; }
};

}  // namespace moe
