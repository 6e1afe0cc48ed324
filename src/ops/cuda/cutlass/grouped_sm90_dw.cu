// dw = dy^T x: M outputs, N inputs, K rows, of which there may be any number but none (the kernel
// would store what it never summed). dy lies along M, x along N.
#include "ops/cuda/cutlass/grouped_sm90_kernel.h"

namespace moe::ops::cuda::sm90 {
namespace {

using Dw = Product<float, ColumnMajor, RowMajor, Tiles<Pingpong, 128, 128, 64, 2, 1>>;

}  // namespace

void launch_dw(const Launch& launch) { Dw::run(launch); }

size_t dw_scratch(int groups, int sms) { return Dw::scratch(groups, sms); }

}  // namespace moe::ops::cuda::sm90
