#include "ops/cuda/gemm/dequantise.h"

#include "ops/cuda/block_formats.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <DType format, class Y>
__global__ void dequantise_kernel(Rows<Y> to, const char* from, int64_t row_bytes, int64_t numbers,
                                  int64_t cols) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const int64_t r = i / cols, c = i % cols;
    store(to.row(r) + c, number_at<format>(from + r * row_bytes, c));
  }
}

template <class Y>
__global__ void widen_halves(Rows<Y> to, Rows<uint16_t> from, int64_t numbers, int64_t cols) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const int64_t r = i / cols, c = i % cols;
    store(to.row(r) + c, to_f32(f16{from.row(r)[c]}));
  }
}

}  // namespace

void dequantise_to(Run& run, Tensor to, Tensor from) {
  if (is_float(from)) return cast(run, to, from);
  const dim3 blocks(walking_blocks(run, from.numel(), kThreads)), threads(kThreads);
  with_float(to.dtype, [&](auto of_y) {
    using Y = decltype(of_y);
    if (from.dtype == DType::f16)
      return launch(run, widen_halves<Y>, blocks, threads, 0, Rows<Y>(to), Rows<uint16_t>(from),
                    from.numel(), from.cols());
    with_blocks(from.dtype, [&](auto format) {
      launch(run, dequantise_kernel<decltype(format)::value, Y>, blocks, threads, 0, Rows<Y>(to),
             static_cast<const char*>(from.data), from.row_bytes, from.numel(), from.cols());
    });
  });
}

}  // namespace moe::ops::cuda
