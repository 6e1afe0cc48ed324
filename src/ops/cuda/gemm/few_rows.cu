// A warp an output: lanes read neighbouring steps of the weight's row, so that every byte of it is
// read once and in order; the row of x stays in the cache.
#include "ops/cuda/gemm/few_rows.h"

namespace moe::ops::cuda {
namespace {

constexpr int kWarps = 8;

template <class Y, class X>
__global__ void few_rows_kernel(Rows<Y> y, Rows<X> x, const int32_t* row, const X* w, int64_t out,
                                int64_t in, const int64_t* offsets, int groups, bool add) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t o = int64_t{blockIdx.x} * kWarps + warp, r = blockIdx.y;
  // A bank may have fewer rows than was reserved for.
  if (o >= out || (offsets != nullptr && r >= offsets[groups])) return;
  const int64_t e = offsets == nullptr ? 0 : group_of(offsets, groups, r);
  const X *weight = w + (e * out + o) * in, *of_x = x.row(row == nullptr ? r : row[r]);
  float sum = 0;
#pragma unroll 4
  for (int64_t i = int64_t{lane} * kStep; i < in; i += kWarp * kStep) {
    float a[kStep], b[kStep];
    load_step(a, weight + i);
    load_step(b, of_x + i);
#pragma unroll
    for (int k = 0; k < kStep; ++k) sum = fmaf(a[k], b[k], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) store(y.row(r) + o, add ? load(y.row(r) + o) + sum : sum);
}

}  // namespace

bool few_rows_product(Run& run, Tensor y, const GatheredRows& x, Tensor w, const Groups& groups,
                      bool add) {
  const int64_t rows = x.rows(), out = y.cols(), in = x.cols();
  if (rows > (groups.offsets == nullptr ? kFewDense : kFewGrouped) || x.x.dtype != w.dtype ||
      !rows_in_steps({x.x}) || in % kStep != 0 || reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
    return false;
  const Scratch scratch(run);
  with_float(y.dtype, [&](auto of_y) {
    with_float(w.dtype, [&](auto of_x) {
      using Y = decltype(of_y);
      using X = decltype(of_x);
      launch(run, few_rows_kernel<Y, X>, dim3(blocks_for(out, kWarps), static_cast<unsigned>(rows)),
             dim3(kWarps * kWarp), 0, Rows<Y>(y), Rows<X>(x.x),
             x.listed() ? on_device(run, x.row) : nullptr, static_cast<const X*>(w.data), out, in,
             groups.offsets, static_cast<int>(groups.count), add);
    });
  });
  return true;
}

}  // namespace moe::ops::cuda
