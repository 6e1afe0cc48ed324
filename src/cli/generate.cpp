#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "cli/routing_options.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "hub/hub.h"
#include "infer/session.h"
#include "train/options.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, prompt;
  GenerateFlags generate;
  ComputeFlags compute;
  bool json = false;
};

int run_generate(Flags& f) {
  const GenerateOptions options = generate_options(f.generate);
  const LoadedModel loaded = load_model(f.model);
  Run run(thread_count(f.compute.threads), parse_train_dtype(f.compute.dtype));
  const std::atomic<bool>* stop = nullptr;  // none while a long prompt is read: Ctrl-C then ends the process, as there is no text to be kept
  const auto begin = [&] {                  // not before it is certain that something follows
    if (stop != nullptr) return;
    stop = &watch_interrupts();
    if (!f.json) fmt::print("{}", f.prompt);
  };
  const Generated out = generate(*loaded.model, run, *loaded.tokenizer, f.prompt, options, [&](const std::string& text) {
    begin();
    if (!f.json) {
      fmt::print("{}", text);
      std::fflush(stdout);
    }
    return !*stop;
  });
  if (f.json) {
    fmt::print("{}\n", generate_reply(f.prompt, out));
  } else {
    begin();
    fmt::print("\n");
  }
  return 0;
}

}  // namespace

void add_generate_options(CLI::App& app, GenerateFlags& f) {
  SamplerOptions& s = f.options.sampler;
  app.add_option("-n,--tokens", f.options.max_tokens, "tokens to write")->capture_default_str();
  app.add_option("--temperature", s.temperature, "0: always the most likely token")->capture_default_str();
  app.add_option("--top-k", s.top_k, "only the k most likely tokens; 0: off")->capture_default_str();
  app.add_option("--top-p", s.top_p, "only the most likely tokens that together have this probability; 1: off")->capture_default_str();
  app.add_option("--min-p", s.min_p, "only tokens at least this likely, relative to the most likely one; 0: off")->capture_default_str();
  app.add_option("--repeat-penalty", s.repeat_penalty, "above 1: tokens of the last 64 become less likely")->capture_default_str();
  app.add_option("--seed", s.seed, "same seed, same text")->capture_default_str();
  app.add_option("--stop", f.options.stop, "end before this text; may be given more than once")->allow_extra_args(false);
  takes(app.add_option(
            "--routing", f.routing,
            "dropless, or threshold: models whose experts choose their tokens generate only by the thresholds learned in training, and only when asked"),
        eval_routing_names());
}

GenerateOptions generate_options(const GenerateFlags& f) {
  GenerateOptions options = f.options;
  if (!f.routing.empty()) options.routing = parse_eval_routing(f.routing, "--routing");
  return options;
}

std::string generate_reply(const std::string& prompt, const Generated& out) {
  const Json reply = {{"prompt", prompt}, {"text", out.text}, {"prompt_tokens", out.prompt_tokens}, {"tokens", out.tokens}, {"finish", out.finish}};
  return reply.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Action add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, "a model folder")->required();
  app.add_option("-p,--prompt", f->prompt, "the text to continue")->required();
  add_generate_options(app, f->generate);
  add_compute_options(app, f->compute);
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_generate(*f); };
}

}  // namespace moe::cli
