// Bias of a bank of experts, forward and backward. The gradient sums the rows of an expert in a
// number of strips, and then the strips.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

// Which rows belong to which expert; a bank of one has all rows and no offsets.
struct Groups {
  const int64_t* offsets = nullptr;  // [E+1]
  int count = 1;
  int64_t rows = 0;

  __device__ int of(int64_t r) const { return count == 1 ? 0 : group_of(offsets, count, r); }
  __device__ int64_t begin(int e) const { return count == 1 ? 0 : offsets[e]; }
  __device__ int64_t end(int e) const { return count == 1 ? rows : offsets[e + 1]; }
};

Groups groups_in(Run& run, std::span<const int64_t> offsets, int64_t rows) {
  const int count = static_cast<int>(offsets.size()) - 1;
  return {count == 1 ? nullptr : on_device(run, offsets), count, rows};
}

// y += weight * b
template <class T>
__global__ void bias_rows(Rows<T> y, Rows<float> bias, const float* weight, Groups groups,
                          int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(groups.rows);
  if (!own.live) return;
  const float* b = bias.row(groups.of(own.r));
  const float w = weight != nullptr ? weight[own.r] : 1.0f;
  for_steps(cols, [&](int64_t c) {
    Step<float> add;
    Step<T> v;
    add.load(b, c, cols, steps);
    v.load(y.row(own.r), c, cols, steps);
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) out[i] = fmaf(w, add[i], v[i]);
    Step<T>(out).store(y.row(own.r), c, cols, steps);
  });
}

// Rows by a list, or as they lie.
template <class T>
struct Listed {
  Rows<T> x;
  const int32_t* row;
  __device__ const T* at(int64_t r) const { return x.row(row != nullptr ? row[r] : r); }
};

// dweight += <dy, b>
template <class T>
__global__ void bias_dots(float* dweight, Listed<T> dy, Rows<float> bias, Groups groups,
                          int64_t cols, bool steps) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(groups.rows);
  const float* b = bias.row(groups.of(own.r));
  float sum = 0;
  for_steps(cols, [&](int64_t c) {
    Step<float> w;
    Step<T> v;
    w.load(b, c, cols, steps);
    v.load(dy.at(own.r), c, cols, steps);
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum += v[i] * w[i];
  });
  sum = row_sum(sum, shared);
  if (own.live && threadIdx.x == 0) dweight[own.r] += sum;
}

constexpr int kAcross = 32, kDown = 8;  // threads of a block: columns in steps, rows

// parts[e * strips + s, c] = sum of weight[r] dy[r, c] over part s of the rows of e. A thread takes
// every kDown-th row; their sums are added in order.
template <bool steps, class T>
__global__ void sum_groups(float* parts, Listed<T> dy, const float* weight, Groups groups,
                           int64_t cols) {
  begin_in_turn();
  __shared__ float sums[kDown][kAcross * kStep];
  const int e = static_cast<int>(blockIdx.y), strips = static_cast<int>(gridDim.z),
            s = static_cast<int>(blockIdx.z);
  const int64_t first = groups.begin(e), rows = groups.end(e) - first;
  const int64_t begin = first + rows * s / strips, end = first + rows * (s + 1) / strips;
  const int64_t c = (int64_t{blockIdx.x} * kAcross + threadIdx.x) * kStep;
  float sum[kStep] = {};
  if (c < cols) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kDown) {
      Step<T> v;
      v.load(dy.at(r), c, cols, steps);
      const float w = weight != nullptr ? weight[r] : 1.0f;
#pragma unroll
      for (int i = 0; i < kStep; ++i) sum[i] = fmaf(w, v[i], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kStep; ++i) sums[threadIdx.y][threadIdx.x * kStep + i] = sum[i];
  __syncthreads();
  // each thread one of the block's columns
  const int own = static_cast<int>(threadIdx.y) * kAcross + static_cast<int>(threadIdx.x);
  const int64_t column = int64_t{blockIdx.x} * kAcross * kStep + own;
  if (column >= cols) return;
  float total = 0;
  for (int t = 0; t < kDown; ++t) total += sums[t][own];
  parts[(int64_t{e} * strips + s) * cols + column] = total;
}

float* numbers_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

// Strips of each expert's rows: enough that a GPU is kept busy, the same on every device.
int64_t strips_of(int64_t rows, int64_t experts) {
  constexpr int64_t kMost = 128, kRows = 64;
  const int64_t wanted = std::min(kMost / std::min(kMost, experts), rows / kRows / experts);
  return std::max<int64_t>(1, wanted);
}

}  // namespace

void bias_forward_acc(Run& run, Tensor y, const Param& bias, Tensor weight,
                      std::span<const int64_t> offsets) {
  check_bias(run, "bias_forward_acc", bias, y, weight, offsets);
  Scratch scratch(run);
  const Groups groups = groups_in(run, offsets, y.rows());
  const RowShape shape(y.cols(), 1);
  const bool steps = rows_in_steps({y, bias.value});
  with_float(y.dtype, [&](auto of_y) {
    using T = decltype(of_y);
    launch(run, bias_rows<T>, shape.blocks(y.rows()), shape.block(), 0, Rows<T>(y),
           Rows<float>(bias.value), numbers_of(weight), groups, y.cols(), steps);
  });
}

void bias_backward(Run& run, Tensor dweight_acc, Param& bias, GatheredRows dy, Tensor weight,
                   std::span<const int64_t> offsets) {
  const char* op = "bias_backward";
  check_bias(run, op, bias, dy, weight, offsets);
  need(dweight_acc.empty() || is_vector(dweight_acc, dy.rows()), op, "dweight [R] f32 or none",
       {{"dweight", dweight_acc}, {"dy", dy.x}});
  const bool learns = !bias.grad.empty();
  need(!learns || (bias.grad.dtype == DType::f32 && bias.grad.dense() &&
                   bias.grad.shape == bias.value.shape),
       op, "a gradient f32 of the bias's shape",
       {{"grad", bias.grad}, {bias.name.c_str(), bias.value}});
  const int64_t rows = dy.rows(), cols = dy.cols(), experts = bias.value.rows();
  if (rows == 0) return;
  Scratch scratch(run);
  const Groups groups = groups_in(run, offsets, rows);
  const int32_t* list = dy.listed() ? on_device(run, dy.row) : nullptr;
  const int64_t strips = strips_of(rows, experts);
  float* parts = learns ? scratch.alloc(DType::f32, {experts * strips, cols}).as<float>() : nullptr;
  const bool steps = rows_in_steps({dy.x, bias.value});
  with_float(dy.x.dtype, [&](auto of_dy) {
    using T = decltype(of_dy);
    const Listed<T> from{Rows<T>(dy.x), list};
    const RowShape shape(cols, 1);
    if (!dweight_acc.empty())
      launch(run, bias_dots<T>, shape.blocks(rows), shape.block(), 0, dweight_acc.as<float>(), from,
             Rows<float>(bias.value), groups, cols, steps);
    if (learns)
      launch(run, steps ? sum_groups<true, T> : sum_groups<false, T>,
             dim3(blocks_for(cols, kAcross * kStep), static_cast<unsigned>(experts),
                  static_cast<unsigned>(strips)),
             dim3(kAcross, kDown), 0, parts, from, numbers_of(weight), groups, cols);
  });
  if (learns) add_parts(run, bias.grad.as<float>(), parts, experts, strips, cols, take_zero(bias));
}

}  // namespace moe::ops::cuda
