// What routing costs: forward and backward of one MoE layer over a dense FFN of the same active
// width (k F = 4 D) on the same 2,048 tokens, alternating in one run, packing of the weights
// counted on both sides (every call finds its weights changed, as after an optimizer step).
//   bench_moe_tax [D=384] [threads=2] [pairs=5] [E k]     prints a row for each (experts, k), or
//                                                         for the one given, and memory against
//                                                         tokens
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "median.h"
#include "moe/layer.h"
#include "moe/recipes/recipes.h"

namespace {

using namespace moe;
using bench::median;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 2048;

struct Layer {
  Arena memory;
  MoeLayer layer;
  RoutingSpec spec;
  std::vector<Param*> params;

  void add(Param& p, std::initializer_list<int64_t> shape, uint64_t seed) {
    p.value = memory.alloc(DType::f32, shape);
    p.grad = memory.alloc_zeroed(DType::f32, shape);
    const RngKey key = RngKey::from_seed(seed);
    for (int64_t i = 0; i < p.value.numel(); ++i)
      p.value.as<float>()[i] = 0.04f * (uniform(key, static_cast<uint64_t>(i)) - 0.5f);
    params.push_back(&p);
  }
  // One expert: the dense layer.
  Layer(int64_t experts, int64_t k, int64_t d, int64_t f) {
    add(layer.experts.gate, {experts, f, d}, 1);
    add(layer.experts.up, {experts, f, d}, 2);
    add(layer.experts.down, {experts, d, f}, 3);
    if (experts == 1) return;
    layer.router.emplace();
    add(layer.router->logit.weight, {experts, d}, 4);
    spec = train_spec({.recipe = "olmoe", .experts = experts, .top_k = k});
  }
};

// Seconds of one forward and backward; `saved_bytes` gets what the arenas hold.
double step(Run& run, Layer& l, Tensor x, Tensor dy, Tensor y, Tensor dx) {
  for (Param* p : l.params) {
    p->touched();
    p->grad_is_zero = true;
  }
  const auto start = Clock::now();
  ArenaScope scope(run.saved);
  MoeLayer::Saved saved;
  const Pass pass{.routing = &l.spec, .keep = Keep::all, .wanted = Wanted::all()};
  l.layer.forward(run, y, x, {}, pass, saved);
  l.layer.backward(run, dx, {}, dy, x, pass, {0.01f, 0.001f}, saved);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Setup {
  Arena memory;
  Run run;
  Tensor x, dy, y, dx;
  Setup(int threads, DType dtype, int64_t tokens, int64_t d) : run(threads, dtype) {
    const auto matrix = [&](DType type, uint64_t seed) {
      Tensor t = memory.alloc(type, {tokens, d});
      for (int64_t i = 0; i < t.numel(); ++i) {
        const float v = normal(RngKey::from_seed(seed), static_cast<uint64_t>(i));
        if (type == DType::bf16) t.as<bf16>()[i] = to_bf16(v);
        else t.as<float>()[i] = v;
      }
      return t;
    };
    x = matrix(dtype, 5), dy = matrix(dtype, 6), y = matrix(DType::f32, 7),
    dx = matrix(DType::f32, 8);
  }
};

void print_tax(int threads, DType dtype, int64_t d, int64_t experts, int64_t k, int pairs) {
  const int64_t active = 4 * d, f = active / k;
  Setup s(threads, dtype, kTokens, d);
  Layer sparse(experts, k, d, f), dense(1, 1, d, active);
  std::vector<double> a, b, ratio;
  for (int i = -2; i < pairs; ++i) {
    double ta = 0, tb = 0;
    for (int half = 0; half < 2; ++half)
      ((half + i) % 2 == 0 ? ta : tb) =
          step(s.run, (half + i) % 2 == 0 ? sparse : dense, s.x, s.dy, s.y, s.dx);
    if (i < 0) continue;
    a.push_back(ta), b.push_back(tb), ratio.push_back(ta / tb);
  }
  fmt::print("| {} | {} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.2f} |\n", name_of(dtype), experts,
             k, f, 1e3 * median(a), 1e3 * median(b), median(ratio),
             *std::max_element(ratio.begin(), ratio.end()));
}

void print_memory(int threads, int64_t d) {
  fmt::print("\n| tokens | activations and scratch, MiB (E=64, k=8, f32) |\n|---|---|\n");
  for (int64_t tokens : {512, 1024, 2048, 4096, 8192}) {
    Setup s(threads, DType::f32, tokens, d);
    Layer sparse(64, 8, d, d / 2);
    step(s.run, sparse, s.x, s.dy, s.y, s.dx);
    size_t bytes = s.run.saved.peak() + s.run.scratch.peak();
    for (const Arena& arena : s.run.thread_scratch) bytes += arena.peak();
    fmt::print("| {} | {:.1f} |\n", tokens, static_cast<double>(bytes) / (1 << 20));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t d = argc > 1 ? std::atoll(argv[1]) : 384;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2, pairs = argc > 3 ? std::atoi(argv[3]) : 5;
  fmt::print(
      "D {}, {} tokens, {} threads, {} alternating pairs; tax = MoE / dense\n\n| dtype | E | k | F "
      "| MoE ms | dense ms | tax | worst "
      "|\n|---|---|---|---|---|---|---|---|\n",
      d, kTokens, threads, pairs);
  if (argc > 5) {
    for (DType dtype : {DType::f32, DType::bf16})
      print_tax(threads, dtype, d, std::atoll(argv[4]), std::atoll(argv[5]), pairs);
    return 0;
  }
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t experts : {2, 8, 16, 64, 256})
      for (int64_t k : {1, 2, 4, 8, 16})
        if (k <= experts && 4 * d / k >= 16) print_tax(threads, dtype, d, experts, k, pairs);
  print_memory(threads, d);
  return 0;
}
