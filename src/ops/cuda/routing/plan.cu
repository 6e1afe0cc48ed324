// The plan of rows. A block has kTokens tokens; what they count of each expert, summed over the
// blocks before, tells where its rows begin. Everything is whole numbers in token order: the plan
// is that of the CPU.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kTokens = 64;       // of a block
constexpr int kMostPairs = 4096;  // of a block, in shared memory
constexpr int kThreads = 256;

struct PlanInput {
  Rows<int32_t> choice, kept;
  Rows<float> w;
  int64_t tokens;
  int k, experts, tokens_each;

  // Whether pair `at` of the block's is a row, and of which expert.
  __device__ bool stays(int64_t n, int i) const { return kept.empty() || kept.row(n)[i] != 0; }
};

// counts [blocks, E+1]: rows of each expert; last, all of them.
__global__ void count_kernel(int32_t* counts, PlanInput in) {
  int32_t* mine = counts + int64_t{blockIdx.x} * (in.experts + 1);
  for (int e = static_cast<int>(threadIdx.x); e <= in.experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * in.tokens_each;
  const int pairs = in.tokens_each * in.k;
  for (int p = static_cast<int>(threadIdx.x); p < pairs; p += kThreads) {
    const int64_t n = first + p / in.k;
    if (n >= in.tokens || !in.stays(n, p % in.k)) continue;
    atomicAdd(&mine[in.choice.row(n)[p % in.k]], 1);
    atomicAdd(&mine[in.experts], 1);
  }
}

// offsets [E+1] of all rows, and counts become where each block's rows begin. One block.
__global__ void scan_kernel(int64_t* offsets, int32_t* bounds, int32_t* counts, int blocks,
                            int64_t tokens, int experts) {
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += static_cast<int>(blockDim.x)) {
    int32_t sum = 0;
    for (int b = 0; b < blocks; ++b) {
      const int32_t count = counts[int64_t{b} * (experts + 1) + e];
      counts[int64_t{b} * (experts + 1) + e] = sum;
      sum += count;
    }
    if (e < experts) offsets[e + 1] = sum;
    else bounds[tokens] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  offsets[0] = 0;
  for (int e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
}

struct PlanOutput {
  int32_t *token, *bounds, *row, *pair;
  float* weight;
  const int64_t* offsets;
};

// A thread an expert goes through the block's pairs in order.
__global__ void place_kernel(PlanOutput out, const int32_t* counts, PlanInput in) {
  __shared__ int32_t expert[kMostPairs], place[kMostPairs];
  const int64_t first = int64_t{blockIdx.x} * in.tokens_each;
  const int pairs = in.tokens_each * in.k;
  const int32_t* begin = counts + int64_t{blockIdx.x} * (in.experts + 1);
  for (int p = static_cast<int>(threadIdx.x); p < pairs; p += kThreads) {
    const int64_t n = first + p / in.k;
    expert[p] = n < in.tokens && in.stays(n, p % in.k) ? in.choice.row(n)[p % in.k] : -1;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t at = begin[in.experts];
    for (int p = 0; p < pairs; ++p) {
      const int64_t n = first + p / in.k;
      if (p % in.k == 0 && n < in.tokens) out.bounds[n] = at;
      place[p] = at;
      at += expert[p] >= 0;
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < in.experts; e += kThreads) {
    int64_t r = out.offsets[e] + begin[e];
    for (int p = 0; p < pairs; ++p) {
      if (expert[p] != e) continue;
      const int64_t n = first + p / in.k;
      out.row[place[p]] = static_cast<int32_t>(r);
      out.token[r] = static_cast<int32_t>(n);
      out.pair[r] = static_cast<int32_t>(n * in.k + p % in.k);
      out.weight[r] = in.w.row(n)[p % in.k];
      ++r;
    }
  }
}

__global__ void spread_kernel(Rows<float> dw, const float* dweight, const int32_t* bounds,
                              const int32_t* row, const int32_t* pair, int64_t tokens, int k) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= tokens) return;
  for (int i = 0; i < k; ++i) dw.row(n)[i] = 0;
  for (int32_t i = bounds[n]; i < bounds[n + 1]; ++i) {
    const int32_t r = row[i];
    dw.row(n)[pair[r] - n * k] = dweight[r];
  }
}

__global__ void pairs_kernel(int32_t* counts, Rows<int32_t> choice, Rows<int32_t> selected,
                             int64_t tokens, int columns, int experts) {
  int32_t* mine = static_cast<int32_t*>(dynamic_shared());
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  const int64_t step = int64_t{gridDim.x} * kThreads, all = tokens * columns;
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < all; p += step) {
    const int64_t n = p / columns, i = p % columns;
    if (selected.empty() || selected.row(n)[i] != 0) atomicAdd(&mine[choice.row(n)[i]], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    if (mine[e] != 0) atomicAdd(&counts[e], mine[e]);
}

}  // namespace

// Where every pair is a row (`kept` absent) nobody waits for the device; else how many there are
// has to be known.
RoutingPlan make_plan(Run& run, Tensor choice, Tensor kept, Tensor w, int64_t experts) {
  const int64_t tokens = choice.rows(), k = choice.cols();
  need(k <= kMostPairs, "make_plan", "on a GPU at most 4,096 choices a token",
       {{"choice", choice}});
  const auto each = static_cast<int>(std::min<int64_t>(kTokens, kMostPairs / k));
  const PlanInput in{choice, kept, w, tokens, static_cast<int>(k), static_cast<int>(experts), each};
  // For a run whose memory is the CPU's the lists are brought there afterwards (Placement::result).
  Arena& memory = run.saved.device() != nullptr ? run.saved : run.device->scratch();
  const auto list = [&]<class T>(T, int64_t n) {
    return static_cast<T*>(memory.alloc_bytes(static_cast<size_t>(n) * sizeof(T)));
  };
  int64_t* offsets = list(int64_t{}, experts + 1);
  int32_t* bounds = list(int32_t{}, tokens + 1);
  Scratch scratch(run);
  const unsigned blocks = blocks_for(tokens, each);
  const Tensor counts = scratch.alloc(DType::i32, {std::max<int64_t>(1, blocks), experts + 1});
  launch(run, count_kernel, dim3(blocks), dim3(kThreads), 0, counts.as<int32_t>(), in);
  launch(run, scan_kernel, dim3(1), dim3(kThreads), 0, offsets, bounds, counts.as<int32_t>(),
         static_cast<int>(blocks), tokens, static_cast<int>(experts));
  int64_t rows = tokens * k;
  if (!kept.empty()) run.device->download(&rows, offsets + experts, sizeof(rows));
  PlanOutput out{list(int32_t{}, rows), bounds,  list(int32_t{}, rows),
                 list(int32_t{}, rows), nullptr, offsets};
  const Tensor weight = memory.alloc(DType::f32, {rows});
  out.weight = weight.as<float>();
  launch(run, place_kernel, dim3(blocks), dim3(kThreads), 0, out,
         static_cast<const int32_t*>(counts.as<int32_t>()), in);
  const auto size = static_cast<size_t>(rows);
  return {{out.token, size},
          {offsets, static_cast<size_t>(experts) + 1},
          {bounds, static_cast<size_t>(tokens) + 1},
          {out.row, size},
          {out.pair, size},
          weight};
}

void spread_rows(Run& run, Tensor dw, Tensor dweight, const RoutingPlan& plan) {
  const Scratch scratch(run);
  launch(run, spread_kernel, dim3(blocks_for(dw.rows(), kThreads)), dim3(kThreads), 0,
         Rows<float>(dw), static_cast<const float*>(dweight.as<float>()),
         on_device(run, plan.bounds), on_device(run, plan.row), on_device(run, plan.pair),
         dw.rows(), static_cast<int>(dw.cols()));
}

void count_pairs(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  const auto experts = static_cast<int>(counts.numel());
  zero(run, counts);
  launch(run, pairs_kernel, dim3(walking_blocks(run, choice.rows() * columns, 4 * kThreads)),
         dim3(kThreads), sizeof(int32_t) * static_cast<size_t>(experts), counts.as<int32_t>(),
         Rows<int32_t>(choice), Rows<int32_t>(selected), choice.rows(), static_cast<int>(columns),
         experts);
}

}  // namespace moe::ops::cuda
