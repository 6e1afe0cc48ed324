// A token's experts: a warp a token.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kWarps = 4;           // tokens a block
constexpr int kMostExperts = 1024;  // 32 a lane

// Scores as whole numbers that rise with them. A score that is not a number loses against every
// other, so that what is chosen is defined; the loss is then no number either. Experts of groups
// that are not kept come after all others, and what is taken is out of the question.
constexpr unsigned kTaken = 0, kOut = 1;
__device__ inline unsigned key_of(float x) {
  const unsigned bits = __float_as_uint((x == x ? x : -INFINITY) + 0.0f);  // -0 becomes 0: they tie
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline float score_of(unsigned key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// Of two candidates the one with the larger key, then the lower index.
struct Best {
  unsigned key;
  int index;
};
__device__ inline bool beats(const Best& a, const Best& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}
__device__ inline Best warp_best(const Best& x) {
  const unsigned key = __reduce_max_sync(kFull, x.key);
  return {key, __reduce_min_sync(kFull, x.key == key ? x.index : 1 << 30)};
}

struct Groups {
  int count, keep, best;
};

// keys [E] in shared memory become kOut where their group is not among the `keep` best ones, a
// group's score being the sum of its `best` largest, added in falling order. scores, out [groups]
__device__ inline void keep_groups(unsigned* keys, unsigned* scores, unsigned* out, int experts,
                                   const Groups& groups, int lane) {
  const int width = experts / groups.count;
  for (int g = 0; g < groups.count; ++g) {
    float sum = 0;
    Best last{0xFFFFFFFFu, -1};
    for (int b = 0; b < groups.best; ++b) {
      Best top{kTaken, 1 << 30};
      for (int i = lane; i < width; i += kWarp) {
        const Best x{keys[g * width + i], i};
        if (beats(last, x) && beats(x, top)) top = x;
      }
      last = warp_best(top);
      if (last.key == kTaken) break;
      sum += score_of(last.key);
    }
    if (lane == 0) scores[g] = key_of(sum);
  }
  __syncwarp();
  for (int g = lane; g < groups.count; g += kWarp) {
    int better = 0;
    for (int h = 0; h < groups.count; ++h) better += beats({scores[h], h}, {scores[g], g});
    out[g] = better >= groups.keep;
  }
  __syncwarp();
  for (int e = lane; e < experts; e += kWarp)
    if (out[e / width] != 0) keys[e] = kOut;
}

template <int kKeys>
__device__ inline Best best_of(const unsigned* keys, int lane) {
  Best best{keys[0], lane};
#pragma unroll
  for (int j = 1; j < kKeys; ++j)
    if (keys[j] > best.key) best = {keys[j], lane + j * kWarp};
  return best;
}

// choice[n] = the K experts with the largest s + bias, one after the other. A lane keeps the keys
// of every 32nd expert, and which of them is its best until that one is taken.
template <int kKeys>
__global__ void __launch_bounds__(kWarps* kWarp)
    top_experts_kernel(Rows<int32_t> choice, Rows<float> s, const float* bias, int64_t tokens,
                       int experts, int k, Groups groups) {
  begin_in_turn();
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t n = int64_t{blockIdx.x} * kWarps + warp;
  if (n >= tokens) return;
  unsigned keys[kKeys];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const int e = lane + j * kWarp;
    keys[j] = e < experts ? key_of(s.row(n)[e] + (bias == nullptr ? 0.0f : bias[e])) : kTaken;
  }
  if (groups.keep < groups.count) {
    unsigned* all = static_cast<unsigned*>(dynamic_shared()) + warp * (experts + 2 * groups.count);
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
      if (lane + j * kWarp < experts) all[lane + j * kWarp] = keys[j];
    __syncwarp();
    keep_groups(all, all + experts, all + experts + groups.count, experts, groups, lane);
#pragma unroll
    for (int j = 0; j < kKeys; ++j)
      if (lane + j * kWarp < experts) keys[j] = all[lane + j * kWarp];
  }
  Best mine = best_of<kKeys>(keys, lane);
  int chosen = 0;  // the lane's, of 32 choices that are written together
  for (int i = 0; i < k; ++i) {
    const int e = warp_best(mine).index;
    if (lane == i % kWarp) chosen = e;
    if ((i % kWarp == kWarp - 1 || i == k - 1) && lane <= i % kWarp)
      choice.row(n)[i - i % kWarp + lane] = chosen;
    if (e % kWarp == lane) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j)
        if (j == e / kWarp) keys[j] = kTaken;
      mine = best_of<kKeys>(keys, lane);
    }
  }
}

__global__ void fill_ones(Rows<int32_t> y, int64_t numbers, int64_t cols) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < numbers) y.row(i / cols)[i % cols] = 1;
}

__global__ void reach_kernel(Rows<int32_t> selected, Rows<int32_t> choice, Rows<float> s,
                             const float* threshold, int64_t numbers, int64_t cols) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= numbers) return;
  const int64_t n = i / cols, k = i % cols;
  const int32_t e = choice.row(n)[k];
  selected.row(n)[k] = s.row(n)[e] >= threshold[e] ? 1 : 0;
}

__global__ void count_on_kernel(Rows<int32_t> choice, const int32_t* ids, int64_t numbers,
                                int64_t cols, int64_t experts) {
  begin_in_turn();
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
  const size_t shared =
      of.keep < of.count ? sizeof(unsigned) * kWarps * static_cast<size_t>(experts + 2 * of.count)
                         : 0;
  const auto kernel = experts <= kWarp        ? top_experts_kernel<1>
                      : experts <= 2 * kWarp  ? top_experts_kernel<2>
                      : experts <= 4 * kWarp  ? top_experts_kernel<4>
                      : experts <= 8 * kWarp  ? top_experts_kernel<8>
                      : experts <= 16 * kWarp ? top_experts_kernel<16>
                                              : top_experts_kernel<32>;
  launch(run, kernel, dim3(blocks_for(s.rows(), kWarps)), dim3(kWarps * kWarp), shared,
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
