// How well conditioned the rows of a matrix are.
#pragma once

#include "tensor/tensor.h"

namespace moe {

// Largest over smallest singular value of m [E,D] f32; infinite where the rows are dependent.
double condition_of(const Tensor& m);

}  // namespace moe
