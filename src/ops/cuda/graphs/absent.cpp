#include "ops/cuda/graphs/launches.h"

namespace moe::ops::cuda {

std::unique_ptr<Launches> launches_on(cudaStream_t, bool) { return nullptr; }

}  // namespace moe::ops::cuda
