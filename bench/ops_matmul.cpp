// The products of a training step at 6 layers of width 384 (8 experts of width 1024, two of them
// for each of 2,048 tokens), of a dense one of width 128 (8,192 tokens) and of decoding, with the
// scalar twin beside them. Counters: GFLOP/s, and the share of what a register-only loop reaches in
// the same run on as many threads. Packing counts bytes read.
#include <benchmark/benchmark.h>

#include <map>
#include <vector>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/ops.h"

namespace {

using namespace moe;

double peak_flops(Run& run, DType dtype) {
  static std::map<DType, double> measured;
  auto [it, fresh] = measured.try_emplace(dtype, 0.0);
  if (fresh) it->second = ops::measure_peak_flops(run, dtype, 0.3);
  return it->second;
}

void draw(const Tensor& t, uint64_t seed) {
  const RngKey key = RngKey::from_seed(seed);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const float x = uniform(key, static_cast<uint64_t>(i)) - 0.5f;
    if (t.dtype == DType::bf16) t.as<bf16>()[i] = to_bf16(x);
    else t.as<float>()[i] = x;
  }
}

// Rows, equal groups, and both widths; uneven groups would measure the same code.
struct Setting {
  Run run{available_threads()};
  Arena memory;
  std::vector<int64_t> offsets;
  Param w;              // [E, O, I]
  Tensor x, dx, dy, y;  // [R, I], [R, I], [R, O], [R, O]

  Setting(const benchmark::State& state, DType dtype) {
    const int64_t rows = state.range(0), groups = state.range(1), out = state.range(2),
                  in = state.range(3);
    for (int64_t e = 0; e <= groups; ++e) offsets.push_back(rows * e / groups);
    w.value = memory.alloc(DType::f32, {groups, out, in});
    w.grad = memory.alloc_zeroed(DType::f32, {groups, out, in});
    x = memory.alloc(dtype, {rows, in});
    dx = memory.alloc(dtype, {rows, in});
    dy = memory.alloc(dtype, {rows, out});
    y = memory.alloc(dtype, {rows, out});
    draw(w.value, 1);
    draw(x, 2);
    draw(dy, 3);
  }
  void report(benchmark::State& state, DType dtype) {
    const double flops = 2.0 * static_cast<double>(x.numel() * y.cols()),
                 peak = peak_flops(run, dtype);
    state.counters["GFLOP/s"] =
        benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["of_peak"] =
        benchmark::Counter(flops / peak, benchmark::Counter::kIsIterationInvariantRate);
  }
};

enum class Op { forward, dx, dw };

void product(benchmark::State& state, DType dtype, Op op) {
  Setting s(state, dtype);
  for (auto _ : state) {
    if (op == Op::forward) ops::matmul_forward(s.run, s.y, s.x, s.w, s.offsets);
    if (op == Op::dx) ops::matmul_dx(s.run, s.dx, s.dy, s.w, s.offsets);
    if (op == Op::dw) ops::matmul_dw(s.run, s.w, s.dy, s.x, s.offsets);
  }
  s.report(state, dtype);
}

// Weights that moved: what packing both ways adds, seen as a product of a single row.
void packing(benchmark::State& state, DType dtype, Op op) {
  Setting s(state, dtype);
  for (auto _ : state) {
    s.w.touched();
    if (op == Op::forward) ops::matmul_forward(s.run, s.y, s.x, s.w, s.offsets);
    else ops::matmul_dx(s.run, s.dx, s.dy, s.w, s.offsets);
  }
  state.SetBytesProcessed(state.iterations() * s.w.value.bytes());
}

// y = x w^T, one multiplication at a time.
void naive_forward(benchmark::State& state) {
  Setting s(state, DType::f32);
  for (auto _ : state) {
    for (size_t e = 0; e + 1 < s.offsets.size(); ++e)
      for (int64_t r = s.offsets[e]; r < s.offsets[e + 1]; ++r)
        for (int64_t o = 0; o < s.y.cols(); ++o) {
          const float* a = s.x.row<float>(r);
          const float* b = s.w.value.row<float>(static_cast<int64_t>(e) * s.y.cols() + o);
          float sum = 0;
          for (int64_t i = 0; i < s.x.cols(); ++i) sum += a[i] * b[i];
          s.y.row<float>(r)[o] = sum;
        }
    benchmark::ClobberMemory();
  }
  s.report(state, DType::f32);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "groups", "out", "in"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  b->Args({4096, 8, 1024, 384})
      ->Args({4096, 8, 384, 1024})
      ->Args({2048, 1, 384, 384})
      ->Args({2048, 1, 256, 384})
      ->Args({2048, 1, 8, 384});
  b->Args({8192, 1, 1024, 128})->Args({8192, 1, 128, 512})->Args({8192, 1, 128, 128});
}
void decode_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "groups", "out", "in"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  b->Args({1, 1, 384, 384})
      ->Args({1, 1, 2048, 2048})
      ->Args({8, 8, 1024, 2048})
      ->Args({8, 1, 2048, 2048});
}
void bank(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "groups", "out", "in"})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime()
      ->Args({8, 8, 1024, 384})
      ->Args({8, 8, 384, 1024});
}

BENCHMARK_CAPTURE(product, forward_f32, DType::f32, Op::forward)
    ->Apply(shapes)
    ->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, dx_f32, DType::f32, Op::dx)->Apply(shapes);
BENCHMARK_CAPTURE(product, dw_f32, DType::f32, Op::dw)->Apply(shapes);
BENCHMARK_CAPTURE(product, forward_bf16, DType::bf16, Op::forward)
    ->Apply(shapes)
    ->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, dx_bf16, DType::bf16, Op::dx)->Apply(shapes);
BENCHMARK_CAPTURE(product, dw_bf16, DType::bf16, Op::dw)->Apply(shapes);
BENCHMARK_CAPTURE(packing, forward_f32, DType::f32, Op::forward)->Apply(bank);
BENCHMARK_CAPTURE(packing, dx_f32, DType::f32, Op::dx)->Apply(bank);
BENCHMARK_CAPTURE(packing, forward_bf16, DType::bf16, Op::forward)->Apply(bank);
BENCHMARK_CAPTURE(packing, dx_bf16, DType::bf16, Op::dx)->Apply(bank);
BENCHMARK(naive_forward)
    ->ArgNames({"rows", "groups", "out", "in"})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->Args({4096, 8, 1024, 384});

}  // namespace

BENCHMARK_MAIN();
