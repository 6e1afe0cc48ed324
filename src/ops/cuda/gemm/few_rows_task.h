// Which outputs of a product of few rows are a warp's, and what becomes of its sums.
#pragma once

#include <algorithm>

#include "ops/cuda/gemm/few_rows.h"
#include "ops/cuda/rowwise/curves.h"
#include "ops/cuda/rowwise/row.h"

namespace moe::ops::cuda {

// What a launch multiplies.
struct Few {
  struct Matrix {
    const char* w;  // [E,O,I]
    int64_t w_row, out;
    char* y;  // [R,O]
    int64_t y_row;
    bool narrow;  // y is bf16
  };
  Matrix matrix[kMostFew];
  const char* x;
  int64_t x_row;
  const int32_t* row;  // null: the rows themselves
  int64_t in;
  const int64_t* offsets;  // [E+1]; null: one matrix has all rows
  int count, groups, rows;
  bool add, settled;
  char* hidden;  // [R,O]; null: the products are all that is wanted
  int64_t hidden_row;
  const float* weight;
  Act act;

  // Whether a warp has the same outputs of two matrices, as gate and up have to meet.
  __host__ __device__ bool paired() const { return hidden != nullptr && count == 2; }
  // Warps that have `outs` outputs each.
  __host__ __device__ int64_t tasks(int outs) const {
    if (paired()) return (2 * matrix[0].out + outs - 1) / outs;
    int64_t sum = 0;
    for (int m = 0; m < count; ++m) sum += (matrix[m].out + outs - 1) / outs;
    return sum;
  }
};

#if defined(__CUDACC__) || defined(MOE_CUDA_ON_CPU)

// Some outputs of an expert: `first` to `first + own` of matrix `m`; where two matrices are paired,
// of both, the first half of kOuts being gate's and the other up's.
template <int kOuts>
struct FewTask {
  const char* row[kOuts];  // of weights; those beyond the last are the last
  int64_t first = 0;
  int m = 0, own = 0;  // of a matrix

  // None where `task` is beyond few.tasks(kOuts).
  __device__ FewTask(const Few& few, int64_t task, int64_t expert) {
    const int each = few.paired() ? kOuts / 2 : kOuts;
    while (m < few.count && !few.paired()) {
      const int64_t here = (few.matrix[m].out + kOuts - 1) / kOuts;
      if (task < here) break;
      task -= here;
      ++m;
    }
    first = task * each;
    if (m == few.count || first >= few.matrix[m].out) return;
    own = static_cast<int>(std::min(int64_t{each}, few.matrix[m].out - first));
    go_to(few, expert);
  }
  __device__ void go_to(const Few& few, int64_t expert) {
    if (own == 0) return;
    const int each = few.paired() ? kOuts / 2 : kOuts;
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
      const Few::Matrix& matrix = few.matrix[m + o / each];
      row[o] =
          matrix.w + (expert * matrix.out + first + std::min(o % each, own - 1)) * matrix.w_row;
    }
  }
};

// The expert of row r, which all lanes look up at once; -1: a bank may have fewer rows than was
// reserved for.
__device__ inline int expert_of(const Few& few, int64_t r) {
  if (few.offsets == nullptr) return 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int before = 0;
  for (int e = 0; e < few.groups; e += kWarp) {
    const bool ended = e + lane < few.groups && few.offsets[e + lane + 1] <= r;
    before += __popc(__ballot_sync(kFull, ended));
  }
  return before < few.groups ? before : -1;
}

// Of the rows that are multiplied, from r on, the i-th; rows beyond the last are the last.
__device__ inline int64_t row_of(const Few& few, int64_t r, int i) {
  return std::min(r + i, int64_t{few.rows} - 1);
}
__device__ inline const char* x_of(const Few& few, int64_t r) {
  return few.x + (few.row == nullptr ? r : few.row[r]) * few.x_row;
}

// y = or += the product, as it is afterwards.
__device__ inline float put_product(const Few& few, const Few::Matrix& matrix, int64_t r, int64_t o,
                                    float sum) {
  char* row = matrix.y + r * matrix.y_row;
  if (matrix.narrow) {
    bf16* y = reinterpret_cast<bf16*>(row) + o;
    store(y, few.add ? load(y) + sum : sum);
    return load(y);
  }
  float* y = reinterpret_cast<float*>(row) + o;
  return *y = few.add ? *y + sum : sum;
}

// What the lanes have summed of a warp's outputs, kLanes of them of some, for all lanes.
template <int kLanes, int kOuts, int kOwn, int kRows>
__device__ void add_lanes(float (&total)[kOuts][kRows], float (&sum)[kOwn][kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int o = 0; o < kOwn; ++o)
#pragma unroll
      for (int by = kLanes / 2; by > 0; by /= 2) sum[o][i] += __shfl_xor_sync(kFull, sum[o][i], by);
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
      total[o][i] = kOwn == kOuts ? sum[o % kOwn][i]
                                  : __shfl_sync(kFull, sum[o % kOwn][i], o / kOwn * kLanes);
  }
}

// Lane 0 writes the sums of the rows from `from` on.
template <int kRows, int kOuts>
__device__ void finish(const Few& few, const FewTask<kOuts>& task, int64_t from,
                       float (&sum)[kOuts][kRows]) {
  if (threadIdx.x % kWarp != 0) return;
  const int each = few.paired() ? kOuts / 2 : kOuts;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (from + i >= few.rows) break;
    const int64_t r = from + i;
#pragma unroll
    for (int o = 0; o < kOuts; ++o)
      if (o % each < task.own)
        sum[o][i] =
            put_product(few, few.matrix[task.m + o / each], r, task.first + o % each, sum[o][i]);
    if (few.hidden == nullptr) continue;
    const float weight = few.weight == nullptr ? 1.0f : few.weight[r];
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
      if (o >= task.own) break;
      const float up = few.paired() ? sum[(o + kOuts / 2) % kOuts][i] : sum[o][i];
      const float h = weight * hidden_of(few.act, few.paired(), sum[o][i], up);
      char* row = few.hidden + r * few.hidden_row;
      if (few.matrix[0].narrow) store(reinterpret_cast<bf16*>(row) + task.first + o, h);
      else store(reinterpret_cast<float*>(row) + task.first + o, h);
    }
  }
}

#endif

}  // namespace moe::ops::cuda
