// Products of rows that lie in groups, each group with its own matrix: bf16 on the tensor cores of
// Hopper, summed in f32. Group e owns the rows [offsets[e], offsets[e + 1]); the offsets lie in
// device memory, the host never learns them, and nothing here waits for the device. A group may be
// empty. A row's result does not depend on the other rows.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace moe::ops::cuda {

struct Grouped {
  int64_t groups;          // E
  int64_t rows;            // R, of all groups together, or more: only 0 has a meaning
  int64_t out, in;         // O, I
  const int64_t* offsets;  // [E + 1], in device memory
};

// Whether the current device is of compute capability 9.0 and O and I are multiples of 8.
bool grouped_fits(int64_t out, int64_t in);

// Bytes of device memory that any product below needs as `workspace`, aligned to 256 bytes. It is
// read until the product has ended, so two streams may not share it.
size_t grouped_workspace(const Grouped& g);

// Matrices begin at multiples of 16 bytes; distances between rows (ld*) are given in numbers and
// are multiples of 16 bytes, too. Those of x and dy are bf16 as is w [E, O, I].

// y[r, :] = (accumulate ? y[r, :] : 0) + x[r, :] w[e]^T       y [R, O] bf16 or f32, x [R, I]
void grouped_forward(cudaStream_t stream, const Grouped& g, void* y, bool y_f32, int64_t ldy,
                     const void* x, int64_t ldx, const void* w, bool accumulate, void* workspace);
// dx[r, :] = (accumulate ? dx[r, :] : 0) + dy[r, :] w[e]      dx [R, I] bf16 or f32, dy [R, O]
void grouped_dx(cudaStream_t stream, const Grouped& g, void* dx, bool dx_f32, int64_t lddx,
                const void* dy, int64_t lddy, const void* w, bool accumulate, void* workspace);
// dw[e] = (accumulate ? dw[e] : 0) + dy_e^T x_e               dw [E, O, I] f32, without gaps
void grouped_dw(cudaStream_t stream, const Grouped& g, float* dw, const void* dy, int64_t lddy,
                const void* x, int64_t ldx, bool accumulate, void* workspace);

}  // namespace moe::ops::cuda
