#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/routing_options.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "hub/hub.h"
#include "infer/session.h"
#include "train/options.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, prompt, routing, dtype = "f32";
  GenerateOptions options;
  int threads = 0;
  bool json = false;
};

int run_generate(Flags& f) {
  if (!f.routing.empty()) f.options.routing = parse_eval_routing(f.routing, "--routing");
  const LoadedModel loaded = load_model(f.model);
  Run run(thread_count(f.threads), parse_train_dtype(f.dtype));
  const std::atomic<bool>& stop = watch_interrupts();
  bool echoed = f.json;
  const auto echo_prompt = [&] {  // not before it is certain that something follows
    if (!echoed) fmt::print("{}", f.prompt);
    echoed = true;
  };
  const Generated out = generate(*loaded.model, run, *loaded.tokenizer, f.prompt, f.options, [&](const std::string& text) {
    echo_prompt();
    if (!f.json) {
      fmt::print("{}", text);
      std::fflush(stdout);
    }
    return !stop;
  });
  if (f.json) {
    const Json reply = {{"prompt", f.prompt}, {"text", out.text}, {"prompt_tokens", out.prompt_tokens}, {"tokens", out.tokens}, {"finish", out.finish}};
    fmt::print("{}\n", reply.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    echo_prompt();
    fmt::print("\n");
  }
  return 0;
}

}  // namespace

Action add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  SamplerOptions& s = f->options.sampler;
  app.add_option("MODEL", f->model, "a model folder")->required();
  app.add_option("-p,--prompt", f->prompt, "the text to continue")->required();
  app.add_option("-n,--tokens", f->options.max_tokens, "tokens to write")->capture_default_str();
  app.add_option("--temperature", s.temperature, "0: always the most likely token")->capture_default_str();
  app.add_option("--top-k", s.top_k, "only the k most likely tokens; 0: off")->capture_default_str();
  app.add_option("--top-p", s.top_p, "only the most likely tokens that together have this probability; 1: off")->capture_default_str();
  app.add_option("--min-p", s.min_p, "only tokens at least this likely, relative to the most likely one; 0: off")->capture_default_str();
  app.add_option("--repeat-penalty", s.repeat_penalty, "above 1: tokens of the last 64 become less likely")->capture_default_str();
  app.add_option("--seed", s.seed, "same seed, same text")->capture_default_str();
  app.add_option("--stop", f->options.stop, "end before this text; may be given more than once")->allow_extra_args(false);
  app.add_option("--routing", f->routing,
                 "dropless, or threshold: models whose experts choose their tokens generate only by the thresholds learned in training, and only when asked");
  app.add_option("--dtype", f->dtype, "f32 or bf16 products")->capture_default_str();
  app.add_option("--threads", f->threads, "0: all cores")->capture_default_str();
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_generate(*f); };
}

}  // namespace moe::cli
