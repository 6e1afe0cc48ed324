// A learned score of each head that gives nothing; the formulas are those of
// ops/cpu/attention/sinks.cpp.
#include "ops/cuda/kernel.h"

namespace moe::ops::cuda {
namespace {

constexpr int kSinkThreads = 256;
constexpr int64_t kSinkRows = 64;  // whose part of a gradient a block sums

void check_sinks(const char* op, const Tensor& o, const Tensor& lse, const Param& sinks) {
  const int64_t heads = sinks.value.numel();
  need(is_float(o) && is_vector(sinks.value, heads) && heads > 0 && o.cols() % heads == 0 &&
           lse.dtype == DType::f32 && lse.rows() == o.rows() && lse.cols() == heads,
       op, "o [N,H*Cv] f32 or bf16, lse [N,H] and sinks [H] f32",
       {{"o", o}, {"lse", lse}, {"sinks", sinks.value}});
}

// o[n,h] /= 1 + e^(s - l);  lse[n,h] = log(e^l + e^s).  A block is a row.
template <class A>
__global__ void take_share(Rows<A> o, Rows<float> lse, const float* sinks, int heads, int width) {
  begin_in_turn();
  A* row = o.row(blockIdx.x);
  float* l = lse.row(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < heads * width; i += threads) {
    const int h = i / width;
    store(row + i, load(row + i) / (1 + expf(sinks[h] - l[h])));
  }
  __syncthreads();
  for (int h = thread; h < heads; h += threads)
    l[h] = fmaxf(l[h], sinks[h]) + log1pf(expf(-fabsf(sinks[h] - l[h])));
}

// parts[b,h] = sum over rows n of block b of e^(s - l[n,h]) <do[n,h], o[n,h]>
template <class A>
__global__ void sink_parts(float* parts, Rows<A> dout, Rows<A> o, Rows<float> lse,
                           const float* sinks, int64_t rows, int width) {
  begin_in_turn();
  const int h = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t begin = int64_t{blockIdx.x} * kSinkRows,
                end = begin + kSinkRows < rows ? begin + kSinkRows : rows;
  float sum = 0;
  for (int64_t n = begin + threadIdx.x / kWarp; n < end; n += blockDim.x / kWarp) {
    const A *a = dout.row(n) + int64_t{h} * width, *b = o.row(n) + int64_t{h} * width;
    float dot = 0;
    for (int c = lane; c < width; c += kWarp) dot += load(a + c) * load(b + c);
    sum += dot * expf(sinks[h] - lse.row(n)[h]);
  }
  __shared__ float shared[33];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) parts[int64_t{blockIdx.x} * gridDim.y + h] = sum;
}
// grad[h] -= sum_b parts[b,h]
__global__ void join_sink_parts(float* grad, const float* parts, int64_t count, int heads) {
  begin_in_turn();
  const int h = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (h >= heads) return;
  double sum = 0;
  for (int64_t b = 0; b < count; ++b) sum += static_cast<double>(parts[b * heads + h]);
  grad[h] -= static_cast<float>(sum);
}

}  // namespace

void attention_sinks(Run& run, Tensor o, Tensor lse, const Param& sinks) {
  check_sinks("attention_sinks", o, lse, sinks);
  const int64_t heads = sinks.value.numel();
  with_float(o.dtype, [&](auto of_o) {
    using A = decltype(of_o);
    launch(run, take_share<A>, dim3(static_cast<unsigned>(o.rows())), dim3(kSinkThreads), 0,
           Rows<A>(o), Rows<float>(lse), sinks.value.as<float>(), static_cast<int>(heads),
           static_cast<int>(o.cols() / heads));
  });
}

void attention_sinks_backward(Run& run, Param& sinks, Tensor do_, Tensor o, Tensor lse) {
  check_sinks("attention_sinks_backward", o, lse, sinks);
  need(same_matrix(do_, o) && do_.dtype == o.dtype, "attention_sinks_backward", "do like o",
       {{"do", do_}, {"o", o}});
  if (sinks.grad.empty()) return;
  ops::settle_grad(run, sinks);
  const int heads = static_cast<int>(sinks.value.numel());
  const unsigned count = blocks_for(o.rows(), kSinkRows);
  Scratch scratch(run);
  const Tensor parts = scratch.alloc(DType::f32, {count, heads});
  with_float(o.dtype, [&](auto of_o) {
    using A = decltype(of_o);
    launch(run, sink_parts<A>, dim3(count, static_cast<unsigned>(heads)), dim3(kSinkThreads), 0,
           parts.as<float>(), Rows<A>(do_), Rows<A>(o), Rows<float>(lse), sinks.value.as<float>(),
           o.rows(), static_cast<int>(o.cols()) / heads);
  });
  launch(run, join_sink_parts, dim3(blocks_for(heads, kWarp)), dim3(kWarp), 0,
         sinks.grad.as<float>(), parts.as<float>(), int64_t{count}, heads);
}

}  // namespace moe::ops::cuda
