// y = x w^T: M rows, N outputs, K inputs. x and w both lie along K.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/cutlass/grouped_sm90_kernel.h"

namespace moe::ops::cuda::sm90 {
namespace {

// As measured on an H200 with 64 groups of 2,048 rows: gate and up, which sum over the model's
// width and are kept in bf16, 716 TFLOP/s; down, which sums over an expert's and is f32, 655.
template <class D>
using Plan = std::conditional_t<std::is_same_v<D, float>, Tiles<Pingpong, 64, 256, 64, 2, 1>,
                                Tiles<Cooperative, 128, 256, 64, 1, 1>>;
template <class D>
using Forward = Product<D, RowMajor, ColumnMajor, Plan<D>>;

}  // namespace

void launch_forward(const Launch& launch, bool f32) {
  if (f32) Forward<float>::run(launch);
  else Forward<cutlass::bfloat16_t>::run(launch);
}

size_t forward_scratch(int groups, int sms) {
  return std::max(Forward<float>::scratch(groups, sms),
                  Forward<cutlass::bfloat16_t>::scratch(groups, sms));
}

}  // namespace moe::ops::cuda::sm90
