// Kernels on their way to the device: one by one, or, where work comes again and again in the same
// shape as that of a token after a token, noted down and started as CUDA graphs of many, which
// takes the processor a fraction of the time.
#pragma once

#include <memory>

#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {

class Launches {
 public:
  virtual ~Launches() = default;
  virtual void add(const Launch&) = 0;
  // From now on kernels may be held back until start_held(); false: none is.
  virtual void repeat(bool) = 0;
  virtual void start_held() = 0;
  // Somebody has waited: what comes next is expected to be what came after the last time.
  virtual void begin_again() = 0;
};
// Null where kernels start by themselves. `overlapped`: the device lets a kernel begin while the
// one before it still runs (kernel.h, wait_for_before).
std::unique_ptr<Launches> launches_on(cudaStream_t, bool overlapped);

}  // namespace moe::ops::cuda
