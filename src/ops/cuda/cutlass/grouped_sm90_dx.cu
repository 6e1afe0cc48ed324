// dx = dy w: M rows, N inputs, K outputs. dy lies along K, w along N.
#include <algorithm>

#include "ops/cuda/cutlass/grouped_sm90_kernel.h"

namespace moe::ops::cuda::sm90 {
namespace {

template <class D>
using Dx = Product<D, RowMajor, RowMajor, Tiles<Pingpong, 64, 256, 64, 2, 1>>;

}  // namespace

void launch_dx(const Launch& launch, bool f32) {
  if (f32) Dx<float>::run(launch);
  else Dx<cutlass::bfloat16_t>::run(launch);
}

size_t dx_scratch(int groups, int sms) {
  return std::max(Dx<float>::scratch(groups, sms), Dx<cutlass::bfloat16_t>::scratch(groups, sms));
}

}  // namespace moe::ops::cuda::sm90
