// A feed-forward network each of whose neurons is an expert: a token takes some of them, each for
// what it is. The same as a bank of experts of width 1, without a row for each pair of a token and
// a neuron.
#pragma once

#include "moe/experts.h"

namespace moe {

// y[n] = sum over i in kept[n] of a_i down_i,  a_i = act(gate_i x[n]) (up_i x[n]), as ExpertBank
// has it. `bank` holds one network, without biases, and its `down` [1,F,D] lies as its gate does: a
// neuron's weights are a row, so that those of the others need not be read.
//   y [N,D] f32; x [N,D] A; kept [N,K] i32 rising, or absent: every token takes all neurons
//
// Few tokens that do not go back read the rows of their own neurons; else all are computed and
// those that a token did not take count as zero. The two agree to the rounding of A.
void neurons_forward(Run&, ExpertBank& bank, Tensor y, Tensor x, Tensor kept, bool goes_back,
                     ExpertBank::Saved&);
// Of a forward that goes back.  dx [N,D] A or f32, written; dy [N,D] A
void neurons_backward(Run&, ExpertBank& bank, Tensor dx, Tensor dy, Tensor x, Tensor kept,
                      const ExpertBank::Saved&);

}  // namespace moe
