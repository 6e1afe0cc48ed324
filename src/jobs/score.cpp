#include "jobs/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "evaluate/options.h"
#include "hub/adapter.h"
#include "infer/eval_routing.h"
#include "jobs/launch.h"
#include "ops/devices.h"
#include "text/corpus.h"
#include "train/checkpoint.h"

namespace moe {
namespace {

EvalRouting recorded_routing(const std::string& name, const std::string& path) {
  const std::vector<std::string>& names = eval_routing_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail_usage("{}: \"routing\" has no value '{}'{}", path, printable(name, 40),
               suggestion(printable(name, 40), names));
  return static_cast<EvalRouting>(found - names.begin());
}

// A record to replay, the routing and windows it was made with where the user asks for no others,
// and what the model would have chosen instead.
struct Replay {
  RoutingRecord record;
  Agreement agreement{};

  // What the user left open becomes the record's. A model that does not route is refused by join().
  Replay(const std::string& path, ScoreOptions& o, const ModelConfig& config)
      : record(RoutingRecord::open(path)) {
    const RecordInfo& info = record.info();
    if (!o.routing && config.moe_layer_count() > 0)
      o.routing = recorded_routing(info.routing, path);
    if (o.window == 0) o.window = info.window;
    if (o.window != info.window)
      fail_usage("@window is {}, but {} has windows of {}; leave @window out", o.window, path,
                 info.window);
    if (o.windows == 0) o.windows = info.windows;
  }

  // Checks that model and text are those of the record, and hooks into the scoring.
  void join(ScoreOptions& options, const ModelConfig& config, const RoutingSpec& spec,
            const Tokenizer& tokenizer, std::span<const int32_t> ids) {
    record.check_model(config, spec);
    record.check_text(ids, tokenizer.spec());
    options.recorded = [this](int64_t window) { return record.window(window); };
    const auto others = options.on_routing;
    options.on_routing = [this, others, experts = spec.experts](int64_t window, int64_t layer,
                                                                const MoeLayer::Saved& saved) {
      agreement.add(window, layer, saved, experts);
      if (others) others(window, layer, saved);
    };
  }
};

RecordInfo record_info(const ScorePlan& plan, const Tokenizer& tokenizer, const std::string& dtype,
                       int64_t slots, int64_t windows) {
  return {.routing = std::string(name_of(plan.routing)),
          .dtype = dtype,
          .tokenizer = tokenizer.spec(),
          .slots = slots,
          .window = plan.options.window,
          .windows = windows};
}

}  // namespace

FieldList fields(ScoreJob& job) {
  FieldList list;
  add_adapter(list, job.adapter);
  list.add("text", job.text, "a text file, or a folder of them").required();
  list.add(fields(job.score));
  list.add(fields(job.compute));
  add_memory(list, job.memory);
  list.add("record", job.record,
           "write here which experts each token went to, and with which weights: a safetensors "
           "file (docs/replay.md)");
  list.add("replay", job.replay,
           "send each token to the experts that this record has for it, with this model's weights, "
           "and print for each layer how many of them the model "
           "would have chosen itself. The text must be the recorded one; @window and @routing "
           "default to the record's");
  return list;
}

ScoreReply score_model(const ScoreJob& job, const Watch& watch, const comm::Group& group) {
  ScoreOptions asked = job.score;
  LoadedModel loaded;
  std::optional<Corpus> text;
  comm::together(group, [&] {
    comm::need_one_process(group, job.compute.device);
    loaded = open_adapted(job.model, job.adapter, job.memory.limits, group);
    text.emplace(std::vector<std::string>{job.text}, *loaded.tokenizer);
  });
  const Corpus& corpus = *text;
  ScoreJob said = job;
  check_same_launch(group, fields(said.score), [&] {
    return comm::Facts{{"model", model_print(loaded.model.get())},
                       {field("text"), data_print(corpus).hash},
                       {field("replay"), job.replay}};
  });
  const DType dtype = compute_dtype(job.compute, *loaded.model);
  const ModelConfig& config = loaded.model->config();
  std::optional<Replay> replay;
  if (!job.replay.empty()) replay.emplace(job.replay, asked, config);
  ScorePlan plan = score_plan(asked, config);
  if (!plan.not_causal_because.empty())
    watch.tell(
        fmt::format("note: routed {} this loss is too low for a text read from left to right: {}",
                    name_of(plan.routing), plan.not_causal_because));
  if (group.is_first()) tell_of_context(config, plan.options.window, watch);
  const int64_t windows = scored_windows(corpus.size(), plan.options, {.text = job.text});
  Run run(thread_count(job.compute.threads), dtype, ops::device_of(job.compute.device));
  MemoryNeed beside;
  beside.add("text", corpus.size() * static_cast<int64_t>(sizeof(int32_t)));
  prepare_memory(job.model, scored_use(*loaded.model, plan.options, dtype), beside, job.memory,
                 marked("lower @window, or read the window with @chunk"), watch);
  loaded.model->move_to(run.device);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());

  const RoutingSpec spec = scored_routing(config, plan.options);
  const auto scored = std::span(ids).first(static_cast<size_t>(windows * plan.options.window));
  std::optional<RoutingRecorder> recorder;
  if (!job.record.empty() && group.is_first()) {
    recorder.emplace(
        job.record, config,
        record_info(plan, *loaded.tokenizer, std::string(name_of(dtype)), spec.slots(), windows),
        scored);
    plan.options.on_routing = [&](int64_t window, int64_t layer, const MoeLayer::Saved& saved) {
      recorder->add(window, layer, saved);
    };
  }
  if (replay) replay->join(plan.options, config, spec, *loaded.tokenizer, scored);

  const Progress progress = watch.begin();
  const auto check = [&](int64_t done, int64_t total) {
    if (watch.stopped()) fail("interrupted after {} of {} windows", done, total);
  };
  check(0, windows);
  Score s = score(*loaded.model, run, *loaded.tokenizer, ids, plan.options,
                  [&](int64_t done, int64_t total) {
                    check(done, total);
                    progress(done, total, "windows");
                  });
  if (recorder) recorder->commit();
  ScoreReply reply{plan, std::move(s), job.record, config.moe_layer_count(), std::ssize(scored),
                   {}};
  if (replay) {
    replay->agreement.finish();
    reply.replayed = {job.replay, replay->record.info(), std::move(replay->agreement)};
  }
  return reply;
}

double ScoreReply::Replayed::alike() const {
  return static_cast<double>(agreement.tokens_alike) /
         static_cast<double>(std::max<int64_t>(agreement.tokens, 1));
}

Json to_json(const ScoreReply& r) {
  Json reply = score_reply(r.score, r.plan);
  if (!r.record.empty()) reply["record"] = r.record;
  if (!r.replayed) return reply;
  Json layers = Json::array();
  for (const Agreement::Layer& l : r.replayed->agreement.layers)
    layers.push_back({{"layer", l.layer}, {"agreement", l.share()}, {"chance", l.chance()}});
  const RecordInfo& info = r.replayed->info;
  reply["replay"] = {{"file", r.replayed->file},
                     {"recipe", info.recipe},
                     {"routing", info.routing},
                     {"dtype", info.dtype},
                     {"tokens_alike", r.replayed->alike()},
                     {"layers", layers}};
  return reply;
}

}  // namespace moe
