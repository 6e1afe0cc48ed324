#include "evaluate/score.h"
#include "hub/named_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "evaluate/options.h"
#include "evaluate/routing_record.h"
#include "hub/hub.h"
#include "infer/eval_routing.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"
#include "jobs/replies.h"
#include "text/corpus.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, text, record, replay;
  ScoreOptions score{.window = 0};  // 0: the default
  ComputeOptions compute;
  MemoryOptions memory;
  bool json = false;
  Given given;
};

EvalRouting recorded_routing(const std::string& name, const std::string& path) {
  const std::vector<std::string>& names = eval_routing_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) fail_usage("{}: \"routing\" has no value '{}'{}", path, printable(name, 40), suggestion(printable(name, 40), names));
  return static_cast<EvalRouting>(found - names.begin());
}

// A record to replay, the routing and windows it was made with where the user asks for no others, and what the model would have chosen instead.
struct Replay {
  RoutingRecord record;
  Agreement agreement{};

  // What the user left open becomes the record's.
  Replay(const std::string& path, ScoreOptions& o) : record(RoutingRecord::open(path)) {
    const RecordInfo& info = record.info();
    if (!o.routing) o.routing = recorded_routing(info.routing, path);
    if (o.window == 0) o.window = info.window;
    if (o.window != info.window) fail_usage("--window is {}, but {} has windows of {}; leave --window out", o.window, path, info.window);
    if (o.windows == 0) o.windows = info.windows;
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
  if (f.score.per_token && !f.json) fail_usage("--per-token prints an array and needs --json");
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  const DType dtype = f.compute.dtype.value_or(natural_dtype(*loaded.model));
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
  prepare_memory(f.model, scored_use(*loaded.model, plan.options, dtype), beside, f.memory, "lower --window, or read the window with --chunk", on_screen());
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

Action add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->model);
  list.add("text", f->text, "a text file, or a folder of them").required();
  list.add(fields(f->score));
  list.add(fields(f->compute));
  add_memory(list, f->memory);
  list.add("record", f->record, "write here which experts each token went to, and with which weights: a safetensors file (docs/replay.md)");
  list.add("replay", f->replay,
           "send each token to the experts that this record has for it, with this model's weights, and print for each layer how many of them the model "
           "would have chosen itself. The text must be the recorded one; @window and @routing default to the record's");
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_score(*f); };
}

}  // namespace moe::cli
