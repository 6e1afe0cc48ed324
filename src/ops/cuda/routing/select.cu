// A token's experts: a warp a token.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kWarps = 4;           // tokens a block
constexpr int kMostExperts = 1024;  // 32 a lane

// Of two candidates the one with the larger key, then the lower index. A score that is not a number
// loses against every other, so that what is chosen is defined; the loss is then no number either.
struct Best {
  float key;
  int index;
};
__device__ inline bool beats(const Best& a, const Best& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}
__device__ inline Best warp_best(Best x) {
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const Best other{__shfl_xor_sync(kFull, x.key, by), __shfl_xor_sync(kFull, x.index, by)};
    if (beats(other, x)) x = other;
  }
  return x;
}

struct Groups {
  int count, keep, best;
};

__device__ inline float number(float x) { return x == x ? x : -INFINITY; }

// keys [E] in shared memory become -inf where their group is not among the `keep` best ones, a
// group's score being the sum of its `best` largest keys, added in falling order.
__device__ void keep_groups(float* keys, float* scores, int experts, Groups groups, int lane) {
  const int width = experts / groups.count;
  for (int g = lane; g < groups.count; g += kWarp) {
    float sum = 0, before = INFINITY;
    int last = -1;
    for (int b = 0; b < groups.best; ++b) {
      Best top{-INFINITY, 1 << 30};
      for (int i = 0; i < width; ++i) {
        const Best x{keys[g * width + i], i};
        const bool left = x.key < before || (x.key == before && i > last);
        if (left && beats(x, top)) top = x;
      }
      if (top.index == 1 << 30) break;
      sum += top.key, before = top.key, last = top.index;
    }
    scores[g] = sum;
  }
  __syncwarp();
  for (int g = lane; g < groups.count; g += kWarp) {
    int better = 0;
    for (int h = 0; h < groups.count; ++h) better += beats({scores[h], h}, {scores[g], g});
    if (better >= groups.keep)
      for (int i = 0; i < width; ++i) keys[g * width + i] = NAN;
  }
  __syncwarp();
}

// choice[n] = the K experts with the largest s + bias, one after the other.
__global__ void top_experts_kernel(Rows<int32_t> choice, Rows<float> s, const float* bias,
                                   int64_t tokens, int experts, int k, Groups groups) {
  float* shared = static_cast<float*>(dynamic_shared());
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t n = int64_t{blockIdx.x} * kWarps + warp;
  if (n >= tokens) return;
  float *keys = shared + warp * (experts + groups.count), *scores = keys + experts;
  for (int e = lane; e < experts; e += kWarp)
    keys[e] = number(s.row(n)[e] + (bias == nullptr ? 0.0f : bias[e]));
  __syncwarp();
  if (groups.keep < groups.count) keep_groups(keys, scores, experts, groups, lane);
  for (int i = 0; i < k; ++i) {
    Best mine{-INFINITY, 1 << 30};
    // what is taken or out of the question is no number
    for (int e = lane; e < experts; e += kWarp)
      if (keys[e] == keys[e] && (mine.index == 1 << 30 || beats({keys[e], e}, mine)))
        mine = {keys[e], e};
    if (mine.index == 1 << 30) mine.key = -INFINITY;
    const Best best = warp_best(mine);
    __syncwarp();
    if (lane == 0) {
      choice.row(n)[i] = best.index;
      keys[best.index] = NAN;
    }
    __syncwarp();
  }
}

__global__ void fill_ones(Rows<int32_t> y, int64_t numbers, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < numbers) y.row(i / cols)[i % cols] = 1;
}

__global__ void reach_kernel(Rows<int32_t> selected, Rows<int32_t> choice, Rows<float> s,
                             const float* threshold, int64_t numbers, int64_t cols) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  const int64_t n = i / cols, k = i % cols;
  const int32_t e = choice.row(n)[k];
  selected.row(n)[k] = s.row(n)[e] >= threshold[e] ? 1 : 0;
}

__global__ void count_on_kernel(Rows<int32_t> choice, const int32_t* ids, int64_t numbers,
                                int64_t cols, int64_t experts) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < numbers)
    choice.row(i / cols)[i % cols] = static_cast<int32_t>((ids[i / cols] + i % cols) % experts);
}

constexpr int kThreads = 256;

}  // namespace

void top_experts(Run& run, Tensor choice, Tensor s, Tensor bias, const ExpertGroups* groups) {
  const auto experts = static_cast<int>(s.cols()), k = static_cast<int>(choice.cols());
  need(k <= experts && choice.rows() == s.rows() && experts <= kMostExperts, "top_experts",
       "on a GPU at most 1,024 experts, and no more choices than experts",
       {{"choice", choice}, {"s", s}});
  Groups of{1, 1, 1};
  if (groups != nullptr)
    of = {static_cast<int>(groups->groups), static_cast<int>(groups->keep),
          static_cast<int>(groups->best)};
  const size_t shared = sizeof(float) * kWarps * static_cast<size_t>(experts + of.count);
  launch(run, top_experts_kernel, dim3(blocks_for(s.rows(), kWarps)), dim3(kWarps * kWarp), shared,
         Rows<int32_t>(choice), Rows<float>(s), bias.empty() ? nullptr : bias.as<float>(), s.rows(),
         experts, k, of);
}

void select_all(Run& run, Tensor selected) {
  launch(run, fill_ones, dim3(blocks_for(selected.numel(), kThreads)), dim3(kThreads), 0,
         Rows<int32_t>(selected), selected.numel(), selected.cols());
}

void reach_threshold(Run& run, Tensor selected, Tensor choice, Tensor s, Tensor threshold) {
  launch(run, reach_kernel, dim3(blocks_for(selected.numel(), kThreads)), dim3(kThreads), 0,
         Rows<int32_t>(selected), Rows<int32_t>(choice), Rows<float>(s), threshold.as<float>(),
         selected.numel(), selected.cols());
}

void count_on_from_ids(Run& run, Tensor choice, std::span<const int32_t> ids, int64_t experts) {
  const Scratch scratch(run);
  launch(run, count_on_kernel, dim3(blocks_for(choice.numel(), kThreads)), dim3(kThreads), 0,
         Rows<int32_t>(choice), on_device(run, ids), choice.numel(), choice.cols(), experts);
}

}  // namespace moe::ops::cuda
