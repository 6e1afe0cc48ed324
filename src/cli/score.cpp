#include "infer/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "cli/routing_options.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "hub/hub.h"
#include "text/corpus.h"
#include "train/options.h"

namespace moe::cli {
namespace {

constexpr int64_t kWindow = 2048;

struct Flags {
  std::string model, text;
  ScoreFlags score;
  ComputeFlags compute;
  bool json = false;
};

int run_score(Flags& f) {
  if (f.score.options.per_token && !f.json) fail_usage("--per-token prints an array and needs --json");
  const LoadedModel loaded = load_model(f.model);
  const ScorePlan plan = score_plan(f.score, loaded.model->config());
  if (!plan.not_causal_because.empty())
    fmt::print(stderr, "note: routed {} this loss is too low for a text read from left to right: {}\n", name_of(plan.routing), plan.not_causal_because);
  const Corpus corpus({f.text}, *loaded.tokenizer);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  Run run(thread_count(f.compute.threads), parse_train_dtype(f.compute.dtype));
  ProgressLine progress;
  const std::atomic<bool>& stop = watch_interrupts();
  const Score s = score(*loaded.model, run, *loaded.tokenizer, ids, plan.options, [&](int64_t done, int64_t total) {
    if (stop) fail("interrupted after {} of {} windows", done, total);
    progress.show(done, total, "windows");
  });
  if (f.json) fmt::print("{}\n", score_reply(s, plan));
  else
    fmt::print("{} tokens in {} windows of {}: {:.4f} nats per token, perplexity {:.3f}, {:.4f} bits per byte\n", s.tokens, s.windows, plan.options.window,
               s.nats_per_token, s.perplexity, s.bits_per_byte);
  return 0;
}

}  // namespace

void add_score_options(CLI::App& app, ScoreFlags& f) {
  app.add_option("--window", f.options.window,
                 "tokens a window; windows do not overlap, the remainder is dropped; default: 2048, or the model's context where that is shorter");
  app.add_option("--windows", f.options.windows, "at most this many; 0: all")->capture_default_str();
  takes(app.add_option(
            "--routing", f.routing,
            "dropless; as-trained: with the recipe's capacity for evaluation; or threshold, learned in training where experts choose. Default: dropless, "
            "or threshold where experts choose"),
        eval_routing_names());
  app.add_flag("--per-token", f.options.per_token, "with --json: the ids and their log-probabilities (null for the first of each window)");
}

ScorePlan score_plan(const ScoreFlags& f, const ModelConfig& config) {
  ScorePlan plan{.options = f.options};
  if (!f.routing.empty()) plan.options.routing = parse_eval_routing(f.routing, "--routing");
  if (f.options.window == 0) plan.options.window = std::min(kWindow, config.context);
  const bool routed = config.moe_layer_count() > 0;
  plan.routing = plan.options.routing.value_or(routed ? default_eval(config.routing) : EvalRouting::dropless);
  if (routed) plan.not_causal_because = moe::not_causal_because(config.routing, plan.routing);
  return plan;
}

std::string score_reply(const Score& s, const ScorePlan& plan) {
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
  return out.dump();
}

Action add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, "a model folder")->required();
  app.add_option("--text", f->text, "a text file, or a folder of them")->required();
  add_score_options(app, f->score);
  add_compute_options(app, f->compute);
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_score(*f); };
}

}  // namespace moe::cli
