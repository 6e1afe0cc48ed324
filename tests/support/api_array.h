// A tensor as a caller of the C interface gives it.
#pragma once

#include <moe/moe.h>

#include "tensor/tensor.h"

namespace moe::test {

inline moe_array array(const char* name, const Tensor& t) {
  moe_array a{
      .name = name, .data = t.data, .dtype = MOE_F32, .rank = t.rank, .shape = {}, .stride = {}};
  if (t.dtype == DType::bf16) a.dtype = MOE_BF16;
  if (t.dtype == DType::i32) a.dtype = MOE_I32;
  int64_t next = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    a.shape[i] = t.shape[static_cast<size_t>(i)];
    a.stride[i] = next;
    next *= a.shape[i];
  }
  return a;
}

}  // namespace moe::test
