// With MOE_TEST_DEVICE=cuda every Run of a test computes on the CUDA device: each op brings its
// tensors there and back.
#include <cstdlib>
#include <string_view>

#include "ops/devices.h"
#include "tensor/run.h"

namespace {

const bool chosen = [] {
  const char* name = std::getenv("MOE_TEST_DEVICE");
  if (name != nullptr && std::string_view(name) == "cuda")
    moe::device_of_tests = &moe::ops::cuda_device();
  return true;
}();

}  // namespace
