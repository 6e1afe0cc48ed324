// Dropout. Element i = r * D + c keeps its value when u(i) >= p, where u(i) is word i mod 4 of
// Philox at counter i / 4, its upper 24 bits read as a number in [0, 1): the draws of ops/cpu.
#include <cmath>

#include "ops/cuda/kernel.h"
#include "ops/cuda/philox.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;

// What keeps a number: its draw is at least `threshold`, of 2^24.
struct Keep {
  RngKey key;
  uint32_t threshold;
  float scale;

  __device__ float operator()(float x, uint32_t word) const {
    return (word >> 8) >= threshold ? x * scale : 0.0f;
  }
};

// Numbers without gaps, kStep at a time.
template <class Y, class X>
__global__ void drop_steps(Y* y, const X* x, int64_t steps, Keep keep) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < steps; i += step) {
    float v[kStep];
    load_step(v, x + i * kStep);
#pragma unroll
    for (int part = 0; part < kStep / 4; ++part) {
      const Words words = philox_words(keep.key, static_cast<uint64_t>(i) * (kStep / 4) + part);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[part * 4 + k] = keep(v[part * 4 + k], words.x[k]);
    }
    store_step(y + i * kStep, v);
  }
}
template <class Y, class X>
__global__ void drop_numbers(Rows<Y> y, Rows<X> x, int64_t numbers, int64_t cols, Keep keep) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const Words words = philox_words(keep.key, static_cast<uint64_t>(i) / 4);
    const int64_t r = i / cols, c = i % cols, k = i % 4;
    const uint32_t word =
        k < 2 ? (k == 0 ? words.x[0] : words.x[1]) : (k == 2 ? words.x[2] : words.x[3]);
    store(y.row(r) + c, keep(load(x.row(r) + c), word));
  }
}

}  // namespace

void dropout(Run& run, Tensor y, Tensor x, float p, RngKey key) {
  check_dropout(y, x, p);
  if (p == 0 || key.empty()) {
    if (x.data != y.data || x.dtype != y.dtype) cast(run, y, x);
    return;
  }
  const Keep keep{key, static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 0x1p24)),
                  1.0f / (1.0f - p)};
  with_float(y.dtype, [&](auto of_y) {
    with_float(x.dtype, [&](auto of_x) {
      using Y = decltype(of_y);
      using X = decltype(of_x);
      if (in_steps({y, x})) {
        const int64_t steps = y.numel() / kStep;
        launch(run, drop_steps<Y, X>, dim3(walking_blocks(run, steps, kThreads)), dim3(kThreads), 0,
               static_cast<Y*>(y.data), static_cast<const X*>(x.data), steps, keep);
      } else {
        launch(run, drop_numbers<Y, X>, dim3(walking_blocks(run, y.numel(), kThreads)),
               dim3(kThreads), 0, Rows<Y>(y), Rows<X>(x), y.numel(), y.cols(), keep);
      }
    });
  });
}

}  // namespace moe::ops::cuda
