#include "infer/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/options.h"
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
  std::string model, text, routing, dtype = "f32";
  ScoreOptions options{.window = 0};  // 0: the default
  int threads = 0;
  bool json = false;
};

Json to_json(const Score& s, int64_t window, EvalRouting routing, bool causal, bool per_token) {
  Json out = {{"tokens", s.tokens},         {"windows", s.windows},
              {"window", window},           {"nats_per_token", s.nats_per_token},
              {"perplexity", s.perplexity}, {"bits_per_byte", s.bits_per_byte},
              {"causal", causal},           {"routing", name_of(routing)}};
  if (!per_token) return out;
  out["ids"] = s.ids;
  Json& logprobs = out["logprobs"] = Json::array();
  for (const std::optional<double>& p : s.logprobs) logprobs.push_back(p ? Json(*p) : Json(nullptr));
  return out;
}

int run_score(Flags& f) {
  if (f.options.per_token && !f.json) fail_usage("--per-token prints an array and needs --json");
  if (!f.routing.empty()) f.options.routing = parse_eval_routing(f.routing, "--routing");
  const LoadedModel loaded = load_model(f.model);
  const RoutingOptions& options = loaded.model->config().routing;
  const bool routed = loaded.model->config().moe_layer_count() > 0;
  const EvalRouting routing = f.options.routing.value_or(routed ? default_eval(options) : EvalRouting::dropless);
  const std::string_view reason = routed ? not_causal_because(options, routing) : "";
  if (!reason.empty()) fmt::print(stderr, "note: routed {} this loss is too low for a text read from left to right: {}\n", name_of(routing), reason);
  if (f.options.window == 0) f.options.window = std::min(kWindow, loaded.model->config().context);
  const Corpus corpus({f.text}, *loaded.tokenizer);
  std::vector<int32_t> ids(static_cast<size_t>(corpus.size()));
  corpus.fill(0, corpus.size(), ids.data());
  Run run(thread_count(f.threads), parse_train_dtype(f.dtype));
  ProgressLine progress;
  const std::atomic<bool>& stop = watch_interrupts();
  const Score s = score(*loaded.model, run, *loaded.tokenizer, ids, f.options, [&](int64_t done, int64_t total) {
    if (stop) fail("interrupted after {} of {} windows", done, total);
    progress.show(done, total, "windows");
  });
  if (f.json) fmt::print("{}\n", to_json(s, f.options.window, routing, reason.empty(), f.options.per_token).dump());
  else
    fmt::print("{} tokens in {} windows of {}: {:.4f} nats per token, perplexity {:.3f}, {:.4f} bits per byte\n", s.tokens, s.windows, f.options.window,
               s.nats_per_token, s.perplexity, s.bits_per_byte);
  return 0;
}

}  // namespace

Action add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, "a model folder")->required();
  app.add_option("--text", f->text, "a text file, or a folder of them")->required();
  app.add_option("--window", f->options.window,
                 "tokens a window; windows do not overlap, the remainder is dropped; default: 2048, or the model's context where that is shorter");
  app.add_option("--windows", f->options.windows, "at most this many; 0: all")->capture_default_str();
  app.add_option("--routing", f->routing,
                 "dropless; as-trained: with the recipe's capacity for evaluation; or threshold, learned in training where experts choose. Default: dropless, "
                 "or threshold where experts choose");
  app.add_option("--dtype", f->dtype, "f32 or bf16 products")->capture_default_str();
  app.add_option("--threads", f->threads, "0: all cores")->capture_default_str();
  app.add_flag("--per-token", f->options.per_token, "with --json: the ids and their log-probabilities (null for the first of each window)");
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_score(*f); };
}

}  // namespace moe::cli
