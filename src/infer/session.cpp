#include "infer/session.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace moe {
namespace {

constexpr int64_t kPromptChunk = 512;             // tokens a forward; bounds the memory of a long prompt
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // keeps positions and the size of the cache far from overflow

// Of a session for a prompt and what follows. The last token written takes no room, as nothing follows it. Learned positions end with the context.
int64_t capacity_for(const ModelConfig& config, int64_t prompt_tokens, int64_t asked) {
  const int64_t wanted = std::max<int64_t>(prompt_tokens, 1) + std::max<int64_t>(asked, 1) - 1;
  if (config.positions != Positions::learned) return wanted;
  if (prompt_tokens > config.context)
    fail("the prompt has {} tokens, but the model has learned positions for {} only; shorten the prompt", prompt_tokens, config.context);
  return std::min(wanted, config.context);
}

// How much of `text` may be shown: nothing from the first stop string on, and no tail that may turn out to begin one. `hit` says that one was found.
size_t certain_length(const std::string& text, const std::vector<std::string>& stops, bool& hit) {
  size_t end = text.size();
  for (const std::string& stop : stops) {
    if (const size_t at = text.find(stop); at != std::string::npos) {
      hit = true;
      end = std::min(end, at);
      continue;
    }
    for (size_t n = std::min(stop.size() - 1, text.size()); n > 0; --n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
        end = std::min(end, text.size() - n);
        break;
      }
  }
  return end;
}

// The routing to ask for instead of one that looks at later tokens.
std::string_view way_out(const RoutingOptions& options) {
  switch (default_eval(options)) {
    case EvalRouting::dropless: return "leave --routing out, or take --routing dropless";
    case EvalRouting::threshold: return "--routing threshold takes the tokens whose score reaches what was learned in training";
    case EvalRouting::as_trained: break;
  }
  return "a model of this recipe can be scored but not continued";
}

}  // namespace

void validate(const GenerateOptions& options) {
  if (options.max_tokens < 0) fail_usage("-n is {}; it must be 0 or above", options.max_tokens);
  if (options.max_tokens > kMaxTokens) fail_usage("-n is {}; at most {} are possible", options.max_tokens, kMaxTokens);
  for (const std::string& stop : options.stop)
    if (stop.empty()) fail_usage("an empty --stop would end every text at once");
  validate(options.sampler);
}

// Expert choice is replaced by something else where a text is written, so it has to be asked for.
void check_asked_for(const ModelConfig& config, std::optional<EvalRouting> asked) {
  if (asked || config.moe_layer_count() == 0 || default_eval(config.routing) != EvalRouting::threshold) return;
  fail_usage("recipe '{}' does not say how to write a text: {}; {}", config.routing.recipe, not_causal_because(config.routing, EvalRouting::as_trained),
             way_out(config.routing));
}

Session::Session(Model& model, Run& run, int64_t capacity, std::optional<EvalRouting> routing)
    : model_(model), run_(run), cache_(model.config(), run.compute, 1, capacity), logits_(static_cast<size_t>(model.config().vocab)) {
  if (model.config().moe_layer_count() == 0) return;
  const RoutingOptions& options = model.config().routing;
  const EvalRouting wanted = routing.value_or(default_eval(options));
  if (const std::string_view reason = not_causal_because(options, wanted); !reason.empty())
    fail_usage("recipe '{}' cannot be routed so while a text is being written: {}; {}", options.recipe, reason, way_out(options));
  routing_ = eval_spec(options, wanted);
}

std::span<const float> Session::feed(std::span<const int32_t> ids) {
  if (ids.empty()) fail_usage("nothing to continue from: the prompt has no tokens; give at least one character with -p");
  for (size_t at = 0; at < ids.size(); at += kPromptChunk) feed_chunk(ids.subspan(at, std::min<size_t>(kPromptChunk, ids.size() - at)));
  return logits_;
}

std::span<const float> Session::read(std::span<const int32_t> ids) {
  const auto differs = std::mismatch(ids.begin(), ids.end(), ids_.begin(), ids_.end()).first;
  auto held = static_cast<size_t>(differs - ids.begin());
  if (held == ids.size() && held > 0) --held;  // the logits are kept of the last token fed only
  ids_.resize(held);
  return feed(ids.subspan(held));
}

void Session::feed_chunk(std::span<const int32_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(length()));
  const std::vector<int64_t> bounds = {0, count};
  const Batch batch{ids, positions, bounds};
  ArenaScope scope(run_.saved);
  ModelSaved saved;
  model_.forward(run_, {&batch, &routing_, Keep::nothing, &cache_}, saved);
  model_.logits(run_, Tensor(logits_.data(), DType::f32, {1, model_.config().vocab}), saved.hidden.slice_rows(count - 1, count));
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  fed_ += count;
}

Generated generate(Model& model, Run& run, const Tokenizer& tokenizer, const std::string& prompt, const GenerateOptions& options, const EmitText& emit) {
  check_asked_for(model.config(), options.routing);
  validate(options);
  const std::vector<int32_t> ids = tokenizer.encode_text(prompt);
  Session session(model, run, capacity_for(model.config(), static_cast<int64_t>(ids.size()), options.max_tokens), options.routing);
  return generate(session, tokenizer, ids, options, emit);
}

Generated generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt, const GenerateOptions& options, const EmitText& emit) {
  validate(options);
  Sampler sampler(options.sampler);
  for (int32_t id : prompt) sampler.accept(id);
  StreamDecoder decoder(tokenizer);
  Generated out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  out.finish = "length";
  size_t shown = 0;
  const auto show = [&](size_t end) {
    if (end <= shown) return true;
    const std::string text = out.text.substr(shown, end - shown);
    shown = end;
    return emit(text);
  };
  const int64_t fed = session.fed();
  std::span<const float> logits = session.read(prompt);
  out.read_tokens = session.fed() - fed;
  const int64_t limit = std::min(options.max_tokens, session.capacity() - session.length() + 1);
  while (out.tokens < limit) {
    const int32_t id = sampler.next(logits);
    ++out.tokens;
    const bool ended = tokenizer.ends_text(id);
    if (!ended) out.text += decoder.push(id);
    bool hit = ended;
    const size_t certain = certain_length(out.text, options.stop, hit);
    if (hit) {
      out.finish = "stop";
      out.text.resize(certain);
      show(certain);
      return out;
    }
    if (!show(certain)) {
      out.finish = "interrupted";
      out.text.resize(certain);  // a dialogue goes on with what was seen
      return out;
    }
    if (out.tokens < limit) logits = session.feed(std::span(&id, 1));
  }
  out.text += decoder.finish();
  show(out.text.size());
  return out;
}

}  // namespace moe
