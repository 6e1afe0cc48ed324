// Losses of the load: a warp a token, in double.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kWarps = 8;  // tokens a block at a time
constexpr int kBlocks = 64;

struct Shares {
  ShareOf of;
  Rows<float> s, w;
  Rows<int32_t> choice, selected;
  int64_t tokens;
  int experts, k, scopes;
  const int64_t* bounds;  // [scopes+1]
  const double* slopes;   // [scopes,E]

  __device__ const double* of_token(int64_t n) const {
    return slopes + int64_t{group_of(bounds, scopes, n)} * experts;
  }
};

__device__ inline double warp_total(double x) {
  for (int by = kWarp / 2; by > 0; by /= 2) x += __shfl_xor_sync(kFull, x, by);
  return x;
}

// Of a token: sum_e slope_e p_e; `whole` becomes what p is divided by, `top` the largest score.
__device__ inline double weighed(const Shares& in, int64_t n, const double* slope, double& whole,
                                 float& top) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double sum = 0;
  whole = 1, top = 0;
  if (in.of == ShareOf::chosen_weights) {
    for (int i = lane; i < in.k; i += kWarp)
      if (in.selected.row(n)[i] != 0)
        sum += slope[in.choice.row(n)[i]] * static_cast<double>(in.w.row(n)[i]);
    return warp_total(sum);
  }
  const float* s = in.s.row(n);
  if (in.of == ShareOf::softmax) {
    top = -INFINITY;
    for (int e = lane; e < in.experts; e += kWarp) top = fmaxf(top, s[e]);
    top = warp_max(top);
  }
  double all = 0;
  for (int e = lane; e < in.experts; e += kWarp) {
    const double x = in.of == ShareOf::softmax ? exp(static_cast<double>(s[e]) - top)
                                               : static_cast<double>(s[e]);
    sum += slope[e] * x;
    all += x;
  }
  sum = warp_total(sum);
  if (in.of == ShareOf::scores) return sum;
  whole = warp_total(all) +
          (in.of == ShareOf::normalised_scores ? static_cast<double>(kRenormFloor) : 0);
  return sum / whole;
}

// sums [kBlocks]: of each block's share of the tokens, in token order.
__global__ void forward_kernel(double* sums, Shares in) {
  begin_in_turn();
  __shared__ double part[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t shares = int64_t{gridDim.x} * kWarps, own = int64_t{blockIdx.x} * kWarps + warp,
                begin = in.tokens * own / shares, end = in.tokens * (own + 1) / shares;
  double sum = 0, whole;
  float top;
  for (int64_t n = begin; n < end; ++n) sum += weighed(in, n, in.of_token(n), whole, top);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += part[w];
  sums[blockIdx.x] = sum;
}

__global__ void sum_of_blocks(float* sum, const double* sums) {
  begin_in_turn();
  double total = 0;
  for (int b = 0; b < kBlocks; ++b) total += sums[b];
  *sum = static_cast<float>(total);
}

// A warp a scope. Sums of whole numbers: the order changes nothing.
__global__ void counts_kernel(double* slopes, const int32_t* counts, const int64_t* other,
                              int experts, double whole) {
  begin_in_turn();
  const int64_t first = int64_t{blockIdx.x} * experts;
  const auto count = [&](int e) {
    return (counts == nullptr ? 0.0 : counts[first + e]) +
           (other == nullptr ? 0.0 : static_cast<double>(other[e]));
  };
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kWarp) sum += count(e);
  sum = warp_total(sum);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kWarp)
    slopes[first + e] = sum > 0 ? whole * count(e) / sum : 0;
}

__global__ void backward_kernel(Rows<float> ds, Rows<float> dw, Shares in, double coef) {
  begin_in_turn();
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t n = int64_t{blockIdx.x} * kWarps + warp;
  if (n >= in.tokens) return;
  const double* slope = in.of_token(n);
  if (in.of == ShareOf::scores) {
    for (int e = lane; e < in.experts; e += kWarp)
      ds.row(n)[e] += static_cast<float>(coef * slope[e]);
    return;
  }
  if (in.of == ShareOf::chosen_weights) {
    for (int i = lane; i < in.k; i += kWarp)
      if (in.selected.row(n)[i] != 0)
        dw.row(n)[i] += static_cast<float>(coef * slope[in.choice.row(n)[i]]);
    return;
  }
  double whole;
  float top;
  const double mean = weighed(in, n, slope, whole, top);
  const float* s = in.s.row(n);
  for (int e = lane; e < in.experts; e += kWarp) {
    const double p = in.of == ShareOf::softmax ? exp(static_cast<double>(s[e]) - top) : 1;
    ds.row(n)[e] += static_cast<float>(coef * p / whole * (slope[e] - mean));
  }
}

Shares shares_of(Run& run, const TokenShares& p, std::span<const int64_t> bounds,
                 std::span<const double> slopes) {
  const int64_t experts = static_cast<int64_t>(slopes.size() / (bounds.size() - 1));
  return {p.of,
          p.s,
          p.w,
          p.choice,
          p.selected,
          p.of == ShareOf::chosen_weights ? p.choice.rows() : p.s.rows(),
          static_cast<int>(experts),
          p.choice.empty() ? 0 : static_cast<int>(p.choice.cols()),
          static_cast<int>(bounds.size()) - 1,
          on_device(run, bounds),
          on_device(run, slopes)};
}

}  // namespace

void slopes_of_counts(Run& run, std::span<double> slopes, Tensor counts,
                      std::span<const int64_t> other, double whole) {
  const Scratch scratch(run);
  const bool here = !run.device->owns(slopes.data());
  const auto experts = counts.empty() ? other.size() : static_cast<size_t>(counts.cols());
  auto* there = here ? static_cast<double*>(run.device->scratch().alloc_bytes(slopes.size_bytes()))
                     : slopes.data();
  launch(run, counts_kernel, dim3(static_cast<unsigned>(slopes.size() / experts)), dim3(kWarp), 0,
         there, counts.empty() ? nullptr : counts.as<int32_t>(),
         other.empty() ? nullptr : on_device(run, other), static_cast<int>(experts), whole);
  if (here) run.device->download(slopes.data(), there, slopes.size_bytes());
}

void slopes_forward(Run& run, Tensor sum, const TokenShares& p, std::span<const int64_t> bounds,
                    std::span<const double> slopes) {
  Scratch scratch(run);
  auto* sums = static_cast<double*>(scratch.bytes(kBlocks * sizeof(double)));
  launch(run, forward_kernel, dim3(kBlocks), dim3(kWarps * kWarp), 0, sums,
         shares_of(run, p, bounds, slopes));
  launch(run, sum_of_blocks, dim3(1), dim3(1), 0, sum.as<float>(),
         static_cast<const double*>(sums));
}

void slopes_backward_acc(Run& run, Tensor ds, Tensor dw, const TokenShares& p,
                         std::span<const int64_t> bounds, std::span<const double> slopes,
                         double coef) {
  const Scratch scratch(run);
  const Shares in = shares_of(run, p, bounds, slopes);
  launch(run, backward_kernel, dim3(blocks_for(in.tokens, kWarps)), dim3(kWarps * kWarp), 0,
         Rows<float>(ds), Rows<float>(dw), in, coef);
}

}  // namespace moe::ops::cuda
