// `moe bench MODEL`: how fast a model reads a prompt and writes tokens, beside what this machine could do at most, measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/screen.h"
#include "core/error.h"
#include "core/json.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "infer/memory_plan.h"
#include "model/cost.h"
#include "ops/memory.h"
#include "options/common.h"

namespace moe::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Of reading a prompt, whose last row alone meets the head.
double prompt_flops(const ModelConfig& config, int64_t prompt) {
  const FlopCount flops = count_flops(config, prompt);
  return static_cast<double>(prompt) * (flops.forward() - flops.head) + flops.head;
}

Json spread(int64_t tokens, const std::vector<double>& seconds) {
  const auto n = static_cast<double>(tokens);
  return {{"median", n / median(seconds)}, {"worst", n / *std::max_element(seconds.begin(), seconds.end())}, {"seconds", seconds}};
}

}  // namespace

FieldList fields(BenchModelFlags& f) {
  FieldList list;
  list.add("MODEL", f.model, fmt::format("a model ({}): how fast it reads a prompt and writes tokens; or one of the words below", kModelIs)).positional();
  list.add(moe::fields(f.speed));
  add_top_k_experts(list, f.top_k_experts);
  add_cache_dtype(list, f.cache_dtype);
  list.add(moe::fields(f.compute));
  add_memory(list, f.memory);
  add_hot_set(list, f.memory);
  list.add("json", f.json, "one JSON object on standard output");
  return list;
}

int run_bench_model(const BenchModelFlags& f) {
  validate(f.speed);
  SessionOptions options{.top_k_experts = f.top_k_experts, .cache_dtype = f.cache_dtype};
  const auto start = Clock::now();
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  Model& model = *loaded.model;
  ModelConfig config = model.config();
  validate(f.speed, config);
  const double load = seconds_since(start);
  Run run(thread_count(f.compute.threads), f.compute.dtype.value_or(natural_dtype(model)));
  MemoryNeed beside;
  beside.add("measuring", ops::read_buffer_bytes());
  const bool large = prepare_memory(f.model, session_use(model, options, run.compute, f.speed.prompt, f.speed.prompt + f.speed.tokens), beside, f.memory,
                                    "lower --prompt or --tokens", on_screen());
  if (f.top_k_experts > 0) config.routing.top_k = f.top_k_experts;
  Session session(model, run, f.speed.prompt + f.speed.tokens, options);
  SpeedProbe probe(model, session, f.speed);
  double first_token = 0;
  probe.warm_up([&] { first_token = seconds_since(start); });
  for (int64_t i = 0; i < f.speed.repeats; ++i) probe.measure();
  const Speed& speed = probe.speed();
  const Peak peak = measure_peak(run);
  const double integers = mostly_quantised(model) ? ops::measure_peak_int8(run, kPeakSeconds) : 0;
  const double limit = integers > 0 ? integers : peak.of(run.compute);
  const std::string_view products = integers > 0 ? "int8" : name_of(run.compute);

  const double flops = prompt_flops(config, speed.prompt) / median(speed.prompt_seconds),
               bytes = static_cast<double>(decode_bytes(model, config.routing.top_k)), read = bytes * speed.decode_rate();
  const std::string_view cache = name_of(cache_dtype(options, model, run.compute));
  const bool tell_hot = large || f.memory.hot_set;
  if (f.json) {
    Json reply = {{"model", f.model},
                  {"threads", run.threads},
                  {"dtype", name_of(run.compute)},
                  {"cache_dtype", cache},
                  {"prompt", speed.prompt},
                  {"tokens", speed.tokens},
                  {"prompt_tokens_per_second", spread(speed.prompt, speed.prompt_seconds)},
                  {"decode_tokens_per_second", spread(speed.tokens, speed.decode_seconds)},
                  {"load_seconds", load},
                  {"first_token_seconds", first_token},
                  {"bytes_per_token", bytes},
                  {"read_bytes_per_second", peak.read},
                  {"share_of_read_rate", read / peak.read},
                  {"products", products},
                  {"peak_flops", limit},
                  {"share_of_peak", flops / limit}};
    if (tell_hot) reply["hot_set"] = to_json(hot_set(model, session.runner().expert_rows()), on_screen());
    print_json(reply);
    return 0;
  }
  const auto line = [](const std::string& what, int64_t tokens, const std::vector<double>& seconds) {
    const auto n = static_cast<double>(tokens);
    fmt::print("{:<18}{:9.1f} tokens/s, worst {:.1f}", what, n / median(seconds), n / *std::max_element(seconds.begin(), seconds.end()));
  };
  fmt::print("{}: {} activations, {} cache, {} threads; median of {} once the weights are packed\n", f.model, name_of(run.compute), cache, run.threads,
             speed.prompt_seconds.size());
  line(fmt::format("prompt of {}", speed.prompt), speed.prompt, speed.prompt_seconds);
  fmt::print("; {:.1f}% of the {:.0f} Gop/s {} peak\n", 100 * flops / limit, limit / 1e9, products);
  line(fmt::format("{} tokens", speed.tokens), speed.tokens, speed.decode_seconds);
  fmt::print("; {:.1f}% of the read rate of {:.1f} GB/s ({} of weights a token)\n", 100 * read / peak.read, peak.read / 1e9, human_bytes(bytes));
  fmt::print("{:<18}{:9.2f} s after the start, {:.2f} s of it loading\n", "first token", first_token, load);
  if (read > peak.read) fmt::print("what fits the caches can exceed the rate of reading memory\n");
  if (tell_hot) tell_hot_set(hot_set(model, session.runner().expert_rows()), on_screen());
  return 0;
}

}  // namespace moe::cli
