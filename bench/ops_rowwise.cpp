// Row-wise ops in bytes moved per second on all threads, beside a plain copy of the same size: they
// are meant to run near the memory's bandwidth. Shapes are those of a training step: 2048 tokens,
// width 384, expert width 1024 with two experts a token, and 8M parameters for the optimizer.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/threads.h"
#include "ops/ops.h"

namespace moe {
namespace {

constexpr int64_t kTokens = 2048, kWidth = 384, kRows = 4096, kExpertWidth = 1024,
                  kParameters = 8 << 20;

struct Bench {
  Bench() : run(available_threads()) {}

  Tensor filled(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = run.saved.alloc(dtype, shape);
    for (int64_t r = 0; r < t.rows(); ++r) {
      for (int64_t c = 0; c < t.cols(); ++c) {
        const float x = static_cast<float>((r * 31 + c * 17) % 101) / 50 - 1;
        if (dtype == DType::bf16) t.row<bf16>(r)[c] = to_bf16(x);
        else t.row<float>(r)[c] = x;
      }
    }
    return t;
  }
  Param parameter(std::initializer_list<int64_t> shape) {
    Param p;
    p.value = filled(DType::f32, shape);
    p.grad = run.saved.alloc_zeroed(DType::f32, shape);
    return p;
  }

  Run run;
};

DType dtype_of_range(const benchmark::State& state) {
  return state.range(0) == 0 ? DType::f32 : DType::bf16;
}
void count_bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void copy(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(DType::f32, {kParameters}),
               y = bench.filled(DType::f32, {kParameters});
  for (auto _ : state) {
    parallel_for(bench.run.threads, kParameters, 1, [&](int64_t begin, int64_t end, int) {
      std::memcpy(y.as<float>() + begin, x.as<float>() + begin,
                  static_cast<size_t>(end - begin) * sizeof(float));
    });
  }
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(copy)->UseRealTime();

void add(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(dtype_of_range(state), {kRows, kExpertWidth}),
               y = bench.filled(dtype_of_range(state), {kRows, kExpertWidth});
  for (auto _ : state) ops::add(bench.run, y, y, x);
  count_bytes(state, 3 * x.bytes());
}
BENCHMARK(add)->Arg(0)->Arg(1)->UseRealTime();

void rms_norm_forward(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(DType::f32, {kTokens, kWidth}),
               y = bench.filled(dtype_of_range(state), {kTokens, kWidth}),
               rstd = bench.filled(DType::f32, {kTokens});
  const Param w = bench.parameter({kWidth});
  for (auto _ : state) ops::rms_norm_forward(bench.run, y, rstd, x, w, 1e-5f);
  count_bytes(state, x.bytes() + y.bytes());
}
BENCHMARK(rms_norm_forward)->Arg(0)->Arg(1)->UseRealTime();

void rms_norm_backward(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(DType::f32, {kTokens, kWidth}),
               dy = bench.filled(dtype_of_range(state), {kTokens, kWidth}),
               dx = bench.filled(DType::f32, {kTokens, kWidth});
  const Tensor rstd = bench.filled(DType::f32, {kTokens});
  Param w = bench.parameter({kWidth});
  for (auto _ : state) ops::rms_norm_backward(bench.run, dx, w, dy, x, rstd);
  count_bytes(state, x.bytes() + dy.bytes() + dx.bytes());
}
BENCHMARK(rms_norm_backward)->Arg(0)->Arg(1)->UseRealTime();

void ffn_act_forward(benchmark::State& state) {
  Bench bench;
  const DType dtype = dtype_of_range(state);
  const Tensor gate = bench.filled(dtype, {kRows, kExpertWidth}),
               up = bench.filled(dtype, {kRows, kExpertWidth}),
               hidden = bench.filled(dtype, {kRows, kExpertWidth});
  const Tensor weight = bench.filled(DType::f32, {kRows});
  for (auto _ : state)
    ops::ffn_act_forward(bench.run, hidden, gate, up, weight,
                         static_cast<ops::Act>(state.range(1)));
  count_bytes(state, 3 * up.bytes());
}
BENCHMARK(ffn_act_forward)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->UseRealTime();

void ffn_act_backward(benchmark::State& state) {
  Bench bench;
  const DType dtype = dtype_of_range(state);
  const Tensor gate = bench.filled(dtype, {kRows, kExpertWidth}),
               up = bench.filled(dtype, {kRows, kExpertWidth}),
               dhidden = bench.filled(dtype, {kRows, kExpertWidth});
  const Tensor dgate = bench.filled(dtype, {kRows, kExpertWidth}),
               dup = bench.filled(dtype, {kRows, kExpertWidth}),
               hidden = bench.filled(dtype, {kRows, kExpertWidth});
  const Tensor weight = bench.filled(DType::f32, {kRows}),
               dweight = bench.filled(DType::f32, {kRows});
  for (auto _ : state)
    ops::ffn_act_backward(bench.run, dgate, dup, hidden, dweight, dhidden, gate, up, weight,
                          static_cast<ops::Act>(state.range(1)));
  count_bytes(state, 6 * up.bytes());
}
BENCHMARK(ffn_act_backward)->ArgsProduct({{0, 1}, {0, 1, 2, 3}})->UseRealTime();

void rope(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(dtype_of_range(state), {kTokens, kWidth});
  std::vector<int32_t> positions;
  for (int64_t n = 0; n < kTokens; ++n) positions.push_back(static_cast<int32_t>(n % 256));
  ops::RopeFrequencies table;
  for (int c = 0; c < 32; ++c) table.frequency.push_back(std::pow(10000.0, -c / 32.0));
  const ops::CosSinTable cos_sin = ops::cos_sin_table(bench.run, bench.run.saved, positions, table);
  for (auto _ : state) ops::rope_acc(bench.run, {x}, 64, cos_sin, false);
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(rope)->Arg(0)->Arg(1)->UseRealTime();

void dropout(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(DType::f32, {kTokens, kWidth}),
               y = bench.filled(DType::f32, {kTokens, kWidth});
  for (auto _ : state) ops::dropout(bench.run, y, x, 0.1f, RngKey::from_seed(1));
  count_bytes(state, 2 * x.bytes());
}
BENCHMARK(dropout)->UseRealTime();

// Two rows a token.
void sum_rows(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(dtype_of_range(state), {2 * kTokens, kWidth}),
               y = bench.filled(DType::f32, {kTokens, kWidth});
  std::vector<int32_t> bounds = {0}, row;
  for (int32_t n = 0; n < kTokens; ++n) {
    row.push_back(n * 5 % (2 * kTokens));
    row.push_back((n * 7 + 1) % (2 * kTokens));
    bounds.push_back(2 * (n + 1));
  }
  for (auto _ : state) ops::sum_rows(bench.run, y, x, bounds, row);
  count_bytes(state, x.bytes() + y.bytes());
}
BENCHMARK(sum_rows)->Arg(0)->Arg(1)->UseRealTime();

void cross_entropy(benchmark::State& state) {
  Bench bench;
  const int64_t vocabulary = state.range(0), rows = (1 << 22) / vocabulary;
  const Tensor logits = bench.filled(DType::f32, {rows, vocabulary}),
               nll = bench.filled(DType::f32, {rows}), lse = bench.filled(DType::f32, {rows});
  const Tensor dlogits = bench.filled(DType::f32, {rows, vocabulary});
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 7);
  for (auto _ : state) {
    ops::cross_entropy_forward(bench.run, nll, lse, logits, targets);
    ops::cross_entropy_backward(bench.run, dlogits, logits, lse, targets, 1);
  }
  count_bytes(state, 3 * logits.bytes());
}
BENCHMARK(cross_entropy)->Arg(256)->Arg(32768)->UseRealTime();

void sum_squares(benchmark::State& state) {
  Bench bench;
  const Tensor x = bench.filled(DType::f32, {kParameters});
  for (auto _ : state) benchmark::DoNotOptimize(ops::sum_squares(bench.run, x));
  count_bytes(state, x.bytes());
}
BENCHMARK(sum_squares)->UseRealTime();

// Four arrays read and three written.
void adamw_step(benchmark::State& state) {
  Bench bench;
  Param p = bench.parameter({kParameters});
  const Tensor m = bench.run.saved.alloc_zeroed(DType::f32, {kParameters}),
               v = bench.run.saved.alloc_zeroed(DType::f32, {kParameters});
  ops::AdamW opt{1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 1, 1};
  for (auto _ : state) {
    p.grad_is_zero = false;
    ops::adamw_step(bench.run, p, m, v, opt);
    ++opt.step;
  }
  count_bytes(state, 7 * p.value.bytes());
}
BENCHMARK(adamw_step)->UseRealTime();

}  // namespace
}  // namespace moe

BENCHMARK_MAIN();
