#include "infer/generate.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "infer/lookup.h"

namespace moe {
namespace {

// keeps positions and the size of the cache far from overflow
constexpr int64_t kMaxTokens = int64_t{1} << 24;

GenerateOptions with_room(GenerateOptions options, int64_t room) {
  options.max_tokens = std::min(options.max_tokens, room);
  return options;
}

}  // namespace

int64_t text_vocab(const ModelConfig& config, const Tokenizer& tokenizer) {
  return std::min(config.vocab, tokenizer.vocab_size());
}

// The last token written takes no room, as nothing follows it.
int64_t text_capacity(const ModelConfig& config, int64_t prompt_tokens, int64_t max_tokens,
                      bool on_gpu) {
  const int64_t wanted = std::max<int64_t>(prompt_tokens, 1) + std::max<int64_t>(max_tokens, 1) - 1;
  const int64_t longest = config.longest_text(on_gpu);
  if (longest == 0) return wanted;
  if (prompt_tokens > longest)
    fail("the prompt has {} tokens, but {}; shorten the prompt", prompt_tokens,
         why_texts_end(config));
  return std::min(wanted, longest);
}

int64_t context_for(const ModelConfig& config, int64_t asked, bool on_gpu) {
  const int64_t longest = config.longest_text(on_gpu);
  if (asked < 0 || asked > kMaxTokens)
    fail_usage("@context is {}; give 1 to {} tokens, or 0 for the model's own", asked, kMaxTokens);
  if (longest > 0 && asked > longest)
    fail_usage("@context is {}, but {}", asked, why_texts_end(config));
  if (asked > 0) return asked;
  return longest > 0 ? std::min(config.context, longest) : config.context;
}

void validate(const GenerateOptions& options) {
  if (options.max_tokens < 0)
    fail_usage("@tokens is {}; it must be 0 or above", options.max_tokens);
  if (options.max_tokens > kMaxTokens)
    fail_usage("@tokens is {}; at most {} are possible", options.max_tokens, kMaxTokens);
  for (const std::string& stop : options.stop)
    if (stop.empty()) fail_usage("an empty @stop would end every text at once");
  if (options.prompt_lookup < 0 || options.prompt_lookup > kMostGuesses)
    fail_usage("@prompt_lookup is {}; give 0 (off) to {} tokens", options.prompt_lookup,
               kMostGuesses);
  validate(options.sampler);
}

Generation::Generation(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       const GenerateOptions& options, EmitText emit,
                       std::unique_ptr<grammar::Constraint> constraint)
    : options_(options),
      lookup_(options.prompt_lookup > 0 ? std::make_unique<PromptLookup>(options.prompt_lookup)
                                        : nullptr),
      guesser_(options.guesser != nullptr ? options.guesser : lookup_.get()),
      emit_(std::move(emit)),
      sampler_(options.sampler),
      constraint_(std::move(constraint)),
      stream_(tokenizer, options.stop, options.rules),
      vocab_(static_cast<size_t>(tokenizer.vocab_size())),
      text_(prompt.begin(), prompt.end()) {
  for (const int32_t id : prompt) sampler_.accept(id);
  out_.prompt_tokens = std::ssize(prompt);
  out_.prompt_ids = text_;
  out_.finish = "length";
}

// The draw after a row is that token's successor as long as every guess before it was right, so
// what is drawn is what would be drawn without guesses, and the draws are counted the same.
bool Generation::take(std::span<const float> logits) {
  if (out_.tokens >= options_.max_tokens) return false;
  const size_t rows = std::max<size_t>(next_.size(), 1), vocab = logits.size() / rows;
  size_t right = 0;  // guesses
  for (size_t row = 0; row < rows; ++row) {
    const int32_t id =
        sampler_.next(logits.subspan(row * vocab, std::min(vocab, vocab_)),
                      constraint_ ? constraint_->allowed() : std::span<const uint64_t>());
    const bool guessed = row + 1 < rows && next_[row + 1] == id;
    if (guessed) ++out_.accepted;
    if (!write(id)) return false;
    if (!guessed) break;
    ++right;
  }
  if (out_.tokens >= options_.max_tokens) return false;
  rejected_ = static_cast<int64_t>(rows - 1 - right);
  next_ = {text_.back()};
  if (guesser_ != nullptr) guess(guesser_->guess(text_, sampler_, room_for_guesses()));
  return true;
}

void Generation::guess(std::span<const int32_t> guesses) {
  out_.proposed += std::ssize(guesses);
  next_.insert(next_.end(), guesses.begin(), guesses.end());
}

// False: the text ends here.
bool Generation::write(int32_t id) {
  ++out_.tokens;
  out_.ids.push_back(id);
  text_.push_back(id);
  if (constraint_) constraint_->accept(id);
  std::string text = stream_.push(id);
  const bool whole = constraint_ && constraint_->must_end();
  if (whole && !stream_.ended()) text += stream_.finish();
  const bool wanted = text.empty() || emit_(text);
  const bool ended = stream_.ended() || whole;
  if (ended) {
    out_.finish = "stop";
    out_.stop = stream_.stop();
    out_.stop_id = stream_.stop_id();
  } else if (!wanted) {
    out_.finish = "interrupted";
  }
  return wanted && !ended;
}

Generated Generation::finish() {
  if (out_.finish == "length")
    if (const std::string rest = stream_.finish(); !rest.empty()) emit_(rest);
  // of a text that was ended no more: a dialogue goes on with what was seen
  out_.text = stream_.shown();
  return std::move(out_);
}

void check_guessing(const ModelConfig& config, const GenerateOptions& options) {
  if (!config.has_states()) return;
  constexpr const char* kWhy =
      "the states that layers of this model keep cannot be taken back from wrong guesses";
  if (options.prompt_lookup > 0)
    fail_usage("@prompt_lookup is {}, but {}; leave it at 0", options.prompt_lookup, kWhy);
  if (options.guesser != nullptr) fail_usage("@draft guesses tokens, but {}; leave it out", kWhy);
}

Session session_for(Model& model, Run& run, std::span<const int32_t> prompt,
                    const GenerateOptions& options) {
  check_asked_for(model.config(), options.session.routing);
  validate(options);
  return Session(
      model, run,
      text_capacity(model.config(), std::ssize(prompt), options.max_tokens, run.device != nullptr),
      options.session);
}

Generated generate(Model& model, Run& run, const Tokenizer& tokenizer, const std::string& prompt,
                   const GenerateOptions& options, const EmitText& emit, const KeepReading& keep) {
  const std::vector<int32_t> ids = tokenizer.encode_text(prompt);
  Session session = session_for(model, run, ids, options);
  return generate(session, tokenizer, ids, options, emit, keep);
}

Generated generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                   const GenerateOptions& options, const EmitText& emit, const KeepReading& keep,
                   std::unique_ptr<grammar::Constraint> constraint) {
  validate(options);
  check_guessing(session.runner().model().config(), options);
  Generation generation(tokenizer, prompt,
                        with_room(options, session.capacity() - std::ssize(prompt) + 1), emit,
                        std::move(constraint));
  const int64_t computed = session.computed();
  const auto start = Clock::now();
  std::span<const float> logits =
      session.prefill(prompt.subspan(static_cast<size_t>(session.keep_prefix(prompt))), 1, keep);
  const bool interrupted =
      logits.empty() || (options.guesser != nullptr && !options.guesser->begin(prompt, keep));
  const double prompt_seconds = seconds_since(start);
  const int64_t read_tokens = session.computed() - computed;
  const auto middle = Clock::now();
  if (!interrupted)
    while (generation.take(logits)) {
      session.truncate(session.length() - generation.rejected());
      logits = session.decode(generation.next());
    }
  Generated out = generation.finish();
  if (interrupted) out.finish = "interrupted";
  out.prompt_seconds = prompt_seconds;
  out.read_tokens = read_tokens;
  out.decode_seconds = interrupted ? 0 : seconds_since(middle);
  out.expert_rows = session.runner().expert_rows();
  return out;
}

}  // namespace moe
