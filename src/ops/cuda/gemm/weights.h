// Weights as products read them: on the device, in the dtype of the product.
#pragma once

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

// w.value itself where it is of that dtype, else a copy, kept beside the parameter and made again
// when its version has moved.  [O,I] or [E,O,I] without gaps
Tensor weights_as(Run&, const Param& w, DType dtype);
// The copy in bf16 that weights_as() keeps, for who writes the value and can write it too; absent
// where none is kept. settle_copy() says that it has been.
Tensor kept_copy(const Param& w);
void settle_copy(const Param& w);

}  // namespace moe::ops::cuda
