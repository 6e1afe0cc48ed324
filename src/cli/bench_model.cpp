// `moe bench MODEL`: how fast a model reads a prompt and writes tokens, beside what this machine could do at most, measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/bench.h"
#include "cli/routing_options.h"
#include "cli/screen.h"
#include "core/error.h"
#include "core/json.h"
#include "hub/hub.h"
#include "infer/evaluation.h"
#include "infer/memory_plan.h"
#include "model/cost.h"

namespace moe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMost = int64_t{1} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Speed {
  std::vector<double> prompt, decode;  // seconds of each repeat
  double load = 0, first_token = 0;    // seconds since the command began
  std::vector<std::vector<int64_t>> expert_rows;
};

void check(const BenchModelFlags& f) {
  const auto in_range = [](const char* flag, int64_t value) {
    if (value < 1 || value > kMost) fail_usage("{} is {}; give 1 to {}", flag, value, kMost);
  };
  in_range("--prompt", f.prompt);
  in_range("--tokens", f.tokens);
  in_range("--repeats", f.repeats);
}

void check_context(const BenchModelFlags& f, const ModelConfig& config) {
  if (config.positions == Positions::learned && f.prompt + f.tokens > config.context)
    fail_usage("--prompt {} and --tokens {} need more than the {} positions that the model has learned; lower one of them", f.prompt, f.tokens, config.context);
}

// Every repeat has ids of its own, so that no expert is met more often than chance has it.
std::vector<int32_t> random_ids(const BenchModelFlags& f, int64_t vocab, int64_t repeat) {
  const RngKey key = RngKey::from_seed(f.seed).fold(static_cast<uint64_t>(repeat));
  std::vector<int32_t> ids(static_cast<size_t>(f.prompt + f.tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(uniform_index(key, i, static_cast<uint64_t>(vocab)));
  return ids;
}

// Experts are packed when rows first meet them, so prompts are read and not counted until one finds every expert packed.
int64_t warm_up(const BenchModelFlags& f, const Model& model, Session& session, Clock::time_point start, Speed& speed) {
  constexpr int64_t kMostPrompts = 8;
  int64_t prompts = 0, packed = -1;
  while (prompts < kMostPrompts && model.pack_budget().used != packed) {
    packed = model.pack_budget().used;
    const std::vector<int32_t> ids = random_ids(f, model.config().vocab, prompts);
    const auto all = std::span<const int32_t>(ids);
    session.cut(0);
    session.feed(all.first(static_cast<size_t>(f.prompt)));
    if (prompts++ == 0) speed.first_token = seconds_since(start);
    session.feed(all.subspan(static_cast<size_t>(f.prompt), 1));
  }
  return prompts;
}

void measure(const BenchModelFlags& f, const Model& model, Session& session, Clock::time_point start, Speed& speed) {
  const int64_t before = warm_up(f, model, session, start, speed);
  for (int64_t repeat = before; repeat < before + f.repeats; ++repeat) {
    const std::vector<int32_t> ids = random_ids(f, model.config().vocab, repeat);
    const auto all = std::span<const int32_t>(ids);
    session.cut(0);
    const auto begin = Clock::now();
    session.feed(all.first(static_cast<size_t>(f.prompt)));
    speed.prompt.push_back(seconds_since(begin));
    const auto middle = Clock::now();
    for (int64_t i = f.prompt; i < f.prompt + f.tokens; ++i) session.feed(all.subspan(static_cast<size_t>(i), 1));
    speed.decode.push_back(seconds_since(middle));
  }
  speed.expert_rows = session.expert_rows();
}

// Of reading a prompt, whose last row alone meets the head.
double prompt_flops(const ModelConfig& config, int64_t prompt) {
  const FlopCount flops = count_flops(config, prompt);
  return static_cast<double>(prompt) * (flops.forward() - flops.head) + flops.head;
}

Json spread(double tokens, const std::vector<double>& seconds) {
  return {{"median", tokens / median(seconds)}, {"worst", tokens / *std::max_element(seconds.begin(), seconds.end())}, {"seconds", seconds}};
}

}  // namespace

void add_bench_model_options(CLI::App& app, BenchModelFlags& f) {
  app.add_option("MODEL", f.model, "a model folder or a .gguf file: how fast it reads a prompt and writes tokens; or one of the words below");
  app.add_option("--prompt", f.prompt, "tokens of the prompt, drawn at random")->capture_default_str();
  app.add_option("--tokens", f.tokens, "tokens to write")->capture_default_str();
  app.add_option("--repeats", f.repeats,
                 "how often, after prompts that are not counted because weights are packed while they are read; printed are the median and the worst")
      ->capture_default_str();
  app.add_option("--seed", f.seed, "of the tokens")->capture_default_str();
  add_top_k_experts(app, f.top_k_experts);
  add_cache_dtype(app, f.cache_dtype);
  add_compute_options(app, f.compute);
  add_memory_options(app, f.memory);
  app.add_flag("--json", f.json, "one JSON object on standard output");
}

int run_bench_model(const BenchModelFlags& f) {
  check(f);
  const std::optional<DType> asked = parse_compute_dtype(f.compute.dtype);
  SessionOptions options{.top_k_experts = f.top_k_experts, .cache_dtype = parse_cache_dtype(f.cache_dtype)};
  const auto start = Clock::now();
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  Model& model = *loaded.model;
  ModelConfig config = model.config();
  check_context(f, config);
  Speed speed{.load = seconds_since(start)};
  Run run(thread_count(f.compute.threads), asked.value_or(natural_dtype(model)));
  const bool large = prepare_memory(f.model, model, f.memory, options, run.compute, f.prompt + f.tokens);
  if (f.top_k_experts > 0) config.routing.top_k = f.top_k_experts;
  Session session(model, run, f.prompt + f.tokens, options);
  measure(f, model, session, start, speed);
  const Peak peak = measure_peak(run);
  const double integers = mostly_quantised(model) ? ops::measure_peak_int8(run, kPeakSeconds) : 0;
  const double limit = integers > 0 ? integers : peak.of(run.compute);
  const std::string_view products = integers > 0 ? "int8" : name_of(run.compute);

  const auto prompt = static_cast<double>(f.prompt), tokens = static_cast<double>(f.tokens);
  const double flops = prompt_flops(config, f.prompt) / median(speed.prompt), bytes = static_cast<double>(decode_bytes(model, config.routing.top_k)),
               read = bytes * tokens / median(speed.decode);
  const std::string_view cache = name_of(options.cache_dtype.value_or(run.compute));
  const bool tell_hot = large || f.memory.hot_set;
  if (f.json) {
    Json reply = {{"model", f.model},
                  {"threads", run.threads},
                  {"dtype", name_of(run.compute)},
                  {"cache_dtype", cache},
                  {"prompt", f.prompt},
                  {"tokens", f.tokens},
                  {"prompt_tokens_per_second", spread(prompt, speed.prompt)},
                  {"decode_tokens_per_second", spread(tokens, speed.decode)},
                  {"load_seconds", speed.load},
                  {"first_token_seconds", speed.first_token},
                  {"bytes_per_token", bytes},
                  {"read_bytes_per_second", peak.read},
                  {"share_of_read_rate", read / peak.read},
                  {"products", products},
                  {"peak_flops", limit},
                  {"share_of_peak", flops / limit}};
    if (tell_hot) reply["hot_set"] = to_json(hot_set(model, speed.expert_rows));
    print_json(reply);
    return 0;
  }
  const auto line = [](const char* what, double n, const std::vector<double>& seconds) {
    fmt::print("{:<18}{:9.1f} tokens/s, worst {:.1f}", what, n / median(seconds), n / *std::max_element(seconds.begin(), seconds.end()));
  };
  fmt::print("{}: {} activations, {} cache, {} threads; median of {} once the weights are packed\n", f.model, name_of(run.compute), cache, run.threads,
             speed.prompt.size());
  line(fmt::format("prompt of {}", f.prompt).c_str(), prompt, speed.prompt);
  fmt::print("; {:.1f}% of the {:.0f} Gop/s {} peak\n", 100 * flops / limit, limit / 1e9, products);
  line(fmt::format("{} tokens", f.tokens).c_str(), tokens, speed.decode);
  fmt::print("; {:.1f}% of the read rate of {:.1f} GB/s ({} of weights a token)\n", 100 * read / peak.read, peak.read / 1e9, human_bytes(bytes));
  fmt::print("{:<18}{:9.2f} s after the start, {:.2f} s of it loading\n", "first token", speed.first_token, speed.load);
  if (read > peak.read) fmt::print("what fits the caches can exceed the rate of reading memory\n");
  if (tell_hot) tell_hot_set(hot_set(model, speed.expert_rows));
  return 0;
}

}  // namespace moe::cli
