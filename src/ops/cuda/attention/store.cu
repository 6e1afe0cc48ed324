// Keys and values to their places in a cache, rounded to its dtype; attend.h's kernels read them.
#include "ops/cpu/attention/store.h"

#include "ops/cuda/half.h"
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kStoreThreads = 256;
constexpr int kSide = 32;   // of a square of numbers that is turned at once
constexpr int kEight = 32;  // numbers of a block of q8_0
constexpr int kEightBytes = 34;

// cache[row[n], c] = x[n, c]
template <class To, class From>
__global__ void store_rows(char* cache, int64_t row_bytes, Rows<From> x, const int64_t* row,
                           int cols) {
  begin_in_turn();
  To* to = reinterpret_cast<To*>(cache + row[blockIdx.x] * row_bytes);
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c < cols) store(to + c, load(x.row(blockIdx.x) + c));
}

// cache[row[n] / 64, c, row[n] % 64] = x[n, c]. A block turns a square, so that it reads along c
// and writes along n; threads (32, 8).
template <class To, class From>
__global__ void store_turned(To* cache, Rows<From> x, const int64_t* row, int64_t rows, int cols) {
  begin_in_turn();
  __shared__ float square[kSide][kSide + 1];
  const int i = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.y),
            first_col = static_cast<int>(blockIdx.y) * kSide;
  const int64_t first = int64_t{blockIdx.x} * kSide, n = first + i;
  for (int j = static_cast<int>(threadIdx.y); j < kSide && first + j < rows; j += step)
    if (first_col + i < cols) square[j][i] = load(x.row(first + j) + first_col + i);
  __syncthreads();
  if (n >= rows) return;
  To* to = cache + row[n] / kKeyBlock * cols * kKeyBlock + row[n] % kKeyBlock;
  for (int j = static_cast<int>(threadIdx.y); j < kSide && first_col + j < cols; j += step)
    store(to + int64_t{first_col + j} * kKeyBlock, square[i][j]);
}

// As quantise() (tensor/quant.h) makes blocks of q8_0: d = max |x| / 127, numbers round(x / d).
// A warp makes a block.
template <class From>
__global__ void store_eights(char* cache, int64_t row_bytes, Rows<From> x, const int64_t* row,
                             int blocks) {
  begin_in_turn();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            block = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / kWarp;
  if (block >= blocks) return;
  const float number = load(x.row(blockIdx.x) + block * kEight + lane);
  const float d = warp_max(fabsf(number)) / 127, ratio = 1 / d,
              inverse = fabsf(ratio) < INFINITY ? ratio : 0.0f;
  const float scaled = number * inverse, above = scaled > -127.0f ? scaled : -127.0f,
              held = above < 127.0f ? above : 127.0f;
  char* to = cache + row[blockIdx.x] * row_bytes + int64_t{block} * kEightBytes;
  if (lane == 0) store(reinterpret_cast<f16*>(to), d);
  to[2 + lane] = static_cast<char>(static_cast<int>(held + copysignf(0.49999997f, held)));
}

template <class To, class From>
void store_as(Run& run, const Tensor& cache, const Tensor& x, const int64_t* row) {
  const int cols = static_cast<int>(x.cols());
  if (cache.rank == 3)
    return launch(run, store_turned<To, From>,
                  dim3(blocks_for(x.rows(), kSide), blocks_for(cols, kSide)), dim3(kSide, 8), 0,
                  static_cast<To*>(cache.data), Rows<From>(x), row, x.rows(), cols);
  launch(run, store_rows<To, From>,
         dim3(static_cast<unsigned>(x.rows()), blocks_for(cols, kStoreThreads)),
         dim3(kStoreThreads), 0, static_cast<char*>(cache.data), cache.row_bytes, Rows<From>(x),
         row, cols);
}

}  // namespace

void store_keys(Run& run, Tensor cache, Tensor x, std::span<const int64_t> row) {
  if (row.empty()) return;
  const bool listed_here = !run.device->owns(row.data());
  check_stored(cache, x, row, listed_here, false);
  const ArenaScope scope(run.device->scratch());
  const int64_t* places = on_device(run, row);
  with_float(x.dtype, [&](auto of_x) {
    using From = decltype(of_x);
    if (cache.dtype == DType::q8_0) {
      const int64_t blocks = x.cols() / kEight;
      launch(run, store_eights<From>,
             dim3(static_cast<unsigned>(x.rows()), blocks_for(blocks * kWarp, kStoreThreads)),
             dim3(kStoreThreads), 0, static_cast<char*>(cache.data), cache.row_bytes, Rows<From>(x),
             places, static_cast<int>(blocks));
    } else if (cache.dtype == DType::f16) {
      store_as<f16, From>(run, cache, x, places);
    } else if (cache.dtype == DType::bf16) {
      store_as<bf16, From>(run, cache, x, places);
    } else {
      store_as<float, From>(run, cache, x, places);
    }
  });
}

}  // namespace moe::ops::cuda
