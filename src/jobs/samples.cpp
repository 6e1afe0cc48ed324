#include "jobs/samples.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"

namespace moe {
namespace {

constexpr int64_t kUsualTokens = 60, kMostTokens = 100000;

// On one line: line breaks and other control characters written out.
std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (byte < 0x20 || byte == 0x7F) out += fmt::format("\\x{:02x}", byte);
    else out += c;
  }
  return out;
}

// Whether a text can be written by the model's recipe, token after token; said in terms of these
// options.
void check_routing(const RoutingOptions& recipe, std::optional<EvalRouting> asked) {
  const EvalRouting usual = default_eval(recipe);
  const std::string_view reason = not_causal_because(recipe, asked.value_or(usual));
  if (not_causal_because(recipe, usual).empty()) {
    const char* way_out = usual == EvalRouting::threshold
                              ? "threshold, which goes by what was learned in training"
                              : "dropless, or leave it out";
    if (!reason.empty())
      fail_usage(
          "recipe '{}' cannot be routed so while a text is being written: {}; take @sample_routing "
          "{}",
          recipe.recipe, reason, way_out);
    if (!asked && usual == EvalRouting::threshold)
      fail_usage("recipe '{}' does not say how to write a text: {}; add @sample_routing {}",
                 recipe.recipe, not_causal_because(recipe, EvalRouting::as_trained), way_out);
  } else {
    fail_usage("recipe '{}' cannot write samples: {}; leave @sample_every out", recipe.recipe,
               reason.empty() ? not_causal_because(recipe, usual) : reason);
  }
}

}  // namespace

FieldList fields(SampleOptions& o) {
  FieldList list;
  list.group("Samples");
  list.add("sample_every", o.every,
           "steps between samples, shown and kept in OUT/samples.jsonl; 0: none");
  list.add("sample_prompt", o.prompt, "the text that every sample continues");
  list.add("sample_tokens", o.tokens, fmt::format("tokens of a sample; default: {}", kUsualTokens));
  list.add_choice("sample_routing", o.routing, eval_routing_names(),
                  "threshold: needed for recipes whose experts choose; see moe generate --help")
      .values({"threshold"});
  return list;
}

TrainingSamples::TrainingSamples(const SampleOptions& asked, Training& training,
                                 const std::atomic<bool>& stop)
    : asked_(asked), training_(training), stop_(stop) {
  if (asked.every < 0) fail_usage("@sample_every is {}; it must be 0 (none) or above", asked.every);
  if (asked.every == 0) {
    const char* idle = !asked.prompt.empty() ? "sample_prompt"
                       : asked.tokens        ? "sample_tokens"
                       : asked.routing       ? "sample_routing"
                                             : nullptr;
    if (idle != nullptr) fail_usage("{} has no meaning without @sample_every N", field(idle));
    return;
  }
  if (asked.prompt.empty())
    fail_usage("@sample_every needs a text to continue: @sample_prompt TEXT");
  tokens_ = asked.tokens.value_or(kUsualTokens);
  if (tokens_ < 1 || tokens_ > kMostTokens)
    fail_usage("@sample_tokens is {}; it must be at least 1 and at most {}", tokens_, kMostTokens);
  options_.session.routing = asked.routing;
  if (training.model().config().moe_layer_count() > 0)
    check_routing(training.model().config().routing, options_.session.routing);
  else if (asked.routing)
    fail_usage("@sample_routing is of routers, and a dense model has none; leave it out");
  run_ = std::make_unique<Run>(training.options().threads, training.options().dtype);
  write(1);  // what else is wrong with the prompt is said now and not after the first N steps
}

Generated TrainingSamples::write(int64_t tokens) {
  options_.max_tokens = tokens;
  return generate(
      training_.model(), *run_, training_.tokenizer(), asked_.prompt, options_,
      // where experts are spread a process cannot stop by itself
      [&](const std::string&) { return training_.layout().is_spread() || !stop_.load(); });
}

void TrainingSamples::after_step(int64_t step,
                                 const std::function<void(const std::string& line)>& tell) {
  if (asked_.every == 0) return;
  const bool writes = training_.layout().all().is_first();
  if (!file_ && writes)
    file_ = std::make_unique<StepLines>(training_.out() + "/samples.jsonl",
                                        training_.resumed_from().value_or(0));
  if (step % asked_.every != 0) return;
  const Generated sample = write(tokens_);
  if (sample.finish == "interrupted" || !writes) return;
  const Json line = {{"step", step}, {"prompt", asked_.prompt}, {"text", sample.text}};
  file_->append(one_line_json(line));
  file_->sync();
  tell(fmt::format("sample: step {}: {}", step, escaped(asked_.prompt + sample.text)));
}

}  // namespace moe
