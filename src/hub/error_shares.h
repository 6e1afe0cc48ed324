// Who knows how the errors of rounding a matrix are made good (tensor/quant_compensated.h).
#pragma once

#include "hub/tensor_map.h"

namespace moe {

class ErrorShares {
 public:
  virtual ~ErrorShares() = default;
  // [I,I] f32 of matrix m of a tensor of a GGUF; empty: not known. Valid until the next call.
  virtual Tensor of(const FileTensor&, int64_t m, int threads) = 0;
};

}  // namespace moe
