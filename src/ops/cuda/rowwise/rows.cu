// Moving rows between tokens and experts: gathering copies rows, combine sums them. Each is the
// other's adjoint. And moving columns to and from where a few of them stand together.
#include "ops/cuda/rowwise/pieces.h"
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Of a gather: warps of a block, rows of a warp.
constexpr int kBeside = kThreads / kWarp, kAtOnce = 4;

// y[r] = x[token[r]], rows of `pieces` P. A warp copies one slice, kWarp pieces, of its rows.
// Blocks of the same slice of all rows follow each other, so that of x no more than a slice has to
// stay in the L2 cache, which the y written is the first to leave.
template <class P>
__global__ void gather(Rows<P> y, Rows<P> x, const int32_t* token, int64_t rows, int64_t pieces) {
  begin_in_turn();
  const int64_t first = (int64_t{blockIdx.x} * kBeside + threadIdx.y) * kAtOnce;
  int32_t from[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) from[k] = token[std::min(first + k, rows - 1)];
  for (int64_t i = int64_t{blockIdx.y} * kWarp + threadIdx.x; i < pieces; i += gridDim.y * kWarp) {
    P v[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) v[k] = x.row(from[k])[i];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k < rows) __stcs(y.row(first + k) + i, v[k]);
  }
}

// sum += x[row[k]] for kRows of them, all on their way before the first is added.
template <int kRows, bool steps, class X>
__device__ void add_rows(float (&sum)[kStep], Rows<X> x, const int32_t* row, int64_t c,
                         int64_t cols) {
  int32_t from[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) from[k] = row[k];
  Step<X> v[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) v[k].load(x.row(from[k]), c, cols, steps);
#pragma unroll
  for (int k = 0; k < kRows; ++k)
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum[i] += v[k][i];
}

// y[n] = (y[n] +) sum_i x[row[i]], i from bounds[n] to bounds[n + 1] in that order. `steps` is
// known when this is compiled, so that loads have no conditions between them.
template <bool steps, class Y, class X>
__global__ void sum_of_rows(Rows<Y> y, Rows<X> x, const int32_t* bounds, const int32_t* row,
                            bool accumulate, int64_t rows, int64_t cols) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const int32_t begin = bounds[own.r], end = bounds[own.r + 1];
  for_steps(cols, [&](int64_t c) {
    float sum[kStep] = {};
    int32_t i = begin;
#pragma unroll 1
    for (; i + 8 <= end; i += 8) add_rows<8, steps>(sum, x, row + i, c, cols);
    if (i + 4 <= end) add_rows<4, steps>(sum, x, row + i, c, cols), i += 4;
    if (i + 2 <= end) add_rows<2, steps>(sum, x, row + i, c, cols), i += 2;
    if (i < end) add_rows<1, steps>(sum, x, row + i, c, cols);
    if (accumulate) {
      Step<Y> before;
      before.load(y.row(own.r), c, cols, steps);
#pragma unroll
      for (int k = 0; k < kStep; ++k) sum[k] += before[k];
    }
    Step<Y>(sum).store(y.row(own.r), c, cols, steps);
  });
}

void sum(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
         std::span<const int32_t> row, bool accumulate, const char* op) {
  check_sum_rows(run, op, y, x, bounds, row);
  Scratch scratch(run);
  const int32_t *from = on_device(run, bounds), *list = on_device(run, row);
  const RowShape shape(y.cols(), 1);
  const bool steps = rows_in_steps({y, x});
  with_float(y.dtype, [&](auto of_y) {
    with_float(x.dtype, [&](auto of_x) {
      using Y = decltype(of_y);
      using X = decltype(of_x);
      launch(run, steps ? sum_of_rows<true, Y, X> : sum_of_rows<false, Y, X>,
             shape.blocks(y.rows()), shape.block(), 0, Rows<Y>(y), Rows<X>(x), from, list,
             accumulate, y.rows(), y.cols());
    });
  });
}

// all[n, ids[t]] = few[n, t], or the other way, which leaves zero
template <class T, bool put>
__global__ void move_columns(Rows<T> all, Rows<T> few, const int64_t* ids, int64_t rows,
                             int64_t columns) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    T* one = all.row(i / columns) + ids[i % columns];
    T* other = few.row(i / columns) + i % columns;
    if constexpr (put) {
      *one = *other;
    } else {
      *other = *one;
      store(one, 0.0f);
    }
  }
}

template <bool put>
void move(Run& run, Tensor all, Tensor few, std::span<const int64_t> ids) {
  Scratch scratch(run);
  const int64_t* columns = on_device(run, ids);
  with_float(all.dtype, [&](auto of_all) {
    using T = decltype(of_all);
    launch(run, move_columns<T, put>, dim3(walking_blocks(run, few.numel(), kThreads)),
           dim3(kThreads), 0, Rows<T>(all), Rows<T>(few), columns, few.rows(), few.cols());
  });
}

}  // namespace

void gather_rows(Run& run, Tensor y, Tensor x, std::span<const int32_t> token) {
  check_gather_rows(run, y, x, token);
  Scratch scratch(run);
  const int32_t* list = on_device(run, token);
  const int64_t bytes = bytes_of(x.dtype, x.cols());
  with_pieces(largest_piece({y, x}, {bytes}), [&](auto piece) {
    using P = decltype(piece);
    const int64_t pieces = bytes / static_cast<int64_t>(sizeof(P));
    const unsigned slices = std::min(65535u, blocks_for(pieces, kWarp));  // a grid's most
    launch(run, gather<P>, dim3(blocks_for(y.rows(), kBeside * kAtOnce), slices),
           dim3(kWarp, kBeside), 0, Rows<P>(y), Rows<P>(x), list, y.rows(), pieces);
  });
}

void sum_rows(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
              std::span<const int32_t> row) {
  sum(run, y, x, bounds, row, false, "sum_rows");
}

void sum_rows_acc(Run& run, Tensor y, Tensor x, std::span<const int32_t> bounds,
                  std::span<const int32_t> row) {
  sum(run, y, x, bounds, row, true, "sum_rows_acc");
}

void put_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  check_put_columns(run, y, x, ids);
  move<true>(run, y, x, ids);
}

void take_columns(Run& run, Tensor y, Tensor x, std::span<const int64_t> ids) {
  check_take_columns(run, y, x, ids);
  move<false>(run, x, y, ids);
}

}  // namespace moe::ops::cuda
