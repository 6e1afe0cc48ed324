// Weights of chosen experts and their adjoints: mostly a thread a token, its slots in choice order.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 128;

// A token's slots.
struct Pairs {
  Rows<int32_t> choice, selected;
  int64_t tokens;
  int k;

  Pairs(const Tensor& of_choice, const Tensor& of_selected)
      : choice(of_choice),
        selected(of_selected),
        tokens(of_selected.rows()),
        k(static_cast<int>(of_selected.cols())) {}
};

template <class... P, class... A>
void each_token_of(Run& run, int64_t tokens, void (*kernel)(P...), A... all) {
  launch(run, kernel, dim3(blocks_for(tokens, kThreads)), dim3(kThreads), 0, all...);
}
__device__ inline int64_t token_of_thread() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// A warp a token, so that a token alone does not wait for one slot after another; the sum is taken
// in the order of the slots.
__global__ void scores_forward(Rows<float> w, Rows<float> s, Pairs p, bool renormalise,
                               float scale) {
  begin_in_turn();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t n = token_of_thread() / kWarp;
  if (n >= p.tokens) return;
  const int32_t *expert = p.choice.row(n), *taken = p.selected.row(n);
  float *out = w.row(n), sum = kRenormFloor;
  for (int from = 0; from < p.k; from += kWarp) {
    const int i = from + lane;
    const float score = i < p.k && taken[i] != 0 ? s.row(n)[expert[i]] : 0;
    if (i < p.k) out[i] = score;
    for (int j = 0; j < kWarp && from + j < p.k; ++j) sum += __shfl_sync(kFull, score, j);
  }
  // Divided: the weight of a token's only expert is then exactly the scale.
  const float whole = renormalise ? sum : 1;
  for (int i = lane; i < p.k; i += kWarp) out[i] = scale * (out[i] / whole);
}

__global__ void scores_backward(Rows<float> ds, Rows<float> dw, Rows<float> w, Rows<float> s,
                                Pairs p, bool renormalise, float scale) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  const int32_t *expert = p.choice.row(n), *taken = p.selected.row(n);
  const float *dy = dw.row(n), *y = w.row(n);
  float dot = 0, sum = 1;
  if (renormalise) {
    sum = kRenormFloor;
    for (int i = 0; i < p.k; ++i) {
      if (taken[i] == 0) continue;
      dot += dy[i] * y[i];
      sum += s.row(n)[expert[i]];
    }
  }
  for (int i = 0; i < p.k; ++i)
    if (taken[i] != 0) ds.row(n)[expert[i]] += (scale * dy[i] - dot) / sum;
}

__global__ void softmax_forward_kernel(Rows<float> w, Rows<float> s, Pairs p) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  const int32_t *expert = p.choice.row(n), *taken = p.selected.row(n);
  float *out = w.row(n), top = -INFINITY, sum = 0;
  for (int i = 0; i < p.k; ++i)
    if (taken[i] != 0) top = fmaxf(top, s.row(n)[expert[i]]);
  for (int i = 0; i < p.k; ++i) sum += out[i] = taken[i] != 0 ? expf(s.row(n)[expert[i]] - top) : 0;
  for (int i = 0; i < p.k; ++i)
    if (taken[i] != 0) out[i] /= sum;
}

__global__ void softmax_backward_kernel(Rows<float> ds, Rows<float> dw, Rows<float> w, Pairs p) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  const int32_t *expert = p.choice.row(n), *taken = p.selected.row(n);
  const float *dy = dw.row(n), *y = w.row(n);
  float dot = 0;
  for (int i = 0; i < p.k; ++i)
    if (taken[i] != 0) dot += dy[i] * y[i];
  for (int i = 0; i < p.k; ++i)
    if (taken[i] != 0) ds.row(n)[expert[i]] += y[i] * (dy[i] - dot);
}

__global__ void one_forward(Rows<float> w, Pairs p) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  for (int i = 0; i < p.k; ++i) w.row(n)[i] = p.selected.row(n)[i] != 0 ? 1 : 0;
}

__global__ void one_plus_forward(Rows<float> w, Rows<float> s, const float* scale, Pairs p) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  const int32_t* expert = p.choice.row(n);
  for (int i = 0; i < p.k; ++i)
    w.row(n)[i] = p.selected.row(n)[i] != 0 ? 1 + scale[expert[i]] * s.row(n)[expert[i]] : 0;
}

__global__ void one_plus_backward(Rows<float> ds, Rows<float> dw, const float* scale, Pairs p) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= p.tokens) return;
  const int32_t* expert = p.choice.row(n);
  for (int i = 0; i < p.k; ++i)
    if (p.selected.row(n)[i] != 0) ds.row(n)[expert[i]] += dw.row(n)[i] * scale[expert[i]];
}

__global__ void by_expert(Rows<float> y, Rows<float> w, const float* scale, Rows<int32_t> choice,
                          int64_t tokens, int k) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= tokens) return;
  for (int i = 0; i < k; ++i) y.row(n)[i] = w.row(n)[i] * scale[choice.row(n)[i]];
}

__global__ void kept_forward(Rows<float> w, Rows<int32_t> kept, int64_t tokens, int k) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= tokens) return;
  float *out = w.row(n), sum = kRenormFloor;
  for (int i = 0; i < k; ++i) sum += kept.row(n)[i] != 0 ? out[i] : 0;
  for (int i = 0; i < k; ++i) out[i] = kept.row(n)[i] != 0 ? out[i] / sum : 0;
}

// y_i = w_i / S, S the sum over the kept, so dw_j = (dy_j - <dy, y>) / S.
__global__ void kept_backward(Rows<float> dw, Rows<float> w, Rows<int32_t> kept, int64_t tokens,
                              int k) {
  begin_in_turn();
  const int64_t n = token_of_thread();
  if (n >= tokens) return;
  float *dy = dw.row(n), dot = 0, sum = kRenormFloor;
  for (int i = 0; i < k; ++i) {
    if (kept.row(n)[i] == 0) continue;
    dot += dy[i] * w.row(n)[i];
    sum += w.row(n)[i];
  }
  for (int i = 0; i < k; ++i) dy[i] = kept.row(n)[i] != 0 ? (dy[i] - dot / sum) / sum : 0;
}

// dscale[e] += sum over the pairs of expert e of dy w (w null: s[e]), tokens in order: a block an
// expert, whose threads have neighbouring tokens and are added in their order.
__global__ void scale_backward(float* dscale, Rows<float> dy, Rows<float> w, bool by_score,
                               Pairs p) {
  begin_in_turn();
  __shared__ float part[kThreads];
  const auto e = static_cast<int32_t>(blockIdx.x);
  const int64_t share = (p.tokens + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * share,
                end = begin + share < p.tokens ? begin + share : p.tokens;
  float sum = 0;
  for (int64_t n = begin; n < end; ++n)
    for (int i = 0; i < p.k; ++i)
      if (p.selected.row(n)[i] != 0 && p.choice.row(n)[i] == e)
        sum += dy.row(n)[i] * w.row(n)[by_score ? e : i];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (unsigned t = 0; t < blockDim.x; ++t) sum += part[t];
  dscale[e] += sum;
}

}  // namespace

void weigh_scores_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected,
                          bool renormalise, float scale) {
  launch(run, scores_forward, dim3(blocks_for(w.rows() * kWarp, kThreads)), dim3(kThreads), 0,
         Rows<float>(w), Rows<float>(s), Pairs(choice, selected), renormalise, scale);
}

void weigh_scores_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice,
                               Tensor selected, bool renormalise, float scale) {
  each_token_of(run, w.rows(), scores_backward, Rows<float>(ds), Rows<float>(dw), Rows<float>(w),
                Rows<float>(s), Pairs(choice, selected), renormalise, scale);
}

void weigh_softmax_forward(Run& run, Tensor w, Tensor s, Tensor choice, Tensor selected) {
  each_token_of(run, w.rows(), softmax_forward_kernel, Rows<float>(w), Rows<float>(s),
                Pairs(choice, selected));
}

void weigh_softmax_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor w, Tensor choice,
                                Tensor selected) {
  each_token_of(run, w.rows(), softmax_backward_kernel, Rows<float>(ds), Rows<float>(dw),
                Rows<float>(w), Pairs(choice, selected));
}

void weigh_one_forward(Run& run, Tensor w, Tensor selected) {
  each_token_of(run, w.rows(), one_forward, Rows<float>(w), Pairs(selected, selected));
}

void weigh_one_plus_forward(Run& run, Tensor w, Tensor s, Tensor scale, Tensor choice,
                            Tensor selected) {
  each_token_of(run, w.rows(), one_plus_forward, Rows<float>(w), Rows<float>(s),
                static_cast<const float*>(scale.as<float>()), Pairs(choice, selected));
}

void weigh_one_plus_backward_acc(Run& run, Tensor ds, Tensor dw, Tensor scale, Tensor choice,
                                 Tensor selected) {
  each_token_of(run, dw.rows(), one_plus_backward, Rows<float>(ds), Rows<float>(dw),
                static_cast<const float*>(scale.as<float>()), Pairs(choice, selected));
}

void weigh_one_plus_scale_backward(Run& run, Param& scale, Tensor dw, Tensor s, Tensor choice,
                                   Tensor selected) {
  settle_grad(run, scale);
  launch(run, scale_backward, dim3(static_cast<unsigned>(scale.grad.numel())), dim3(kThreads), 0,
         scale.grad.as<float>(), Rows<float>(dw), Rows<float>(s), true, Pairs(choice, selected));
}

void scale_by_expert_forward(Run& run, Tensor y, Tensor w, Tensor scale, Tensor choice) {
  each_token_of(run, w.rows(), by_expert, Rows<float>(y), Rows<float>(w),
                static_cast<const float*>(scale.as<float>()), Rows<int32_t>(choice), w.rows(),
                static_cast<int>(w.cols()));
}

void scale_by_expert_backward(Run& run, Param& scale, Tensor dy, Tensor w, Tensor choice,
                              Tensor selected) {
  settle_grad(run, scale);
  launch(run, scale_backward, dim3(static_cast<unsigned>(scale.grad.numel())), dim3(kThreads), 0,
         scale.grad.as<float>(), Rows<float>(dy), Rows<float>(w), false, Pairs(choice, selected));
}

void weigh_kept_forward(Run& run, Tensor w, Tensor kept) {
  each_token_of(run, w.rows(), kept_forward, Rows<float>(w), Rows<int32_t>(kept), w.rows(),
                static_cast<int>(w.cols()));
}

void weigh_kept_backward(Run& run, Tensor dw, Tensor w, Tensor kept) {
  each_token_of(run, w.rows(), kept_backward, Rows<float>(dw), Rows<float>(w), Rows<int32_t>(kept),
                w.rows(), static_cast<int>(w.cols()));
}

}  // namespace moe::ops::cuda
