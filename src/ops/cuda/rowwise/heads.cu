// Heads that have some of their numbers in common: joining copies them into each, splitting sums
// over all. Each is the other's adjoint.
#include "ops/cuda/rowwise/pieces.h"
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

// y[n,h] = (shared[n], own[n,h]), widths in pieces P
template <class P>
__global__ void join(Rows<P> y, Rows<P> shared, Rows<P> own, int64_t rows, int heads, int first,
                     int rest) {
  begin_in_turn();
  const OwnRow at(rows);
  if (!at.live) return;
  const int width = first + rest;
  P* to = y.row(at.r);
  for (int i = static_cast<int>(threadIdx.x); i < heads * width;
       i += static_cast<int>(blockDim.x)) {
    const int h = i / width, c = i % width;
    to[i] = c < first ? shared.row(at.r)[c] : own.row(at.r)[h * rest + c - first];
  }
}

// own[n,h] = what is not shared of y[n,h]
template <class P>
__global__ void take_own(Rows<P> own, Rows<P> y, int64_t rows, int heads, int first, int rest) {
  begin_in_turn();
  const OwnRow at(rows);
  if (!at.live) return;
  P* to = own.row(at.r);
  for (int i = static_cast<int>(threadIdx.x); i < heads * rest; i += static_cast<int>(blockDim.x))
    to[i] = y.row(at.r)[i / rest * (first + rest) + first + i % rest];
}

// y[n,c] = sum_h x[n, h * width + c] in the order of heads
template <class T>
__global__ void sum_heads(Rows<T> y, Rows<T> x, int64_t rows, int64_t cols, int heads,
                          int64_t width, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  for_steps(cols, [&](int64_t c) {
    float sum[kStep] = {};
#pragma unroll 4
    for (int h = 0; h < heads; ++h) {
      Step<T> v;
      v.load(x.row(own.r) + h * width, c, cols, steps);
#pragma unroll
      for (int k = 0; k < kStep; ++k) sum[k] += v[k];
    }
    Step<T>(sum).store(y.row(own.r), c, cols, steps);
  });
}

struct Widths {
  int heads;
  int64_t first, rest;  // bytes
};

Widths widths_of(const char* op, const Tensor& all, const Tensor& shared, const Tensor& own,
                 int64_t heads) {
  check_heads(op, all, shared, own, heads);
  return {static_cast<int>(heads), bytes_of(all.dtype, shared.cols()),
          bytes_of(all.dtype, own.cols() / heads)};
}

}  // namespace

void join_heads(Run& run, Tensor y, Tensor shared, Tensor own, int64_t heads) {
  const Widths w = widths_of("join_heads", y, shared, own, heads);
  with_pieces(largest_piece({y, shared, own}, {w.first, w.rest}), [&](auto piece) {
    using P = decltype(piece);
    const int first = static_cast<int>(w.first / static_cast<int64_t>(sizeof(P))),
              rest = static_cast<int>(w.rest / static_cast<int64_t>(sizeof(P)));
    const RowShape shape(int64_t{w.heads} * (first + rest) * kStep, 2);
    launch(run, join<P>, shape.blocks(y.rows()), shape.block(), 0, Rows<P>(y), Rows<P>(shared),
           Rows<P>(own), y.rows(), w.heads, first, rest);
  });
}

void split_heads(Run& run, Tensor dshared, Tensor down, Tensor dy, int64_t heads) {
  const Widths w = widths_of("split_heads", dy, dshared, down, heads);
  with_pieces(largest_piece({dy, down}, {w.first, w.rest}), [&](auto piece) {
    using P = decltype(piece);
    const int first = static_cast<int>(w.first / static_cast<int64_t>(sizeof(P))),
              rest = static_cast<int>(w.rest / static_cast<int64_t>(sizeof(P)));
    const RowShape shape(int64_t{w.heads} * rest * kStep, 2);
    launch(run, take_own<P>, shape.blocks(dy.rows()), shape.block(), 0, Rows<P>(down), Rows<P>(dy),
           dy.rows(), w.heads, first, rest);
  });
  const int64_t width = dy.cols() / heads;
  const bool steps = rows_in_steps({dshared, dy}) && width % kStep == 0;
  const RowShape shape(dshared.cols(), 1);
  with_float(dy.dtype, [&](auto of_t) {
    using T = decltype(of_t);
    launch(run, sum_heads<T>, shape.blocks(dy.rows()), shape.block(), 0, Rows<T>(dshared),
           Rows<T>(dy), dy.rows(), dshared.cols(), w.heads, width, steps);
  });
}

}  // namespace moe::ops::cuda
