// What this machine can do (peak), what the engine makes of it op by op (ops), in whole training steps (train), and with a MODEL (bench_model.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "jobs/run_options.h"
#include "jobs/train_memory.h"
#include "ops/ops.h"
#include "text/bpe_train.h"
#include "train/trainer.h"

namespace moe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 7;

struct Flags {
  SetupOptions setup;
  BenchModelFlags bench;
  MemoryOptions memory;  // of train
  int64_t warmup_steps = 2;
  int threads = 0;
  bool json = false;
  Given given, setup_given;  // before and behind the word train
};

int run_peak(const Flags& f) {
  Run run(thread_count(f.threads));
  const Peak peak = measure_peak(run);
  if (f.json) {
    fmt::print(
        "{}\n",
        Json({{"threads", run.threads}, {"isa", ops::isa_name()}, {"f32_flops", peak.f32}, {"bf16_flops", peak.bf16}, {"read_bytes_per_second", peak.read}})
            .dump());
    return 0;
  }
  fmt::print("{} threads, kernels {}\n", run.threads, ops::isa_name());
  fmt::print("f32 FMA peak   {:8.1f} GFLOP/s (registers only)\n", peak.f32 / 1e9);
  if (peak.bf16 > 0) fmt::print("bf16 peak      {:8.1f} GFLOP/s (registers only)\n", peak.bf16 / 1e9);
  fmt::print("memory reads   {:8.1f} GB/s\n", peak.read / 1e9);
  return 0;
}

// One timed piece of work: FLOPs of a call, or bytes moved when it is limited by memory.
struct Timed {
  std::string name;
  double flops, bytes;
  std::function<void()> call;
};

struct OpsFixture {
  Run run;
  Arena memory;
  DType dtype;
  std::vector<std::unique_ptr<Param>> params;
  OpsFixture(int threads, DType type) : run(threads, type), dtype(type) {}

  Tensor tensor(DType type, int64_t rows, int64_t cols) {
    Tensor t = memory.alloc(type, {rows, cols});
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float x = static_cast<float>(i % 251) / 251 - 0.5f;
      if (type == DType::bf16) t.as<bf16>()[i] = to_bf16(x);
      else t.as<float>()[i] = x;
    }
    return t;
  }
  Param& param(int64_t groups, int64_t out, int64_t in) {
    Param& p = *params.emplace_back(std::make_unique<Param>());
    p.value = tensor(DType::f32, groups * out, in).reshape({groups, out, in});
    p.grad = memory.alloc_zeroed(DType::f32, {groups, out, in});
    return p;
  }
};

// The products of an expert bank of 8 x [1024, 384] over 4096 rows, and of a dense layer, each way.
void add_products(OpsFixture& x, std::vector<Timed>& list) {
  struct Shape {
    const char* name;
    int64_t groups, rows, out, in;
  };
  for (const Shape& s : {Shape{"experts 8 x [1024, 384], 4096 rows", 8, 4096, 1024, 384}, Shape{"dense [384, 384], 2048 rows", 1, 2048, 384, 384}}) {
    auto offsets = std::make_shared<std::vector<int64_t>>();
    for (int64_t e = 0; e <= s.groups; ++e) offsets->push_back(s.rows * e / s.groups);
    Param& w = x.param(s.groups, s.out, s.in);
    const Tensor in = x.tensor(x.dtype, s.rows, s.in), out = x.tensor(x.dtype, s.rows, s.out);
    const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
    list.push_back({fmt::format("forward  {}", s.name), flops, 0, [&x, &w, in, out, offsets] { ops::matmul_forward(x.run, out, in, w, *offsets); }});
    list.push_back({fmt::format("dx       {}", s.name), flops, 0, [&x, &w, in, out, offsets] { ops::matmul_dx(x.run, in, out, w, *offsets); }});
    list.push_back({fmt::format("dw       {}", s.name), flops, 0, [&x, &w, in, out, offsets] { ops::matmul_dw(x.run, w, out, in, *offsets); }});
  }
}

void add_attention(OpsFixture& x, std::vector<Timed>& list) {
  constexpr int64_t kRows = 8, kContext = 256, kHeads = 6, kWidth = 64, kTokens = kRows * kContext;
  auto bounds = std::make_shared<std::vector<int64_t>>();
  auto positions = std::make_shared<std::vector<int32_t>>();
  for (int64_t s = 0; s <= kRows; ++s) bounds->push_back(s * kContext);
  for (int64_t n = 0; n < kTokens; ++n) positions->push_back(static_cast<int32_t>(n % kContext));
  const auto matrix = [&] { return x.tensor(x.dtype, kTokens, kHeads * kWidth); };
  const Tensor q = matrix(), k = matrix(), v = matrix(), o = matrix(), dq = matrix(), dk = matrix(), dv = matrix(), lse = x.tensor(DType::f32, kTokens, kHeads);
  const double flops = 4.0 * static_cast<double>(kTokens * kHeads * kWidth) * kContext / 2;
  const auto view = [=] { return ops::KvView{k, v, *bounds, std::span<const int64_t>(*bounds).first(static_cast<size_t>(kRows))}; };
  list.push_back({"attention forward, 8 x 256 tokens, 6 heads of 64", flops, 0,
                  [=, &x] { ops::attention_forward(x.run, o, lse, q, view(), *positions, kHeads, kHeads, 0.125f); }});
  list.push_back({"attention backward", 2.5 * flops, 0,
                  [=, &x] { ops::attention_backward(x.run, dq, dk, dv, o, q, view(), o, lse, *positions, kHeads, kHeads, 0.125f); }});
}

void add_row_wise(OpsFixture& x, std::vector<Timed>& list) {
  constexpr int64_t kTokens = 2048, kWidth = 384, kFfn = 1024, kRows = 4096, kParams = int64_t{1} << 24;
  const double a = static_cast<double>(size_of(x.dtype));
  const Tensor h = x.tensor(DType::f32, kTokens, kWidth), y = x.tensor(x.dtype, kTokens, kWidth), rstd = x.memory.alloc(DType::f32, {kTokens});
  Param& weight = *x.params.emplace_back(std::make_unique<Param>());
  weight.value = x.memory.alloc_zeroed(DType::f32, {kWidth});
  list.push_back(
      {"rms_norm 2048 x 384", 0, kTokens * kWidth * (4 + a), [&x, &weight, h, y, rstd] { ops::rms_norm_forward(x.run, y, rstd, h, weight, 1e-5f); }});
  const Tensor gate = x.tensor(x.dtype, kRows, kFfn), up = x.tensor(x.dtype, kRows, kFfn), hidden = x.tensor(x.dtype, kRows, kFfn),
               w = x.memory.alloc_zeroed(DType::f32, {kRows});
  list.push_back({"swiglu with weight 4096 x 1024", 0, 3 * kRows * kFfn * a,
                  [&x, hidden, gate, up, w] { ops::ffn_act_forward(x.run, hidden, gate, up, w, ops::Act::silu); }});
  Param& p = x.param(1, 1, kParams);
  const Tensor m = x.tensor(DType::f32, 1, kParams).reshape({1, 1, kParams}), v = x.tensor(DType::f32, 1, kParams).reshape({1, 1, kParams});
  std::fill_n(v.as<float>(), kParams, 1.0f);
  list.push_back({"adamw 16M parameters", 0, 7.0 * 4 * kParams, [&x, &p, m, v] {
                    p.grad_is_zero = false;
                    ops::adamw_step(x.run, p, m, v, {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1});
                  }});
}

int run_ops(const Flags& f) {
  Run probe(thread_count(f.threads));
  const Peak peak = measure_peak(probe);
  Json rows = Json::array();
  for (DType dtype : {DType::f32, DType::bf16}) {
    OpsFixture fixture(probe.threads, dtype);
    std::vector<Timed> list;
    add_products(fixture, list);
    add_attention(fixture, list);
    add_row_wise(fixture, list);
    if (!f.json) fmt::print("{} ({} threads)\n", name_of(dtype), probe.threads);
    for (const Timed& t : list) {
      t.call();
      std::vector<double> seconds;
      for (int i = 0; i < kRepeats; ++i) {
        const auto start = Clock::now();
        t.call();
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
      }
      const double s = median(seconds), rate = (t.flops > 0 ? t.flops : t.bytes) / s, share = rate / (t.flops > 0 ? peak.of(dtype) : peak.read);
      rows.push_back({{"op", t.name},
                      {"dtype", name_of(dtype)},
                      {"ms", s * 1e3},
                      {t.flops > 0 ? "flops_per_second" : "bytes_per_second", rate},
                      {"share_of_peak", share}});
      if (!f.json)
        fmt::print("  {:<52}{:8.3f} ms {:8.1f} {} {:5.1f}% of {}\n", t.name, s * 1e3, rate / 1e9, t.flops > 0 ? "GFLOP/s" : "GB/s   ", 100 * share,
                   t.flops > 0 ? "peak" : "read rate");
    }
  }
  if (f.json) fmt::print("{}\n", rows.dump());
  else fmt::print("what fits the caches can exceed the rate of reading memory\n");
  return 0;
}

int run_train(Flags& f) {
  SetupOptions& o = f.setup;
  FieldList list = fields(o);
  apply_files(list, o, f.setup_given);
  const int64_t vocab = vocabulary_of(o.tokenizer);
  o.train = resolved(o.train);
  o.train.steps += f.warmup_steps;
  validate(o.train);
  const ModelConfig config = make_config(o.model, vocab, o.train.context);
  const int64_t tokens_read = 4 * o.train.batch * o.train.accumulate * o.train.context + 1;
  MemoryNeed beside;
  beside.add("text", 2 * tokens_read * static_cast<int64_t>(sizeof(int32_t)));  // the ids, and the corpus made of them
  check_before_weights(config, o.train, f.memory.limits, beside);
  Model model(config);
  model.initialise(o.train.seed);
  std::vector<int32_t> ids(static_cast<size_t>(tokens_read));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(o.train.seed), i, vocab));
  const Corpus corpus(std::move(ids));
  const std::string foretold = check_before_training(config, o.train, f.memory.limits);
  if (f.memory.show) tell("memory: {}\n", foretold);
  Run probe(o.train.threads);
  const double peak = ops::measure_peak_flops(probe, o.train.dtype, kPeakSeconds);
  Trainer trainer(model, o.train, corpus);
  std::vector<double> ms, share;
  for (int64_t i = 0; i < o.train.steps; ++i) {
    const auto start = Clock::now();
    const StepResult step = trainer.step();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i < f.warmup_steps) continue;
    ms.push_back(seconds * 1e3);
    share.push_back(step.flops / seconds / peak);
  }
  const double tokens = static_cast<double>(o.train.batch * o.train.accumulate * o.train.context);
  if (f.json)
    fmt::print("{}\n", Json({{"ms_per_step", ms},
                             {"median_ms", median(ms)},
                             {"tokens_per_second", tokens / median(ms) * 1e3},
                             {"share_of_peak", median(share)},
                             {"peak_flops", peak}})
                           .dump());
  else
    fmt::print(
        "{} steps of {} tokens, {}, {} threads: median {:.1f} ms a step (best {:.1f}, worst {:.1f}), {:.0f} tokens/s, {:.1f}% of the {:.0f} GFLOP/s peak\n",
        ms.size(), tokens, name_of(o.train.dtype), o.train.threads, median(ms), *std::min_element(ms.begin(), ms.end()),
        *std::max_element(ms.begin(), ms.end()), tokens / median(ms) * 1e3, 100 * median(share), peak / 1e9);
  return 0;
}

}  // namespace

Peak measure_peak(Run& run) {
  return {ops::measure_peak_flops(run, DType::f32, kPeakSeconds), ops::has_bf16_products() ? ops::measure_peak_flops(run, DType::bf16, kPeakSeconds) : 0,
          ops::measure_read_bandwidth(run, kPeakSeconds)};
}

Action add_bench(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  f->setup.train.steps = 5;
  app.require_subcommand(0, 1);
  add_flags(app, fields(f->bench), f->given);
  CLI::App* peak = app.add_subcommand("peak", "arithmetic in registers and reading from memory, on all threads")->group("Verbs");
  CLI::App* ops = app.add_subcommand("ops", "the engine's kernels against that")->group("Verbs");
  CLI::App* train = app.add_subcommand("train", "whole training steps on random tokens")->group("Verbs");
  for (CLI::App* sub : {peak, ops, train}) {
    FieldList list;
    if (sub != train) add_threads(list, f->threads);
    list.add("json", f->json, "one JSON value on standard output");
    if (sub == train) {
      list.add(fields(f->setup));
      add_memory(list, f->memory, false);
      list.add("warmup_steps", f->warmup_steps, "steps before the timed ones");
    }
    add_flags(*sub, std::move(list), f->setup_given);
  }
  return [f, &app, peak, ops] {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    if (chosen.empty()) {
      if (f->bench.model.empty()) fail_usage("moe bench is followed by peak, ops, train or a MODEL");
      return run_bench_model(f->bench);
    }
    for (const std::string& name : f->given.names())
      fail_usage("{} stands before '{}', where it is about a MODEL; write it behind or leave it out", field(name), chosen[0]->get_name());
    return peak->parsed() ? run_peak(*f) : ops->parsed() ? run_ops(*f) : run_train(*f);
  };
}

}  // namespace moe::cli
