// What every store_keys refuses.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace moe::ops {

// Throws Error where x [N,W] does not fit a cache, or a row is none of its; `readable`: whether the
// list can be read here, to see that; `heads`: whether the cache may be one by heads.
void check_stored(const Tensor& cache, const Tensor& x, std::span<const int64_t> row, bool readable,
                  bool heads);

}  // namespace moe::ops
