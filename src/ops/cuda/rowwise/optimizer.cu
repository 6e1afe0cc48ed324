// Clipping's sum of squares, and AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019) with the order of operations of PyTorch's.
#include <cmath>

#include "ops/cuda/gemm/weights.h"
#include "ops/cuda/rowwise/units.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256, kLast = 1024;
constexpr int64_t kBlock = 16384;  // numbers whose squares a block sums

// Of a block of whole warps, for its first thread; `shared` [32] doubles. Always in the same order.
__device__ double block_total(double x, double* shared) {
  for (int by = kWarp / 2; by > 0; by /= 2) x += __shfl_xor_sync(kFull, x, by);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < warps; ++w) sum += shared[w];
  return sum;
}

// Squares of f32 are exact in double; the running sums are double too.  sums [blocks]
template <class X>
__global__ void sum_squares_of(double* sums, const X* x, int64_t numbers, bool steps) {
  begin_in_turn();
  __shared__ double shared[32];
  const int64_t begin = int64_t{blockIdx.x} * kBlock,
                end = begin + kBlock < numbers ? begin + kBlock : numbers;
  double sum = 0;
#pragma unroll 4
  for (int64_t c = begin + int64_t{threadIdx.x} * kStep; c < end; c += kThreads * kStep) {
    float v[kStep];
    if (steps) {
      load_step(v, x + c);
    } else {
#pragma unroll
      for (int i = 0; i < kStep; ++i) v[i] = c + i < end ? load(x + c + i) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  }
  sum = block_total(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void sum_doubles(double* total, const double* sums, int64_t count) {
  begin_in_turn();
  __shared__ double shared[32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kLast) sum += sums[i];
  sum = block_total(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

// What a step does to a number, all in f32.
struct Move {
  float clip, decay, new1, keep2, new2, rate, root, eps;

  explicit Move(const AdamW& opt)
      : clip(opt.grad_scale),
        decay(static_cast<float>(1.0 - static_cast<double>(opt.lr) * opt.weight_decay)),
        new1(static_cast<float>(1.0 - static_cast<double>(opt.beta1))),
        keep2(opt.beta2),
        new2(static_cast<float>(1.0 - static_cast<double>(opt.beta2))),
        eps(opt.eps) {
    const double step = static_cast<double>(opt.step);
    rate = static_cast<float>(opt.lr / (1.0 - std::pow(static_cast<double>(opt.beta1), step)));
    root = static_cast<float>(std::sqrt(1.0 - std::pow(static_cast<double>(opt.beta2), step)));
  }

  // g = clip grad;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;  value = decay value
  // - rate m / (sqrt(v) / root + eps) with decay = 1 - lr wd, rate = lr / (1 - beta1^step), root =
  // sqrt(1 - beta2^step)
  __device__ void operator()(float& value, float& m, float& v, float grad) const {
    const float g = grad * clip;
    m = fmaf(new1, g - m, m);
    v = fmaf(new2 * g, g, keep2 * v);
    value = fmaf(-rate, m / (sqrtf(v) / root + eps), value * decay);
  }
};

constexpr int kFew = 4;  // numbers that a thread moves

// grad may be null: zeros. copy, which may be null too: the value for products in bf16. A thread
// has one unit: blocks that come and go keep memory busier than ones that walk.
__global__ void __launch_bounds__(kThreads)
    move_all(float* value, float* m, float* v, const float* grad, bf16* copy, int64_t numbers,
             Move move) {
  begin_in_turn();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kFew;
  if (first + kFew <= numbers) {
    using Four = Unit<float, kFew>;
    Four w, a, b, g;
    if (grad != nullptr) g.load(grad + first);
    a.load(m + first);
    b.load(v + first);
    w.load(value + first);
    float new_w[kFew], new_a[kFew], new_b[kFew];
#pragma unroll
    for (int k = 0; k < kFew; ++k) {
      new_w[k] = w[k], new_a[k] = a[k], new_b[k] = b[k];
      move(new_w[k], new_a[k], new_b[k], grad != nullptr ? g[k] : 0.0f);
    }
    w.set_all(new_w), a.set_all(new_a), b.set_all(new_b);
    w.store(value + first);
    a.store(m + first);
    b.store(v + first);
    if (copy == nullptr) return;
    Unit<bf16, kFew> few;
    few.set_all(new_w);
    few.store(copy + first);
  } else {
#pragma unroll 1
    for (int64_t i = first; i < numbers; ++i) {
      move(value[i], m[i], v[i], grad != nullptr ? grad[i] : 0.0f);
      if (copy != nullptr) copy[i] = to_bf16(value[i]);
    }
  }
}
// The same where memory begins anywhere.
__global__ void move_each(float* value, float* m, float* v, const float* grad, bf16* copy,
                          int64_t numbers, Move move) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    move(value[i], m[i], v[i], grad != nullptr ? grad[i] : 0.0f);
    if (copy != nullptr) copy[i] = to_bf16(value[i]);
  }
}

void step_all(Run& run, Tensor value, Tensor m, Tensor v, Tensor grad, bool no_grad, Tensor copy,
              const AdamW& opt) {
  bool aligned = true;
  for (const Tensor& t : {value, m, v, grad}) {
    need(same_matrix(t, value) && t.dtype == DType::f32 && t.dense(), "adamw_step",
         "value, m, v and grad f32 of one shape without gaps",
         {{"value", value}, {"m", m}, {"v", v}, {"grad", grad}});
    aligned = aligned && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  }
  need(opt.step >= 1, "adamw_step", "a step of 1 or more", {{"value", value}});
  launch(run, aligned ? move_all : move_each, dim3(blocks_for(value.numel(), kThreads * kFew)),
         dim3(kThreads), 0, value.as<float>(), m.as<float>(), v.as<float>(),
         no_grad ? nullptr : grad.as<float>(), static_cast<bf16*>(copy.data), value.numel(),
         Move(opt));
}

}  // namespace

namespace {

__global__ void mean_of(float* mean, const double* total, double numbers) {
  begin_in_turn();
  *mean = static_cast<float>(*total / numbers);
}

// *total = the sum of x's squares
void queue_squares(Run& run, double* total, Tensor x) {
  need(!x.empty() && is_float(x) && x.dense(), "sum_squares", "a tensor without gaps, f32 or bf16",
       {{"x", x}});
  const unsigned blocks = blocks_for(x.numel(), kBlock);
  Scratch scratch(run);
  auto* sums = static_cast<double*>(scratch.bytes((size_t{blocks} + 1) * sizeof(double)));
  with_float(x.dtype, [&](auto of_x) {
    using X = decltype(of_x);
    launch(run, sum_squares_of<X>, dim3(blocks), dim3(kThreads), 0, sums + 1,
           static_cast<const X*>(x.data), x.numel(), in_steps({x}));
  });
  launch(run, sum_doubles, dim3(1), dim3(kLast), 0, total, sums + 1, int64_t{blocks});
}

}  // namespace

void sums_of_squares(Run& run, std::span<double> sums, List<Tensor> all) {
  Scratch scratch(run);
  auto* totals = static_cast<double*>(scratch.bytes(sums.size_bytes()));
  double* total = totals;
  for (const Tensor& x : all) queue_squares(run, total++, x);
  run.device->download(sums.data(), totals, sums.size_bytes());
}

double sum_squares(Run& run, Tensor x) {
  double sum = 0;
  sums_of_squares(run, std::span(&sum, 1), {x});
  return sum;
}

void mean_square(Run& run, Tensor mean, Tensor x) {
  Scratch scratch(run);
  auto* total = static_cast<double*>(scratch.bytes(sizeof(double)));
  queue_squares(run, total, x);
  launch(run, mean_of, dim3(1), dim3(1), 0, mean.as<float>(), static_cast<const double*>(total),
         static_cast<double>(x.numel()));
}

void settle_grad(Run& run, Param& param) {
  const int64_t parts = param.grad.empty() ? 0 : param.grad.matrices();
  for (int64_t e = 0; param.grad_is_zero && e < parts; ++e) zero(run, param.expert_grad(e));
  param.grad_is_zero = false;
}

void adamw_step(Run& run, Tensor value, Tensor m, Tensor v, Tensor grad, const AdamW& opt) {
  step_all(run, value, m, v, grad, false, {}, opt);
}

void adamw_step(Run& run, Param& param, Tensor m, Tensor v, const AdamW& opt) {
  const Tensor copy = kept_copy(param);
  step_all(run, param.value, m, v, param.grad, param.grad_is_zero, copy, opt);
  param.touched();
  if (!copy.empty()) settle_copy(param);
  param.grad_is_zero = true;
}

}  // namespace moe::ops::cuda
