// Attention: the kernels, and the naive twin in the same run. FLOP/s count what causality asks for:
// 4 C per visible pair of query and key forward, 2.5 times that backward. Beside them stands the
// register-only FMA peak of all threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/ops.h"
#include "support/twins_attention.h"

namespace {

using namespace moe;

Tensor draw(Arena& arena, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  const Tensor t = arena.alloc(dtype, {rows, cols});
  const RngKey key = RngKey::from_seed(seed);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const float x = normal(key, static_cast<uint64_t>(i));
    if (dtype == DType::bf16) t.as<bf16>()[i] = to_bf16(x);
    else t.as<float>()[i] = x;
  }
  return t;
}

// `sequences` of `length` tokens, `heads` of one width sharing `kv_heads`.
struct Work {
  Arena arena;
  test::twin::AttentionRows rows;
  int64_t heads, kv_heads, width;
  Tensor q, k, v, o, lse, dout, dq, dk, dv;

  Work(DType dtype, int64_t sequences, int64_t length, int64_t h, int64_t g, int64_t c)
      : rows(test::twin::AttentionRows::of_lengths(
            std::vector<int64_t>(static_cast<size_t>(sequences), length))),
        heads(h),
        kv_heads(g),
        width(c) {
    const int64_t n = sequences * length;
    q = draw(arena, dtype, n, h * c, 1);
    k = draw(arena, dtype, n, g * c, 2);
    v = draw(arena, dtype, n, g * c, 3);
    dout = draw(arena, dtype, n, h * c, 4);
    o = arena.alloc(dtype, {n, h * c});
    lse = arena.alloc(DType::f32, {n, h});
    dq = arena.alloc(dtype, {n, h * c});
    dk = arena.alloc(dtype, {n, g * c});
    dv = arena.alloc(dtype, {n, g * c});
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(width)); }
  void forward(Run& run) {
    ops::attention_forward(run, o, lse, q, {k, v, rows.bounds, rows.first_row}, rows.positions,
                           heads, kv_heads, scale());
  }
  void backward(Run& run) {
    ops::attention_backward(run, dq, dk, dv, dout, q, {k, v, rows.bounds, rows.first_row}, o, lse,
                            rows.positions, heads, kv_heads, scale());
  }
  double flops() const {
    double pairs = 0;
    for (int32_t p : rows.positions) pairs += p + 1.0;
    return 4 * pairs * static_cast<double>(heads * width);
  }
};

void report(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(
      flops, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

Work work_of(const benchmark::State& state) {
  return Work(state.range(0) == 16 ? DType::bf16 : DType::f32, state.range(1), state.range(2),
              state.range(3), state.range(4), state.range(5));
}

void forward(benchmark::State& state) {
  Work work = work_of(state);
  Run run(available_threads());
  for (auto _ : state) work.forward(run);
  report(state, work.flops());
}

void backward(benchmark::State& state) {
  Work work = work_of(state);
  Run run(available_threads());
  work.forward(run);
  for (auto _ : state) work.backward(run);
  report(state, 2.5 * work.flops());
}

// A cache of `length` tokens in a type as a session keeps it, keys transposed (q8_0 in rows) and
// values by heads, and queries that see all of it or their window: FLOP/s of what they see, and
// bytes of it.
void attend_cache(benchmark::State& state, DType type, int64_t queries) {
  const int64_t length = state.range(0), heads = state.range(1), kv_heads = state.range(2),
                width = state.range(3), window = state.range(4), cols = kv_heads * width,
                blocks = (length + ops::kKeyBlock - 1) / ops::kKeyBlock;
  Arena arena;
  Run run(available_threads());
  const Tensor k = is_quantised(type) ? arena.alloc(type, {blocks * ops::kKeyBlock, cols})
                                      : arena.alloc(type, {blocks, cols, ops::kKeyBlock}),
               v = arena.alloc(type, {blocks, kv_heads, ops::kKeyBlock, width}),
               q = draw(arena, DType::bf16, queries, heads * width, 1),
               o = arena.alloc(DType::bf16, {queries, heads * width});
  std::vector<int64_t> rows(static_cast<size_t>(blocks * ops::kKeyBlock));
  std::iota(rows.begin(), rows.end(), 0);
  const Tensor drawn = draw(arena, DType::bf16, std::ssize(rows), cols, 2);
  for (const Tensor& t : {k, v}) ops::store_keys(run, t, drawn, rows);
  const std::vector<int64_t> bounds{0, queries}, first_row{0};
  std::vector<int32_t> positions;
  double pairs = 0;
  for (int64_t n = length - queries; n < length; ++n) {
    positions.push_back(static_cast<int32_t>(n));
    pairs += static_cast<double>(window > 0 ? std::min(window, n + 1) : n + 1);
  }
  for (auto _ : state)
    ops::attention_forward(run, o, Tensor(), q, {k, v, bounds, first_row}, positions, heads,
                           kv_heads, 1 / std::sqrt(static_cast<float>(width)), window);
  report(state, 4 * pairs * static_cast<double>(heads * width));
  const int64_t seen = window > 0 ? std::min(window + queries - 1, length) : length;
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * 2 * seen *
                          bytes_of(type, kv_heads * width));
}
template <DType kType>
void prompt(benchmark::State& state) {
  attend_cache(state, kType, 512);
}
template <DType kType>
void decode(benchmark::State& state) {
  attend_cache(state, kType, 1);
}

void naive_forward(benchmark::State& state) {
  Work work = work_of(state);
  const auto widen = [](const Tensor& t) {
    return std::vector<float>(t.as<float>(), t.as<float>() + t.numel());
  };
  const std::vector<float> q = widen(work.q), k = widen(work.k), v = widen(work.v);
  const test::twin::AttentionShape shape{work.heads, work.kv_heads, work.width, work.width,
                                         static_cast<double>(work.scale())};
  for (auto _ : state)
    benchmark::DoNotOptimize(test::twin::attention_forward(q, k, v, work.rows, shape));
  report(state, work.flops());
}

template <DType kType>
void peak(benchmark::State& state) {
  Run run(available_threads());
  double rate = 0;
  for (auto _ : state) rate = ops::measure_peak_flops(run, kType, 0.3);
  state.counters["FLOP/s"] =
      benchmark::Counter(rate, benchmark::Counter::kDefaults, benchmark::Counter::kIs1000);
}
void read_rate(benchmark::State& state) {
  Run run(available_threads());
  double rate = 0;
  for (auto _ : state) rate = ops::measure_read_bandwidth(run, 0.3);
  state.counters["bytes_per_second"] = benchmark::Counter(rate);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"bits", "sequences", "length", "heads", "kv_heads", "width"})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  for (int64_t bits : {32, 16})
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{8, 256, 6, 6, 64}, {2, 2048, 6, 6, 64}, {4, 512, 32, 4, 128}})
      b->Args({bits, shape[0], shape[1], shape[2], shape[3], shape[4]});
}

// Of a session: the chunk of 512 tokens that ends a prompt of `length`, and the token behind it.
// Many heads that share keys, as many keys as heads, few heads, and a window.
void cache_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"length", "heads", "kv_heads", "width", "window"})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
  for (const int64_t length : {512, 2048, 8192, 32768})
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{32, 4, 128, 0},
                                              {32, 8, 128, 0},
                                              {16, 16, 128, 0},
                                              {9, 3, 64, 0},
                                              {64, 8, 64, 128}})
      b->Args({length, shape[0], shape[1], shape[2], shape[3]});
}

BENCHMARK_TEMPLATE(peak, DType::f32)->Iterations(1);
BENCHMARK_TEMPLATE(peak, DType::bf16)->Iterations(1);
BENCHMARK(read_rate)->Iterations(1);
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);
BENCHMARK_TEMPLATE(prompt, DType::bf16)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(prompt, DType::f16)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(prompt, DType::q8_0)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(decode, DType::f32)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(decode, DType::bf16)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(decode, DType::f16)->Apply(cache_shapes);
BENCHMARK_TEMPLATE(decode, DType::q8_0)->Apply(cache_shapes);
BENCHMARK(naive_forward)
    ->ArgNames({"bits", "sequences", "length", "heads", "kv_heads", "width"})
    ->Args({32, 8, 256, 6, 6, 64})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
