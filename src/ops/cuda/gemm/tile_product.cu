// 64 x 64 numbers of the product a block, 16 of the sum at a time.
#include "ops/cuda/gemm/tile_product.h"

namespace moe::ops::cuda {
namespace {

constexpr int kTile = 64, kDeep = 16, kThreads = 256, kOwn = 4;  // a thread's own: kOwn x kOwn

// What a block works on: rows [begin, end) of group `e`.
struct Task {
  int64_t begin, end;
  int e;
};

// The t-th tile of rows, tiles being counted group by group; e = -1: there is none.
__device__ inline Task row_tile(const int64_t* offsets, int groups, int64_t rows, int64_t t) {
  if (offsets == nullptr) return {t * kTile, rows, 0};
  for (int e = 0; e < groups; ++e) {
    const int64_t begin = offsets[e], end = offsets[e + 1],
                  tiles = (end - begin + kTile - 1) / kTile;
    if (t < tiles) return {begin + t * kTile, end, e};
    t -= tiles;
  }
  return {0, 0, -1};
}

// One step of the sums: own[i][j] += a[k][4 y + i] b[k][4 x + j].
__device__ inline void multiply_step(float (&own)[kOwn][kOwn], const float (*a)[kTile + 1],
                                     const float (*b)[kTile + 1], int y, int x) {
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
    float p[kOwn], q[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) p[i] = a[k][y * kOwn + i], q[i] = b[k][x * kOwn + i];
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) own[i][j] = fmaf(p[i], q[j], own[i][j]);
  }
}

template <class C>
__device__ inline void put(C* at, float x, bool add) {
  store(at, add ? load(at) + x : x);
}

// forward and dx: `deep` numbers of a row of `a` are summed over; b [E, b_rows, ld] is read along
// its rows (forward) or down its columns.
template <bool along, class C, class A, class B>
__global__ void rows_kernel(Rows<C> c, Rows<A> a, const B* b, int64_t b_size, int64_t b_ld,
                            int64_t rows, int64_t cols, int64_t deep, const int64_t* offsets,
                            int groups, bool add) {
  begin_in_turn();
  __shared__ float left[kDeep][kTile + 1], right[kDeep][kTile + 1];
  const Task task = row_tile(offsets, groups, rows, blockIdx.y);
  if (task.e < 0) return;
  const B* w = b + task.e * b_size;
  const int64_t first = int64_t{blockIdx.x} * kTile;
  const int thread = static_cast<int>(threadIdx.x), y = thread / 16, x = thread % 16;
  float own[kOwn][kOwn] = {};
  for (int64_t k0 = 0; k0 < deep; k0 += kDeep) {
    for (int i = thread; i < kTile * kDeep; i += kThreads) {
      const int64_t r = task.begin + i / kDeep, k = k0 + i % kDeep;
      left[i % kDeep][i / kDeep] = r < task.end && k < deep ? load(a.row(r) + k) : 0;
      const int j = along ? i / kDeep : i % kTile, l = along ? i % kDeep : i / kTile;
      const int64_t col = first + j, kb = k0 + l;
      right[l][j] =
          col < cols && kb < deep ? load(w + (along ? col * b_ld + kb : kb * b_ld + col)) : 0;
    }
    __syncthreads();
    multiply_step(own, left, right, y, x);
    __syncthreads();
  }
  for (int i = 0; i < kOwn; ++i)
    for (int j = 0; j < kOwn; ++j) {
      const int64_t r = task.begin + y * kOwn + i, col = first + x * kOwn + j;
      if (r < task.end && col < cols) put(c.row(r) + col, own[i][j], add);
    }
}

template <class C, class A, class B>
__global__ void dw_kernel(C* c, Rows<A> a, Rows<B> b, int64_t rows, int64_t out, int64_t in,
                          const int64_t* offsets, bool add) {
  begin_in_turn();
  __shared__ float left[kDeep][kTile + 1], right[kDeep][kTile + 1];
  const int64_t e = blockIdx.z, begin = offsets == nullptr ? 0 : offsets[e],
                end = offsets == nullptr ? rows : offsets[e + 1];
  const int64_t first_out = int64_t{blockIdx.y} * kTile, first_in = int64_t{blockIdx.x} * kTile;
  const int thread = static_cast<int>(threadIdx.x), y = thread / 16, x = thread % 16;
  float own[kOwn][kOwn] = {};
  for (int64_t r0 = begin; r0 < end; r0 += kDeep) {
    for (int i = thread; i < kTile * kDeep; i += kThreads) {
      const int64_t r = r0 + i / kTile, o = first_out + i % kTile, in_col = first_in + i % kTile;
      left[i / kTile][i % kTile] = r < end && o < out ? load(a.row(r) + o) : 0;
      right[i / kTile][i % kTile] = r < end && in_col < in ? load(b.row(r) + in_col) : 0;
    }
    __syncthreads();
    multiply_step(own, left, right, y, x);
    __syncthreads();
  }
  for (int i = 0; i < kOwn; ++i)
    for (int j = 0; j < kOwn; ++j) {
      const int64_t o = first_out + y * kOwn + i, in_col = first_in + x * kOwn + j;
      if (o < out && in_col < in) put(c + (e * out + o) * in + in_col, own[i][j], add);
    }
}

template <class C, class A, class B>
void run_form(Run& run, Form form, Tensor c, Tensor a, Tensor b, const Groups& groups, bool add) {
  const auto tiles = [](int64_t n) { return blocks_for(n, kTile); };
  if (form == Form::dw) {
    const int64_t out = a.cols(), in = b.cols();
    return launch(run, dw_kernel<C, A, B>,
                  dim3(tiles(in), tiles(out), static_cast<unsigned>(groups.count)), dim3(kThreads),
                  0, static_cast<C*>(c.data), Rows<A>(a), Rows<B>(b), a.rows(), out, in,
                  groups.offsets, add);
  }
  const bool along = form == Form::forward;
  // With groups some tiles may be left over.
  const unsigned row_tiles =
      tiles(a.rows()) + (groups.offsets == nullptr ? 0 : static_cast<unsigned>(groups.count));
  launch(run, along ? rows_kernel<true, C, A, B> : rows_kernel<false, C, A, B>,
         dim3(tiles(c.cols()), row_tiles), dim3(kThreads), 0, Rows<C>(c), Rows<A>(a),
         static_cast<const B*>(b.data), b.rows() / groups.count * b.cols(), Rows<B>(b).stride,
         a.rows(), c.cols(), a.cols(), groups.offsets, static_cast<int>(groups.count), add);
}

template <class Y>
__global__ void spread_kernel(Y* y, int64_t numbers) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u;
    store(y + i, static_cast<float>(mixed >> 8) / 8388608.0f - 1.0f);
  }
}

}  // namespace

void spread_numbers(Run& run, Tensor y) {
  with_float(y.dtype, [&](auto of_y) {
    using Y = decltype(of_y);
    launch(run, spread_kernel<Y>, dim3(walking_blocks(run, y.numel(), kThreads)), dim3(kThreads), 0,
           static_cast<Y*>(y.data), y.numel());
  });
}

void tile_product(Run& run, Form form, Tensor c, Tensor a, Tensor b, const Groups& groups,
                  bool add) {
  with_float(c.dtype, [&](auto of_c) {
    with_float(a.dtype, [&](auto of_a) {
      with_float(b.dtype, [&](auto of_b) {
        run_form<decltype(of_c), decltype(of_a), decltype(of_b)>(run, form, c, a, b, groups, add);
      });
    });
  });
}

}  // namespace moe::ops::cuda
