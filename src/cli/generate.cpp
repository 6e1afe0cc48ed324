#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/prompt.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "hub/hub.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "infer/options.h"
#include "jobs/forward_memory.h"
#include "jobs/replies.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string model;
  PromptFlags prompt;
  int64_t samples = 1;
  GenerateOptions generate;
  ComputeOptions compute;
  MemoryOptions memory;
  bool json = false;
  Given given;
};

// What prompt lookup did, for a person who watches.
void tell_lookup(const Generated& out) {
  tell("prompt lookup: {} of {} guessed tokens were right; {:.1f} tokens/s\n", out.accepted, out.proposed,
       static_cast<double>(out.tokens) / std::max(out.decode_seconds, 1e-9));
}

// The texts that follow one prompt, shown as they come; Ctrl-C ends the one being written, and no other begins.
class Samples {
 public:
  Samples(const Flags& f, std::string prompt) : f_(f), prompt_(std::move(prompt)) {}

  // Runs the i-th, whose seed is the first one's plus i; false: it was interrupted.
  bool write(int64_t i, Session& session, const Tokenizer& tokenizer, std::span<const int32_t> ids, GenerateOptions options) {
    options.sampler.seed += static_cast<uint64_t>(i);
    begun_ = false;
    const Generated out = generate(session, tokenizer, ids, options, [&](const std::string& text) {
      begin(i, options.sampler.seed);
      if (!f_.json) {
        fmt::print("{}", text);
        std::fflush(stdout);
      }
      return !*stop_;
    });
    if (f_.json) {
      Json reply = generate_reply(prompt_, out);
      if (f_.samples > 1) reply["seed"] = options.sampler.seed;
      replies_.push_back(std::move(reply));
    } else {
      begin(i, options.sampler.seed);
      fmt::print("\n");
      std::fflush(stdout);
    }
    if (options.prompt_lookup > 0 && !f_.json) tell_lookup(out);
    expert_rows_ = out.expert_rows;
    return out.finish != "interrupted";
  }
  const std::vector<std::vector<int64_t>>& expert_rows() const { return expert_rows_; }
  // One object, or a list of them where several were asked for.
  Json json(const std::optional<HotSet>& hot) {
    if (hot)
      for (Json& reply : replies_) reply["hot_set"] = to_json(*hot);
    return f_.samples == 1 ? replies_.at(0) : replies_;
  }

 private:
  // Not before it is certain that something follows: while a long prompt is read Ctrl-C ends the process, as there is no text to be kept.
  void begin(int64_t i, uint64_t seed) {
    if (stop_ == nullptr) stop_ = &watch_interrupts();
    if (begun_ || f_.json) return;
    begun_ = true;
    if (f_.samples > 1) fmt::print("{}==> sample {} of {}, --seed {} <==\n", i == 0 ? "" : "\n", i + 1, f_.samples, seed);
    fmt::print("{}", prompt_);
  }

  const Flags& f_;
  std::string prompt_;
  const std::atomic<bool>* stop_ = nullptr;
  bool begun_ = false;
  Json replies_ = Json::array();
  std::vector<std::vector<int64_t>> expert_rows_;
};

void check_samples(const Flags& f) {
  constexpr int64_t kMost = 10000;
  if (f.samples < 1 || f.samples > kMost) fail_usage("--samples is {}; give 1 to {}", f.samples, kMost);
  if (f.samples > 1 && f.generate.sampler.temperature == 0)
    fail_usage("--samples {} would be one text: --temperature 0 always takes the likeliest token; raise it, or leave --samples out", f.samples);
}

int run_generate(const Flags& f) {
  const GenerateOptions& options = f.generate;
  validate(options);  // before a large model is loaded for nothing
  check_samples(f);
  const std::string prompt = read_prompt(f.prompt, f.given);
  const LoadedModel loaded = load_model(f.model, LoadFor::inference);
  Model& model = *loaded.model;
  Run run(thread_count(f.compute.threads), f.compute.dtype.value_or(natural_dtype(model)));
  const std::vector<int32_t> ids = loaded.tokenizer->encode_text(prompt);
  const bool large = prepare_memory(f.model, session_use(model, options.session, run.compute, std::ssize(ids), std::ssize(ids) + options.max_tokens), {},
                                    f.memory, "lower --tokens, shorten the prompt or take --cache-dtype q8_0", on_screen());
  Session session = session_for(model, run, ids, options);
  Samples samples(f, prompt);
  for (int64_t i = 0; i < f.samples; ++i)
    if (!samples.write(i, session, *loaded.tokenizer, ids, options)) break;
  std::optional<HotSet> hot;
  if (large || f.memory.hot_set) hot = hot_set(model, samples.expert_rows());
  if (f.json) print_json(samples.json(hot));
  else if (hot) tell_hot_set(*hot, on_screen());
  return 0;
}

}  // namespace

Action add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->model);
  list.add(fields(f->prompt));
  list.add("samples", f->samples, "so many texts, one after another; the i-th is what @seed + i - 1 writes alone");
  list.add(fields(f->generate));
  list.add(fields(f->compute));
  add_memory(list, f->memory);
  add_hot_set(list, f->memory);
  list.add("json", f->json, "one JSON object on standard output; with @samples a list of them");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_generate(*f); };
}

}  // namespace moe::cli
