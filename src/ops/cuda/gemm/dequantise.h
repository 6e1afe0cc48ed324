// Weights of any type to f32 or bf16, on the device.
#pragma once

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

// to = the numbers of from.  to [R,I] f32 or bf16; from [R,I] of any float or quantised type
void dequantise_to(Run&, Tensor to, Tensor from);

}  // namespace moe::ops::cuda
