// Products in plain f32 arithmetic, of any types and layouts: what no library has a kernel for.
#pragma once

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

enum class Form {
  forward,  // c[r,o] = sum_i a[r,i] b[e(r)][o,i]
  dx,       // c[r,i] = sum_o a[r,o] b[e(r)][o,i]
  dw,       // c[e][o,i] = sum_r a[r,o] b[r,i]
};

// Rows grouped by offsets [E+1] on the device; null: one group of all rows.
struct Groups {
  const int64_t* offsets = nullptr;
  int64_t count = 1;
};

// c = or += the product, summed in f32. Each of a, b, c f32 or bf16.
void tile_product(Run&, Form, Tensor c, Tensor a, Tensor b, const Groups&, bool add);
// Numbers between -1 and 1, for products that are only timed.
void spread_numbers(Run&, Tensor y);

}  // namespace moe::ops::cuda
