// How threads share the rows of a matrix: some threads to a row, short rows several to a block.
// What a row gives depends on its width, and on whether there are few rows. Numbers are moved kStep
// at a time, at once where rows are in whole steps (rows_in_steps), else one by one, by the same
// threads in the same order.
#pragma once

#include <algorithm>

#include "ops/cuda/rowwise/units.h"

namespace moe::ops::cuda {

// ---- host side ----------------------------------------------------------------------------------

struct RowShape {
  unsigned threads = 1;  // of a row: a power of two within a warp, or whole warps
  unsigned rows = 1;     // of a block

  // A thread has about `steps` steps of a row of `cols` numbers; no more than `most` threads.
  RowShape(int64_t cols, int64_t steps, unsigned most = 256) {
    const int64_t wanted = (cols + kStep * steps - 1) / (kStep * steps);
    while (threads < wanted && threads < kWarp) threads *= 2;
    if (wanted > kWarp) threads = std::min(most, blocks_for(wanted, kWarp) * kWarp);
    if (threads <= kWarp) rows = 256 / threads;
  }
  dim3 block() const { return dim3(threads, rows); }
  dim3 blocks(int64_t n) const { return dim3(blocks_for(n, rows)); }
};

// Steps of a thread: few rows are shared by more threads, each with one step, for they cannot keep
// a GPU busy otherwise.
inline int64_t steps_for(int64_t rows, int64_t steps) { return rows < 64 ? 1 : steps; }

// Whether somebody else's zeros may be overwritten: what counts as zero until now.
inline bool take_zero(Param& param) { return std::exchange(param.grad_is_zero, false); }

// grad[e,c] = (write ? 0 : grad[e,c]) + sum_s parts[e * strips + s, c], always in the same order.
// grad [E,D] f32 without gaps; parts [E*strips, D] f32
void add_parts(Run&, float* grad, const float* parts, int64_t groups, int64_t strips, int64_t cols,
               bool write);

// ---- device side --------------------------------------------------------------------------------

// The row of this thread. Threads beyond the last row work on that one again, since all lanes of a
// warp have to be there for sums, and store nothing.
struct OwnRow {
  int64_t r;
  bool live;
  __device__ explicit OwnRow(int64_t rows) {
    r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    live = r < rows;
    if (!live) r = rows - 1;
  }
};

// Over the threads of a row, for all of them; `shared` [33] floats.
__device__ inline float row_sum(float x, float* shared) {
  if (blockDim.x > kWarp) return block_sum(x, shared);
  for (unsigned by = blockDim.x / 2; by > 0; by /= 2)
    x += __shfl_xor_sync(kFull, x, static_cast<int>(by));
  return x;
}
__device__ inline float row_max(float x, float* shared) {
  if (blockDim.x > kWarp) return block_max(x, shared);
  for (unsigned by = blockDim.x / 2; by > 0; by /= 2)
    x = fmaxf(x, __shfl_xor_sync(kFull, x, static_cast<int>(by)));
  return x;
}

// Numbers of a row, as they lie in memory.
template <class T, int kNumbers = kStep>
struct Step : Unit<T, kNumbers> {
  using Numbers = Unit<T, kNumbers>;

  __device__ Step() {}
  __device__ explicit Step(const float* x) { Numbers::set_all(x); }

  // From column c on; `beyond` behind the row's end.
  __device__ void load(const T* row, int64_t c, int64_t cols, bool steps, float beyond = 0) {
    if (steps) return Numbers::load(row + c);
    float x[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) x[i] = c + i < cols ? to_f32(row[c + i]) : beyond;
    Numbers::set_all(x);
  }
  __device__ void store(T* row, int64_t c, int64_t cols, bool steps) const {
    if (steps) return Numbers::store(row + c);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i)
      if (c + i < cols) cuda::store(row + c + i, (*this)[i]);
  }
};

// The steps of a row that are a thread's own: calls f(c) with the first column of each.
template <class F>
__device__ void for_steps(int64_t cols, F f) {
  const int64_t stride = int64_t{blockDim.x} * kStep;
  for (int64_t c = int64_t{threadIdx.x} * kStep; c < cols; c += stride) f(c);
}
// The same, kAtOnce of them at a time, so that all are on their way before one is needed: load(k,
// c) for each, then use(k, c) for each, k < kAtOnce.
template <int kAtOnce, class L, class F>
__device__ void for_steps_at_once(int64_t cols, L load, F use) {
  const int64_t stride = int64_t{blockDim.x} * kStep;
  for (int64_t c = int64_t{threadIdx.x} * kStep; c < cols; c += stride * kAtOnce) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (c + k * stride < cols) load(k, c + k * stride);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (c + k * stride < cols) use(k, c + k * stride);
  }
}

// What a thread keeps of a row that is read more than once: its first kHeld steps.
template <class T, int kHeld, int kNumbers = kStep>
struct HeldRow {
  Step<T, kNumbers> held[kHeld];
  const T* row;
  int64_t cols;
  bool steps;
  float beyond;

  __device__ HeldRow(const T* row_, int64_t cols_, bool steps_, float beyond_ = 0)
      : row(row_), cols(cols_), steps(steps_), beyond(beyond_) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (column(k) < cols) held[k].load(row, column(k), cols, steps, beyond);
  }
  __device__ static int64_t column(int k) {
    return (int64_t{threadIdx.x} + int64_t{blockDim.x} * k) * kNumbers;
  }
  // f(step, c) for each step that is the thread's, those that are not held being read again.
  template <class F>
  __device__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (column(k) < cols) f(held[k], column(k));
    for (int64_t c = column(kHeld); c < cols; c += int64_t{blockDim.x} * kNumbers) {
      Step<T, kNumbers> more;
      more.load(row, c, cols, steps, beyond);
      f(more, c);
    }
  }
};

}  // namespace moe::ops::cuda
