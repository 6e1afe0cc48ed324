// A build without CUDA.
#include "core/error.h"
#include "ops/devices.h"

namespace moe::ops {

Device& cuda_device() {
  fail_usage(
      "this build of moe has no CUDA; configure it with -DMOE_CUDA=ON (docs/cuda.md) or leave "
      "@device at cpu");
}

}  // namespace moe::ops
