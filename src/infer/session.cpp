#include "infer/session.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>

#include "core/error.h"
#include "infer/evaluation.h"
#include "infer/lookup.h"
#include "ops/ops.h"

namespace moe {
namespace {

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
  if (options.prompt_lookup < 0 || options.prompt_lookup > kMostGuesses)
    fail_usage("--prompt-lookup is {}; give 0 (off) to {} tokens", options.prompt_lookup, kMostGuesses);
  validate(options.sampler);
}

// Expert choice is replaced by something else where a text is written, so it has to be asked for.
void check_asked_for(const ModelConfig& config, std::optional<EvalRouting> asked) {
  if (asked || config.moe_layer_count() == 0 || default_eval(config.routing) != EvalRouting::threshold) return;
  fail_usage("recipe '{}' does not say how to write a text: {}; {}", config.routing.recipe, not_causal_because(config.routing, EvalRouting::as_trained),
             way_out(config.routing));
}

DType cache_dtype(const SessionOptions& options, const Model& model, DType compute) {
  const DType halves = ops::has_bf16_products() ? DType::bf16 : DType::f16;
  return options.cache_dtype.value_or(mostly_quantised(model) ? halves : compute);
}

Session::Session(Model& model, Run& run, int64_t capacity, const SessionOptions& options)
    : model_(model),
      run_(run),
      routing_(evaluation_spec(model.config(), options.routing, options.top_k_experts)),
      cache_(model.config(), cache_dtype(options, model, run.compute), 1, capacity) {
  if (model.config().moe_layer_count() == 0) return;
  const RoutingOptions& recipe = model.config().routing;
  if (const std::string_view reason = not_causal_because(recipe, options.routing.value_or(default_eval(recipe))); !reason.empty())
    fail_usage("recipe '{}' cannot be routed so while a text is being written: {}; {}", recipe.recipe, reason, way_out(recipe));
  expert_rows_.assign(static_cast<size_t>(model.config().moe_layer_count()), std::vector<int64_t>(static_cast<size_t>(recipe.experts)));
}

std::span<const float> Session::feed(std::span<const int32_t> ids, int64_t rows, const KeepReading& keep) {
  if (ids.empty()) fail_usage("nothing to continue from: the prompt has no tokens; give at least one character with -p");
  const int64_t count = static_cast<int64_t>(ids.size()), vocab = model_.config().vocab;
  if (rows < 1 || rows > count) fail_usage("logits of {} tokens are asked for where {} are fed", rows, count);
  logits_.resize(static_cast<size_t>(rows * vocab));
  for (int64_t at = 0; at < count; at += kPromptChunk) {
    if (keep && !keep()) return {};
    const int64_t end = std::min(at + kPromptChunk, count), first = std::max(at, count - rows);  // [first,end): the tokens here whose logits are wanted
    Tensor logits;
    if (first < end) logits = Tensor(logits_.data() + (first - (count - rows)) * vocab, DType::f32, {end - first, vocab});
    feed_chunk(ids.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)), logits);
  }
  return logits_;
}

std::span<const float> Session::read(std::span<const int32_t> ids, const KeepReading& keep) {
  const auto differs = std::mismatch(ids.begin(), ids.end(), ids_.begin(), ids_.end()).first;
  auto held = differs - ids.begin();
  if (held == std::ssize(ids) && held > 0) --held;  // the logits are kept of the last tokens fed only
  cut(held);
  return feed(ids.subspan(static_cast<size_t>(held)), 1, keep);
}

void Session::cut(int64_t length) { ids_.resize(static_cast<size_t>(std::min(length, this->length()))); }

// logits [n,V] of the last n of the tokens; absent: none are wanted.
void Session::feed_chunk(std::span<const int32_t> ids, Tensor logits) {
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(length()));
  const std::vector<int64_t> bounds = {0, count};
  const Batch batch{ids, positions, bounds};
  ArenaScope scope(run_.saved);
  ModelSaved saved;
  model_.forward(run_, {&batch, &routing_, Keep::nothing, &cache_}, saved);
  if (!logits.empty()) model_.logits(run_, logits, saved.hidden.slice_rows(count - logits.rows(), count));
  for (size_t i = 0; i < saved.routing.size(); ++i)
    for (size_t e = 0; e < saved.routing[i].counts.size(); ++e) expert_rows_[i][e] += saved.routing[i].counts[e];
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  fed_ += count;
}

namespace {

// The text of one generation: what was drawn, what of it may be shown, and whether it has come to its end.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const GenerateOptions& options, const EmitText& emit, Generated& out)
      : tokenizer_(tokenizer), options_(options), emit_(emit), decoder_(tokenizer), out_(out) {}

  // False: the text ends here.
  bool take(int32_t id) {
    ++out_.tokens;
    out_.ids.push_back(id);
    const bool ended = tokenizer_.ends_text(id);
    if (!ended) out_.text += decoder_.push(id);
    bool hit = ended;
    const size_t certain = certain_length(out_.text, options_.stop, hit);
    if (!hit && show(certain)) return true;
    out_.finish = hit ? "stop" : "interrupted";
    out_.text.resize(certain);  // a dialogue goes on with what was seen
    if (hit) show(certain);
    return false;
  }
  void finish() {
    out_.text += decoder_.finish();
    show(out_.text.size());
  }

 private:
  bool show(size_t end) {
    if (end <= shown_) return true;
    const std::string text = out_.text.substr(shown_, end - shown_);
    shown_ = end;
    return emit_(text);
  }

  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const EmitText& emit_;
  StreamDecoder decoder_;
  Generated& out_;
  size_t shown_ = 0;
};

// Draws until the text ends; false where it was ended. Each round feeds the last token drawn together with the guesses of what follows it. The draw after a
// row is that token's successor as long as every guess before it was right, so what is drawn is what would be drawn without guesses, and the draws are counted
// the same.
bool write_text(Session& session, Sampler& sampler, std::span<const float> logits, int64_t limit, int64_t lookup, Writer& writer, Generated& out) {
  std::vector<int32_t> fed;  // the last token drawn and the guesses
  while (out.tokens < limit) {
    const size_t rows = std::max<size_t>(fed.size(), 1), vocab = logits.size() / rows;
    int32_t id = 0;
    size_t right = 0;  // guesses
    for (size_t row = 0; row < rows; ++row) {
      id = sampler.next(logits.subspan(row * vocab, vocab));
      const bool guessed = row + 1 < rows && fed[row + 1] == id;
      if (guessed) ++out.accepted;
      if (!writer.take(id)) return false;
      if (!guessed) break;
      ++right;
    }
    if (out.tokens >= limit) break;
    session.cut(session.length() - static_cast<int64_t>(rows - 1 - right));
    fed = {id};
    if (lookup > 0) {
      std::vector<int32_t> text(session.ids().begin(), session.ids().end());
      text.push_back(id);
      const std::vector<int32_t> guesses = look_up(text, std::min(lookup, limit - out.tokens - 1));
      out.proposed += std::ssize(guesses);
      fed.insert(fed.end(), guesses.begin(), guesses.end());
    }
    logits = session.feed(fed, std::ssize(fed));
  }
  return true;
}

double seconds_since(std::chrono::steady_clock::time_point start) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

}  // namespace

Session session_for(Model& model, Run& run, std::span<const int32_t> prompt, const GenerateOptions& options) {
  check_asked_for(model.config(), options.session.routing);
  validate(options);
  return Session(model, run, capacity_for(model.config(), std::ssize(prompt), options.max_tokens), options.session);
}

Generated generate(Model& model, Run& run, const Tokenizer& tokenizer, const std::string& prompt, const GenerateOptions& options, const EmitText& emit,
                   const KeepReading& keep) {
  const std::vector<int32_t> ids = tokenizer.encode_text(prompt);
  Session session = session_for(model, run, ids, options);
  return generate(session, tokenizer, ids, options, emit, keep);
}

Generated generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt, const GenerateOptions& options, const EmitText& emit,
                   const KeepReading& keep) {
  validate(options);
  Sampler sampler(options.sampler);
  for (int32_t id : prompt) sampler.accept(id);
  Generated out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  out.prompt_ids.assign(prompt.begin(), prompt.end());
  out.finish = "length";
  const int64_t fed = session.fed();
  const auto start = std::chrono::steady_clock::now();
  const std::span<const float> logits = session.read(prompt, keep);
  out.prompt_seconds = seconds_since(start);
  out.read_tokens = session.fed() - fed;
  if (logits.empty()) {
    out.finish = "interrupted";
    return out;
  }
  Writer writer(tokenizer, options, emit, out);
  const int64_t limit = std::min(options.max_tokens, session.capacity() - session.length() + 1);
  const auto middle = std::chrono::steady_clock::now();
  if (write_text(session, sampler, logits, limit, options.prompt_lookup, writer, out)) writer.finish();
  out.decode_seconds = seconds_since(middle);
  out.expert_rows = session.expert_rows();
  return out;
}

}  // namespace moe
