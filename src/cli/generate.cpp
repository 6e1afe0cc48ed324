#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "cli/replies.h"
#include "cli/routing_options.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "hub/hub.h"
#include "infer/evaluation.h"
#include "infer/session.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model, prompt;
  GenerateFlags generate;
  ComputeFlags compute;
  MemoryFlags memory;
  bool json = false;
};

// What prompt lookup did, for a person who watches.
void tell_lookup(const Generated& out) {
  tell("prompt lookup: {} of {} guessed tokens were right; {:.1f} tokens/s\n", out.accepted, out.proposed,
       static_cast<double>(out.tokens) / std::max(out.decode_seconds, 1e-9));
}

int run_generate(Flags& f) {
  const GenerateOptions options = generate_options(f.generate);
  validate(options);  // before a large model is loaded for nothing
  const std::optional<DType> asked = parse_compute_dtype(f.compute.dtype);
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  Model& model = *loaded.model;
  Run run(thread_count(f.compute.threads), asked.value_or(natural_dtype(model)));
  const int64_t prompt = std::ssize(loaded.tokenizer->encode_text(f.prompt));
  const bool large = prepare_memory(f.model, session_use(model, options.session, run.compute, prompt, prompt + options.max_tokens), {}, f.memory,
                                    "lower --tokens, shorten the prompt or take --cache-dtype q8_0");
  const std::atomic<bool>* stop = nullptr;  // none while a long prompt is read: Ctrl-C then ends the process, as there is no text to be kept
  const auto begin = [&] {                  // not before it is certain that something follows
    if (stop != nullptr) return;
    stop = &watch_interrupts();
    if (!f.json) fmt::print("{}", f.prompt);
  };
  const Generated out = generate(model, run, *loaded.tokenizer, f.prompt, options, [&](const std::string& text) {
    begin();
    if (!f.json) {
      fmt::print("{}", text);
      std::fflush(stdout);
    }
    return !*stop;
  });
  const bool tell_hot = large || f.memory.hot_set;
  if (f.json) {
    Json reply = generate_reply(f.prompt, out);
    if (tell_hot) reply["hot_set"] = to_json(hot_set(model, out.expert_rows));
    print_json(reply);
    return 0;
  }
  begin();
  fmt::print("\n");
  std::fflush(stdout);
  if (options.prompt_lookup > 0) tell_lookup(out);
  if (tell_hot) tell_hot_set(hot_set(model, out.expert_rows));
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
  add_seed(app, s.seed, "same seed, same text");
  app.add_option("--stop", f.options.stop, "end before this text; may be given more than once")->allow_extra_args(false);
  takes(app.add_option(
            "--routing", f.routing,
            "dropless, or threshold: models whose experts choose their tokens generate only by the thresholds learned in training, and only when asked"),
        eval_routing_names());
  add_top_k_experts(app, f.options.session.top_k_experts);
  app.add_option("--prompt-lookup", f.options.prompt_lookup,
                 "guess up to so many tokens from what the text said before and check them in one step; the text stays the same. 0: off")
      ->capture_default_str();
  add_cache_dtype(app, f.cache_dtype);
}

GenerateOptions generate_options(const GenerateFlags& f) {
  GenerateOptions options = f.options;
  options.session.cache_dtype = parse_cache_dtype(f.cache_dtype);
  if (!f.routing.empty()) options.session.routing = parse_eval_routing(f.routing, "--routing");
  return options;
}

Json generate_reply(const std::string& prompt, const Generated& out) {
  return {{"prompt", prompt},     {"text", out.text},         {"prompt_tokens", out.prompt_tokens},
          {"tokens", out.tokens}, {"finish", out.finish},     {"prompt_ids", out.prompt_ids},
          {"ids", out.ids},       {"proposed", out.proposed}, {"accepted", out.accepted}};
}

Action add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("MODEL", f->model, "a model folder or a .gguf file")->required();
  app.add_option("-p,--prompt", f->prompt, "the text to continue")->required();
  add_generate_options(app, f->generate);
  add_compute_options(app, f->compute);
  add_memory_options(app, f->memory);
  add_hot_set_option(app, f->memory);
  app.add_flag("--json", f->json, "one JSON object on standard output");
  return [f] { return run_generate(*f); };
}

}  // namespace moe::cli
