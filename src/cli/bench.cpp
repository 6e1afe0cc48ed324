// What this machine can do (peak), what the engine makes of it op by op (ops), in whole training
// steps (train), and with a MODEL; and how fast processes reach each other (network).
#include "jobs/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/among.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/words.h"
#include "jobs/network.h"
#include "ops/ops.h"

namespace moe::cli {
namespace {

constexpr const char* kCaches = "what fits the caches can exceed the rate of reading memory\n";

struct Flags {
  BenchModelJob model;
  BenchTrainJob train;
  BenchLayerJob layer;
  int threads = 0;
  bool model_json = false, json = false;  // before and behind the words below
  Given given, given_behind;
};

int run_peak(const Flags& f) {
  Run run(thread_count(f.threads));
  const Peak peak = measure_peak(run);
  if (f.json) {
    print_json(to_json(peak));
    return 0;
  }
  fmt::print("{}, kernels {}\n", counted(run.threads, "thread"), ops::isa_name());
  fmt::print("f32 FMA peak   {:8.1f} GFLOP/s (registers only)\n", peak.f32 / 1e9);
  if (peak.bf16 > 0)
    fmt::print("bf16 peak      {:8.1f} GFLOP/s (registers only)\n", peak.bf16 / 1e9);
  fmt::print("memory reads   {:8.1f} GB/s\n", peak.read / 1e9);
  return 0;
}

int run_ops(const Flags& f) {
  std::optional<DType> heading;
  Json rows = Json::array();
  bench_ops(f.threads, [&](const OpTiming& op, int threads) {
    rows.push_back(to_json(op));
    if (f.json) return;
    if (heading != op.dtype) fmt::print("{} ({} threads)\n", name_of(op.dtype), threads);
    heading = op.dtype;
    fmt::print("  {:<52}{:8.3f} ms {:8.1f} {} {:5.1f}% of {}\n", op.name, op.seconds * 1e3,
               op.rate / 1e9, op.is_arithmetic ? "GFLOP/s" : "GB/s   ", 100 * op.share,
               op.is_arithmetic ? "peak" : "read rate");
  });
  if (f.json) print_json(rows);
  else fmt::print("{}", kCaches);
  return 0;
}

int run_train_bench(Flags& f) {
  const StepTimings t = bench_train(f.train, f.given_behind, on_screen());
  if (f.json) print_json(to_json(t));
  else
    fmt::print(
        "{} steps of {} tokens, {}, {} threads: median {:.1f} ms a step (best {:.1f}, worst "
        "{:.1f}), {:.0f} tokens/s, {:.1f}% of the {:.0f} GFLOP/s peak\n",
        t.ms.size(), t.tokens, name_of(t.dtype), t.threads, median(t.ms),
        *std::min_element(t.ms.begin(), t.ms.end()), *std::max_element(t.ms.begin(), t.ms.end()),
        t.tokens_per_second(), 100 * median(t.share), t.peak / 1e9);
  return 0;
}

int run_layer(const Flags& f) {
  const LayerTimings t = bench_layer(f.layer);
  if (f.json) print_json(to_json(t));
  else
    fmt::print(
        "forward and backward of {} tokens, {}: median {:.2f} ms of {}, {:.1f}% of the {:.0f} "
        "GFLOP/s peak\n",
        t.tokens, name_of(t.dtype), 1e3 * median(t.seconds), t.seconds.size(),
        100 * t.flops / median(t.seconds) / t.peak, t.peak / 1e9);
  return 0;
}

int run_network(const Flags& f, const comm::World& world) {
  const NetworkTimings t = bench_network(world.group());
  if (f.json) {
    print_json(to_json(t));
    return 0;
  }
  fmt::print("{} processes, each sends to all others at the same time\n", t.processes);
  for (const NetworkTiming& s : t.sizes)
    fmt::print("{:>9} to each  {:10.1f} us  {:9.4f} GB/s a process\n",
               human_bytes(static_cast<double>(s.bytes)), 1e6 * s.seconds, s.rate / 1e9);
  fmt::print("moe plan --network {:.4g} --latency {:.4g}\n", t.rate() / 1e9, 1e6 * t.latency());
  return 0;
}

double worst_rate(int64_t tokens, const std::vector<double>& seconds) {
  return static_cast<double>(tokens) / *std::max_element(seconds.begin(), seconds.end());
}

// Two tables in Markdown, their columns lined up: what is read against the arithmetic, what is
// written against the memory.
void print_lengths(const ModelTimings& t) {
  fmt::print(
      "| prompt of | tokens/s |    worst | Gop a token |     Gop/s | of the peak |\n"
      "|----------:|---------:|---------:|------------:|----------:|------------:|\n");
  for (const LengthTimings& at : t.lengths)
    fmt::print("| {:9} | {:8.1f} | {:8.1f} | {:11.3f} | {:9.1f} | {:10.1f}% |\n", at.speed.prompt,
               at.speed.prompt_rate(), worst_rate(at.speed.prompt, at.speed.prompt_seconds),
               at.flops_per_token / 1e9, at.flops() / 1e9, 100 * at.flops() / t.limit);
  fmt::print(
      "\n| written behind | tokens/s |    worst | weights a token | cache a token |   GB/s "
      "| of the read rate | joins a token |\n"
      "|---------------:|---------:|---------:|----------------:|--------------:|-------:"
      "|-----------------:|--------------:|\n");
  for (const LengthTimings& at : t.lengths)
    fmt::print("| {:14} | {:8.1f} | {:8.1f} | {:>15} | {:>13} | {:6.2f} | {:15.1f}% | {:13.1f} |\n",
               at.speed.prompt, at.speed.decode_rate(),
               worst_rate(at.speed.tokens, at.speed.decode_seconds), human_bytes(at.weight_bytes),
               human_bytes(at.cache_bytes), at.read() / 1e9, 100 * at.read() / t.peak.read,
               at.speed.joins_per_token());
}

int run_model(const Flags& f) {
  if (f.model.model.empty())
    fail_usage("moe bench is followed by peak, ops, train, layer, network or a MODEL");
  const ModelTimings t = bench_model(f.model, on_screen());
  if (f.model_json) {
    print_json(to_json(t));
    return 0;
  }
  const Speed& first = t.lengths.front().speed;
  fmt::print(
      "{}: {} activations, {} cache, {}, kernels {}; {} written; median of {} once "
      "the weights are packed\n",
      t.model, name_of(t.dtype), name_of(t.cache_dtype), counted(t.peak.threads, "thread"),
      ops::isa_name(), counted(first.tokens, "token"), first.prompt_seconds.size());
  fmt::print("measured beside it: peak {:.0f} Gop/s in {}, read rate {:.1f} GB/s\n\n",
             t.limit / 1e9, t.products, t.peak.read / 1e9);
  print_lengths(t);
  fmt::print("\nfirst token of the first prompt {:.2f} s after the start, {:.2f} s of it loading\n",
             t.first_token_seconds, t.load_seconds);
  if (std::any_of(t.lengths.begin(), t.lengths.end(),
                  [&](const LengthTimings& at) { return at.read() > t.peak.read; }))
    fmt::print("{}", kCaches);
  if (t.hot) tell_hot_set(*t.hot, on_screen());
  return 0;
}

}  // namespace

Action add_bench(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.require_subcommand(0, 1);
  FieldList of_model = fields(f->model);
  of_model.add("json", f->model_json, "one JSON object on standard output");
  add_flags(app, std::move(of_model), f->given);
  CLI::App* peak =
      app.add_subcommand("peak", "arithmetic in registers and reading from memory, on all threads")
          ->group("Verbs");
  CLI::App* ops = app.add_subcommand("ops", "the engine's kernels against that")->group("Verbs");
  CLI::App* train =
      app.add_subcommand("train", "whole training steps on random tokens")->group("Verbs");
  CLI::App* layer =
      app.add_subcommand("layer", "an MoE layer, forward and backward")->group("Verbs");
  CLI::App* network =
      app.add_subcommand("network", "under mpirun: exchanges between processes")->group("Verbs");
  for (CLI::App* sub : {peak, ops, train, layer, network}) {
    FieldList list;
    if (sub == peak || sub == ops) add_threads(list, f->threads);
    list.add("json", f->json, "one JSON value on standard output");
    if (sub == train) list.add(fields(f->train));
    if (sub == layer) list.add(fields(f->layer));
    add_flags(*sub, std::move(list), f->given_behind);
  }
  return [f, &app, peak, ops, train, layer] {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    if (chosen.empty()) {
      if (f->given.has("prompt") && f->given.has("prompts"))
        fail_usage("@prompt and @prompts both say how long prompts are; give one of them");
      return run_model(*f);
    }
    for (const std::string& name : f->given.names())
      fail_usage(
          "{} stands before '{}', where it is about a MODEL; write it behind or leave it out",
          field(name), chosen[0]->get_name());
    if (peak->parsed()) return run_peak(*f);
    if (ops->parsed()) return run_ops(*f);
    if (train->parsed()) return run_train_bench(*f);
    if (layer->parsed()) return run_layer(*f);
    return run_among([&](const comm::World& world) { return run_network(*f, world); });
  };
}

}  // namespace moe::cli
