// Ops that treat every element alike.
#include "ops/cuda/rowwise/units.h"

namespace moe::ops::cuda {
namespace {

constexpr int kThreads = 256;

// y = f(a, b), number by number; b may be absent (0).
template <class Y, class A, class B, class F>
__global__ void map_numbers(Rows<Y> y, Rows<A> a, Rows<B> b, int64_t numbers, int64_t cols, F f) {
  begin_in_turn();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const int64_t r = i / cols, c = i % cols;
    store(y.row(r) + c, f(load(a.row(r) + c), b.empty() ? 0.0f : load(b.row(r) + c)));
  }
}

constexpr int kUnit = 4, kUnits = 2;  // numbers of a unit, and units of a thread

// The same of numbers without gaps, whole units; both of a thread are on their way at once. `two`:
// there is b.
template <bool two, class Y, class A, class B, class F>
__global__ void __launch_bounds__(kThreads)
    map_units(Y* y, const A* a, const B* b, int64_t numbers, F f) {
  begin_in_turn();
  constexpr int64_t kStride = kThreads * kUnit;
  const int64_t first = blockIdx.x * kStride * kUnits + threadIdx.x * kUnit;
  Unit<A, kUnit> p[kUnits];
  Unit<B, kUnit> q[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t i = first + u * kStride;
    if (i >= numbers) continue;
    p[u].load(a + i);
    if constexpr (two) q[u].load(b + i);
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int64_t i = first + u * kStride;
    if (i >= numbers) continue;
    float x[kUnit];
#pragma unroll
    for (int k = 0; k < kUnit; ++k) x[k] = f(p[u][k], two ? q[u][k] : 0.0f);
    Unit<Y, kUnit> out;
    out.set_all(x);
    out.store(y + i);
  }
}

template <class F>
void map_two(Run& run, Tensor y, Tensor a, Tensor b, F f) {
  with_float(y.dtype, [&](auto of_y) {
    with_float(a.dtype, [&](auto of_a) {
      with_float(b.empty() ? a.dtype : b.dtype, [&](auto of_b) {
        using Y = decltype(of_y);
        using A = decltype(of_a);
        using B = decltype(of_b);
        if (in_steps({y, a}) && (b.empty() || in_steps({b}))) {
          launch(run, b.empty() ? map_units<false, Y, A, B, F> : map_units<true, Y, A, B, F>,
                 dim3(blocks_for(y.numel(), kThreads * kUnit * kUnits)), dim3(kThreads), 0,
                 static_cast<Y*>(y.data), static_cast<const A*>(a.data),
                 static_cast<const B*>(b.data), y.numel(), f);
        } else {
          launch(run, map_numbers<Y, A, B, F>, dim3(walking_blocks(run, y.numel(), kThreads)),
                 dim3(kThreads), 0, Rows<Y>(y), Rows<A>(a), Rows<B>(b), y.numel(), y.cols(), f);
        }
      });
    });
  });
}

__global__ void zero_rows(char* y, int64_t row_bytes, int64_t bytes) {
  begin_in_turn();
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) y[blockIdx.x * row_bytes + i] = 0;
}

}  // namespace

void cast(Run& run, Tensor y, Tensor x) {
  need(same_matrix(y, x) && is_float(y) && is_float(x), "cast", "y and x of one shape, f32 or bf16",
       {{"y", y}, {"x", x}});
  map_two(run, y, x, {}, [] __device__(float a, float) { return a; });
}

void add(Run& run, Tensor y, Tensor a, Tensor b) {
  need(same_matrix(a, b) && same_matrix(a, y) && is_float(a) && is_float(b) && is_float(y), "add",
       "y, a and b of one shape, f32 or bf16", {{"y", y}, {"a", a}, {"b", b}});
  map_two(run, y, a, b, [] __device__(float p, float q) { return p + q; });
}

void multiply(Run& run, Tensor y, Tensor a, Tensor b) {
  need(same_matrix(a, b) && same_matrix(a, y) && is_float(y) && a.dtype == y.dtype &&
           b.dtype == y.dtype,
       "multiply", "y, a and b of one shape and dtype, f32 or bf16",
       {{"y", y}, {"a", a}, {"b", b}});
  map_two(run, y, a, b, [] __device__(float p, float q) { return p * q; });
}

void scale(Run& run, Tensor y, Tensor x, float factor) {
  need(same_matrix(y, x) && is_float(y) && is_float(x), "scale",
       "y and x of one shape, f32 or bf16", {{"y", y}, {"x", x}});
  map_two(run, y, x, {}, [=] __device__(float p, float) { return factor * p; });
}

void add_scaled(Run& run, Tensor y, Tensor x, Tensor z, float a, float b) {
  need(same_matrix(x, z) && same_matrix(x, y) && is_float(x) && is_float(z) && is_float(y),
       "add_scaled", "y, x and z of one shape, f32 or bf16", {{"y", y}, {"x", x}, {"z", z}});
  map_two(run, y, x, z, [=] __device__(float p, float q) { return a * p + b * q; });
}

void soft_cap_forward(Run& run, Tensor y, Tensor x, float cap) {
  need(same_matrix(y, x) && y.dtype == DType::f32 && x.dtype == DType::f32, "soft_cap_forward",
       "y and x f32 of one shape", {{"y", y}, {"x", x}});
  map_two(run, y, x, {}, [=] __device__(float p, float) { return cap * tanhf(p / cap); });
}

void soft_cap_backward(Run& run, Tensor dx, Tensor dy, Tensor y, float cap) {
  need(same_matrix(dx, dy) && same_matrix(dx, y) && is_float(dx) && dx.dtype == dy.dtype &&
           y.dtype == DType::f32,
       "soft_cap_backward", "dx and dy of one dtype, y f32", {{"dx", dx}, {"dy", dy}, {"y", y}});
  map_two(run, dx, dy, y, [=] __device__(float p, float q) {
    const float part = q / cap;
    return p * (1 - part * part);
  });
}

void zero(Run& run, Tensor y) {
  need(!y.empty(), "zero", "a tensor", {{"y", y}});
  if (y.dense()) return run.device->fill(y.data, 0, static_cast<size_t>(y.bytes()));
  launch(run, zero_rows, dim3(static_cast<unsigned>(y.rows())), dim3(kThreads), 0,
         static_cast<char*>(y.data), y.row_bytes, bytes_of(y.dtype, y.cols()));
}

}  // namespace moe::ops::cuda
