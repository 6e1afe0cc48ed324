#include "infer/score.h"
#include "hub/named_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "cli/routing_options.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "hub/hub.h"
#include "infer/evaluation.h"
#include "infer/routing_record.h"
#include "text/corpus.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, text, record, replay;
  ScoreFlags score;
  ComputeFlags compute;
  MemoryFlags memory;
  bool json = false;
};

// A record to replay, the routing and windows it was made with where the user asks for no others, and what the model would have chosen instead.
struct Replay {
  RoutingRecord record;
  Agreement agreement{};

  // What the user left open becomes the record's.
  Replay(const std::string& path, ScoreFlags& f) : record(RoutingRecord::open(path)) {
    const RecordInfo& info = record.info();
    if (f.routing.empty()) f.options.routing = parse_eval_routing(printable(info.routing, 40), (path + ": \"routing\"").c_str());
    if (f.options.window == 0) f.options.window = info.window;
    if (f.options.window != info.window) fail_usage("--window is {}, but {} has windows of {}; leave --window out", f.options.window, path, info.window);
    if (f.options.windows == 0) f.options.windows = info.windows;
  }

  // Checks that model and text are those of the record, and hooks into the scoring.
  void join(ScoreOptions& options, const ModelConfig& config, const RoutingSpec& spec, const Tokenizer& tokenizer, std::span<const int32_t> ids) {
    record.check_model(config, spec);
    record.check_text(ids, tokenizer.spec());
    options.recorded = [this](int64_t window) { return record.window(window); };
    const auto others = options.on_routing;
    options.on_routing = [this, others, experts = spec.experts](int64_t window, int64_t layer, const MoeLayer::Saved& saved) {
      agreement.add(window, layer, saved, experts);
      if (others) others(window, layer, saved);
    };
  }

  double alike() const { return static_cast<double>(agreement.tokens_alike) / static_cast<double>(std::max<int64_t>(agreement.tokens, 1)); }
  Json to_json(const std::string& path) const {
    Json layers = Json::array();
    for (const Agreement::Layer& l : agreement.layers) layers.push_back({{"layer", l.layer}, {"agreement", l.share()}, {"chance", l.chance()}});
    const RecordInfo& info = record.info();
    return {{"file", path}, {"recipe", info.recipe}, {"routing", info.routing}, {"dtype", info.dtype}, {"tokens_alike", alike()}, {"layers", layers}};
  }
  void print(const std::string& path) const {
    const RecordInfo& info = record.info();
    fmt::print("replayed {} (recipe {}, {}, {}): the model itself would have routed {:.2f}% of the tokens so in every layer\n", path,
               printable(info.recipe, 40), printable(info.routing, 40), printable(info.dtype, 40), 100 * alike());
    fmt::print("layer  choices it would have made   by chance\n");
    for (const Agreement::Layer& l : agreement.layers) fmt::print("{:5}  {:24.2f}%   {:8.2f}%\n", l.layer, 100 * l.share(), 100 * l.chance());
  }
};

RecordInfo record_info(const ScorePlan& plan, const Tokenizer& tokenizer, const std::string& dtype, int64_t slots, int64_t windows) {
  return {.routing = std::string(name_of(plan.routing)),
          .dtype = dtype,
          .tokenizer = tokenizer.spec(),
          .slots = slots,
          .window = plan.options.window,
          .windows = windows};
}

int run_score(Flags& f) {
  if (f.score.options.per_token && !f.json) fail_usage("--per-token prints an array and needs --json");
  const std::optional<DType> asked = parse_compute_dtype(f.compute.dtype);
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  const DType dtype = asked.value_or(natural_dtype(*loaded.model));
  const ModelConfig& config = loaded.model->config();
  std::optional<Replay> replay;
  if (!f.replay.empty()) replay.emplace(f.replay, f.score);
  ScorePlan plan = score_plan(f.score, config);
  if (!plan.not_causal_because.empty())
    tell("note: routed {} this loss is too low for a text read from left to right: {}\n", name_of(plan.routing), plan.not_causal_because);
  const Corpus corpus({f.text}, *loaded.tokenizer);
  const int64_t windows = scored_windows(corpus.size(), plan.options);
  Run run(thread_count(f.compute.threads), dtype);
  MemoryNeed beside;
  beside.add("text", corpus.size() * static_cast<int64_t>(sizeof(int32_t)));
  prepare_memory(f.model, scored_use(*loaded.model, plan.options, dtype), beside, f.memory, "lower --window, or read the window with --chunk");
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());

  const RoutingSpec spec = scored_routing(config, plan.options);
  const auto scored = std::span(ids).first(static_cast<size_t>(windows * plan.options.window));
  std::optional<RoutingRecorder> recorder;
  if (!f.record.empty()) {
    recorder.emplace(f.record, config, record_info(plan, *loaded.tokenizer, std::string(name_of(dtype)), spec.slots(), windows), scored);
    plan.options.on_routing = [&](int64_t window, int64_t layer, const MoeLayer::Saved& saved) { recorder->add(window, layer, saved); };
  }
  if (replay) replay->join(plan.options, config, spec, *loaded.tokenizer, scored);

  ProgressLine progress;
  const std::atomic<bool>& stop = watch_interrupts();
  const Score s = score(*loaded.model, run, *loaded.tokenizer, ids, plan.options, [&](int64_t done, int64_t total) {
    if (stop) fail("interrupted after {} of {} windows", done, total);
    progress.show(done, total, "windows");
  });
  if (recorder) recorder->commit();
  if (replay) replay->agreement.finish();
  if (f.json) {
    Json reply = score_reply(s, plan);
    if (recorder) reply["record"] = f.record;
    if (replay) reply["replay"] = replay->to_json(f.replay);
    print_json(reply);
    return 0;
  }
  fmt::print("{} tokens in {} windows of {}: {:.4f} nats per token, perplexity {:.3f}, {:.4f} bits per byte\n", s.tokens, s.windows, plan.options.window,
             s.nats_per_token, s.perplexity, s.bits_per_byte);
  if (replay) replay->print(f.replay);
  if (recorder) fmt::print("the choices of {} layers for {} tokens are in {}\n", config.moe_layer_count(), scored.size(), f.record);
  return 0;
}

}  // namespace

void add_score_options(CLI::App& app, ScoreFlags& f) {
  app.add_option("--window", f.options.window,
                 "tokens a window; windows do not overlap, the remainder is dropped; default: 2048, or the model's context where that is shorter");
  app.add_option("--windows", f.options.windows, "at most this many; 0: all")->capture_default_str();
  app.add_option("--chunk", f.options.chunk, "read a window through the cache that generation uses, this many tokens at a time; 0: in one piece")
      ->capture_default_str();
  takes(app.add_option(
            "--routing", f.routing,
            "dropless; as-trained: with the recipe's capacity for evaluation; or threshold, learned in training where experts choose. Default: dropless, "
            "or threshold where experts choose"),
        eval_routing_names());
  add_top_k_experts(app, f.options.top_k_experts);
  app.add_flag("--per-token", f.options.per_token, "with --json: the ids and their log-probabilities (null for the first of each window)");
}

ScorePlan score_plan(const ScoreFlags& f, const ModelConfig& config) {
  ScorePlan plan{.options = f.options};
  if (!f.routing.empty()) plan.options.routing = parse_eval_routing(f.routing, "--routing");
  if (f.options.window == 0) plan.options.window = default_window(config);
  const bool routed = config.moe_layer_count() > 0;
  plan.routing = plan.options.routing.value_or(routed ? default_eval(config.routing) : EvalRouting::dropless);
  if (routed) plan.not_causal_because = moe::not_causal_because(config.routing, plan.routing);
  return plan;
}

Json score_reply(const Score& s, const ScorePlan& plan) {
  Json out = {{"tokens", s.tokens},
              {"windows", s.windows},
              {"window", plan.options.window},
              {"nats_per_token", s.nats_per_token},
              {"perplexity", s.perplexity},
              {"bits_per_byte", s.bits_per_byte},
              {"causal", plan.not_causal_because.empty()},
              {"routing", name_of(plan.routing)}};
  if (plan.options.per_token) {
    out["ids"] = s.ids;
    Json& logprobs = out["logprobs"] = Json::array();
    for (const std::optional<double>& p : s.logprobs) logprobs.push_back(p ? Json(*p) : Json(nullptr));
  }
  return out;
}

Action add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, fmt::format("a model: {}", kModelIs))->required();
  app.add_option("--text", f->text, "a text file, or a folder of them")->required();
  add_score_options(app, f->score);
  add_compute_options(app, f->compute);
  add_memory_options(app, f->memory);
  app.add_option("--record", f->record, "write here which experts each token went to, and with which weights: a safetensors file (docs/replay.md)");
  app.add_option("--replay", f->replay,
                 "send each token to the experts that this record has for it, with this model's weights, and print for each layer how many of them the model "
                 "would have chosen itself. The text must be the recorded one; --window and --routing default to the record's");
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_score(*f); };
}

}  // namespace moe::cli
