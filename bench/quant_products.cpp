// Products with quantised weights as experts of width 2048 -> 1024 -> 2048 need them: 16 to 256
// rows each (a prompt; in AMX tiles too where the machine has them) and 1 to 4 (decoding, where
// weights come from memory), packing and quantising. Counters: GOP/s and the share of a
// register-only loop of integer dot products; GB/s of panels and the share of what reading memory
// reaches, both measured in the same run on as many threads.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/quant/quant_product.h"
#include "ops/ops.h"

namespace {

using namespace moe;

struct Peaks {
  Run run{available_threads()};
  double operations = ops::measure_peak_int8(run, 0.3),
         bytes = ops::measure_read_bandwidth(run, 0.5);
};
const Peaks& peaks() {
  static const Peaks measured;
  return measured;
}

// Experts of one shape, [out, in], and rows for each.
struct Setting {
  Run run{available_threads()};
  Arena memory;
  DType dtype;
  int64_t rows, experts, out, in;
  std::vector<uint8_t> blocks;  // of one expert
  size_t panel_bytes;
  char* panels;
  Tensor x, y;  // [rows, in], [rows, out]
  void* q;

  Setting(const benchmark::State& state, DType type)
      : dtype(type),
        rows(state.range(0)),
        experts(state.range(1)),
        out(state.range(2)),
        in(state.range(3)) {
    const int64_t row_bytes = bytes_of(dtype, in);
    blocks.assign(static_cast<size_t>(out * row_bytes), 0x2C);  // f16 0x2C2C is 0.07
    panel_bytes = ops::quant_panels_bytes(dtype, out, in);
    panels = static_cast<char*>(memory.alloc_bytes(panel_bytes * static_cast<size_t>(experts)));
    each_share([&](Span groups) {
      for (int64_t e = 0; e < experts; ++e)
        ops::quant_pack(panels + static_cast<size_t>(e) * panel_bytes, dtype, blocks.data(),
                        row_bytes, out, in, groups);
    });
    x = memory.alloc(DType::f32, {rows, in});
    y = memory.alloc(DType::f32, {rows, out});
    const RngKey key = RngKey::from_seed(1);
    for (int64_t i = 0; i < x.numel(); ++i)
      x.as<float>()[i] = uniform(key, static_cast<uint64_t>(i)) - 0.5f;
    q = memory.alloc_bytes(ops::quant_rows_bytes(rows, in));
    ops::quant_rows(q, {x.data, x.dtype, in}, in, {0, rows});
  }
  // f(groups) on each thread, its share of the columns.
  template <class F>
  void each_share(F&& f) {
    const int64_t groups = ops::quant_groups(out);
#pragma omp parallel num_threads(run.threads)
    f(partition(groups, omp_get_thread_num(), omp_get_num_threads()));
  }
};

void count(benchmark::State& state, const Setting& s) {
  const double operations = 2.0 * static_cast<double>(s.rows * s.experts * s.out * s.in),
               bytes = static_cast<double>(s.panel_bytes) * static_cast<double>(s.experts);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GOP/s"] = benchmark::Counter(operations / 1e9, rate);
  if (peaks().operations > 0)
    state.counters["of_peak"] = benchmark::Counter(operations / peaks().operations, rate);
  state.counters["GB/s"] = benchmark::Counter(bytes / 1e9, rate);
  state.counters["of_read"] = benchmark::Counter(bytes / peaks().bytes, rate);
}

void product(benchmark::State& state, DType dtype) {
  Setting s(state, dtype);
  for (auto _ : state) {
    s.each_share([&](Span groups) {
      for (int64_t e = 0; e < s.experts; ++e)
        ops::quant_multiply({s.y.data, DType::f32, s.out, false}, s.q, nullptr, s.rows,
                            s.panels + static_cast<size_t>(e) * s.panel_bytes, dtype, s.out, s.in,
                            groups);
    });
  }
  count(state, s);
}

// The same rows in bf16, in tiles.
void tiled(benchmark::State& state, DType dtype) {
  if (!ops::has_tiles()) return state.SkipWithError("no AMX");
  Setting s(state, dtype);
  const Tensor x = s.memory.alloc(DType::bf16, {s.rows, s.in});
  ops::cast(s.run, x, s.x);
  void* tiles = s.memory.alloc_bytes(static_cast<size_t>(ops::tiled_bytes(s.rows, s.in)));
  ops::tile_rows(tiles, {x.data, x.dtype, s.in}, s.rows, s.in);
  const size_t scratch_bytes = (ops::quant_tiles_scratch_bytes() + 63) / 64 * 64;
  auto* scratch =
      static_cast<char*>(s.memory.alloc_bytes(scratch_bytes * static_cast<size_t>(s.run.threads)));
  for (auto _ : state) {
    s.each_share([&](Span groups) {
      const ops::TilesInUse in_use;
      for (int64_t e = 0; e < s.experts; ++e)
        ops::quant_multiply_tiles(
            {s.y.data, DType::f32, s.out, false}, tiles, s.rows,
            s.panels + static_cast<size_t>(e) * s.panel_bytes, dtype, s.out, s.in, groups, {},
            scratch + scratch_bytes * static_cast<size_t>(omp_get_thread_num()));
    });
  }
  count(state, s);
}

// Bytes read: those of the file.
void packing(benchmark::State& state, DType dtype) {
  Setting s(state, dtype);
  for (auto _ : state)
    s.each_share([&](Span groups) {
      for (int64_t e = 0; e < s.experts; ++e)
        ops::quant_pack(s.panels + static_cast<size_t>(e) * s.panel_bytes, dtype, s.blocks.data(),
                        bytes_of(dtype, s.in), s.out, s.in, groups);
    });
  state.SetBytesProcessed(state.iterations() * s.experts * static_cast<int64_t>(s.blocks.size()));
}

void quantising(benchmark::State& state) {
  Setting s(state, DType::q8_0);
  for (auto _ : state) {
#pragma omp parallel num_threads(s.run.threads)
    ops::quant_rows(s.q, {s.x.data, s.x.dtype, s.in}, s.in,
                    partition(s.rows, omp_get_thread_num(), omp_get_num_threads()));
  }
  state.SetBytesProcessed(state.iterations() * s.x.bytes());
}

// The yardsticks themselves.
void peak(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(&peaks());
  state.counters["GOP/s"] = peaks().operations / 1e9;
  state.counters["GB/s"] = peaks().bytes / 1e9;
}
BENCHMARK(peak)->Iterations(1);

void prompt_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "experts", "out", "in"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int64_t rows : {16, 32, 64, 256})
    b->Args({rows, 64, 1024, 2048})->Args({rows, 64, 2048, 1024});
}
void tiled_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "experts", "out", "in"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int64_t rows : {17, 32, 64, 256})
    b->Args({rows, 64, 1024, 2048})->Args({rows, 64, 2048, 1024});
}
void decode_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "experts", "out", "in"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  b->Args({1, 128, 1024, 2048})->Args({1, 128, 2048, 1024})->Args({4, 128, 1024, 2048});
}
void pack_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "experts", "out", "in"})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime()
      ->Args({1, 16, 1024, 2048});
}

BENCHMARK_CAPTURE(product, q8_0, DType::q8_0)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q4_0, DType::q4_0)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q4_1, DType::q4_1)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q5_0, DType::q5_0)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q5_1, DType::q5_1)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q4_k, DType::q4_k)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q5_k, DType::q5_k)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q6_k, DType::q6_k)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q3_k, DType::q3_k)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q2_k, DType::q2_k)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, q2_0, DType::q2_0)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, iq3_s, DType::iq3_s)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(product, iq2_xs, DType::iq2_xs)->Apply(prompt_shapes)->Apply(decode_shapes);
BENCHMARK_CAPTURE(tiled, q8_0, DType::q8_0)->Apply(tiled_shapes);
BENCHMARK_CAPTURE(tiled, q4_0, DType::q4_0)->Apply(tiled_shapes);
BENCHMARK_CAPTURE(tiled, q4_k, DType::q4_k)->Apply(tiled_shapes);
BENCHMARK_CAPTURE(tiled, q6_k, DType::q6_k)->Apply(tiled_shapes);
BENCHMARK_CAPTURE(tiled, q2_k, DType::q2_k)->Apply(tiled_shapes);
BENCHMARK_CAPTURE(packing, q8_0, DType::q8_0)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, q4_0, DType::q4_0)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, q4_k, DType::q4_k)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, q6_k, DType::q6_k)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, q2_0, DType::q2_0)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, iq3_s, DType::iq3_s)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, iq2_xs, DType::iq2_xs)->Apply(pack_shapes);
BENCHMARK_CAPTURE(packing, tq1_0, DType::tq1_0)->Apply(pack_shapes);
BENCHMARK(quantising)
    ->ArgNames({"rows", "experts", "out", "in"})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->Args({512, 1, 16, 2048});

}  // namespace

BENCHMARK_MAIN();
