#include "infer/draft.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/nearest.h"
#include "infer/generate.h"
#include "text/same_tokens.h"

namespace moe {
namespace {

// A guess is made where it is more likely than not that it and all before it are right.
constexpr double kWorthwhile = 0.5;
constexpr double kLately = 0.125;  // weight of one guess in the share of right ones
// What a round costs of which nothing came: its steps of the draft, and where it guessed the rows
// that checked the guesses.
constexpr int64_t kUnsureRound = 1, kWrongRound = 2;
// What may be lost so in a row. With every two more guessing pauses twice as long, for 2 steps, 4,
// ..., so that a draft that does not pay is soon hardly asked any more.
constexpr int64_t kPatience = 6, kLongestPause = 64;
// The ids up to the last one that stands for a text.
int64_t spoken_vocab(const ModelConfig& config, const Tokenizer& tokenizer) {
  int64_t count = text_vocab(config, tokenizer);
  while (count > 0 && tokenizer.piece(static_cast<int32_t>(count - 1)).empty()) --count;
  return count;
}

void check_same_tokens(const ModelConfig& config, const Tokenizer& tokenizer,
                       const ModelConfig& draft, const Tokenizer& of_draft) {
  constexpr const char* kWhy =
      "a draft guesses tokens of the model, so both need one vocabulary; take a smaller model of "
      "the same family";
  const int64_t count = spoken_vocab(config, tokenizer), theirs = spoken_vocab(draft, of_draft);
  if (const auto id = first_other_token(tokenizer, of_draft, std::min(count, theirs)))
    fail_usage("token {} is '{}' in the model and '{}' in the one of @draft: {}", *id,
               printable(tokenizer.piece(*id), 40), printable(of_draft.piece(*id), 40), kWhy);
  if (count != theirs)
    fail_usage("the model has {} tokens and the one of @draft {}: {}", count, theirs, kWhy);
}

}  // namespace

void validate(const DraftOptions& o) {
  if (o.tokens < 1 || o.tokens > kMostGuesses)
    fail_usage("@draft_tokens is {}; give 1 to {}", o.tokens, kMostGuesses);
  if (!(o.min_p >= 0 && o.min_p <= 1))
    fail_usage("@draft_min_p is {}; it must be 0 (off) to 1", o.min_p);
}

void check_draft(const ModelConfig& config, const Tokenizer& tokenizer, const ModelConfig& draft,
                 const Tokenizer& of_draft) {
  constexpr const char* kWhy = "keep cannot be taken back from wrong guesses";
  if (config.has_states())
    fail_usage("the states that layers of the model {}; leave @draft out", kWhy);
  if (draft.has_states())
    fail_usage("the states that layers of the model of @draft {}; take another draft", kWhy);
  check_same_tokens(config, tokenizer, draft, of_draft);
}

int64_t DraftPace::next() {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  int64_t count = 0;
  for (double chance = share_; count < most_ && chance >= kWorthwhile; chance *= share_) ++count;
  return std::max<int64_t>(count, 1);
}

// Those behind the first wrong one were guesses at another text and tell nothing.
void DraftPace::judge(int64_t guessed, int64_t right) {
  for (int64_t i = 0; i < right; ++i) share_ += (1 - share_) * kLately;
  if (right < guessed) share_ -= share_ * kLately;
  lost_ = right > 0 ? 0 : lost_ + (guessed > 0 ? kWrongRound : kUnsureRound);
  pause_ = 0;
  for (int64_t lost = kPatience + 2; lost <= lost_ && pause_ < kLongestPause; lost += 2)
    pause_ = std::max<int64_t>(1, pause_) * 2;
}

void GuessRecord::judge(std::span<const int32_t> text) {
  if (!behind_) return;
  const std::span<const int32_t> came = text.subspan(std::min(*behind_, text.size()));
  const auto right = std::mismatch(ids_.begin(), ids_.end(), came.begin(), came.end());
  pace_.judge(std::ssize(ids_), right.first - ids_.begin());
  behind_.reset();
}

void GuessRecord::begin(size_t behind) {
  ids_.clear();
  behind_ = behind;
}

DraftDraw::DraftDraw(const ModelConfig& draft, const Tokenizer& tokenizer,
                     const DraftOptions& options)
    : tokenizer_(tokenizer),
      min_p_(options.min_p),
      rows_(static_cast<size_t>(draft.vocab)),
      vocab_(static_cast<size_t>(text_vocab(draft, tokenizer))) {
  validate(options);
}

bool DraftDraw::knows(std::span<const int32_t> text) const {
  return std::all_of(text.begin(), text.end(),
                     [&](int32_t id) { return static_cast<size_t>(id) < rows_; });
}

bool DraftDraw::is_unsure(std::span<const float> logits) const {
  if (min_p_ == 0) return false;
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;  // 1 / the probability of the likeliest
  for (const float x : logits) sum += std::exp(x - most);
  return min_p_ * sum > 1;
}

std::optional<int32_t> DraftDraw::next(Sampler& ahead, std::span<const float> logits) const {
  const std::span<const float> of_texts = logits.first(vocab_);
  if (is_unsure(of_texts)) return std::nullopt;
  const int32_t id = ahead.next(of_texts);
  if (tokenizer_.ends_text(id)) return std::nullopt;
  return id;
}

DraftModel::DraftModel(Model& model, Run& run, const Tokenizer& tokenizer, int64_t of_text,
                       const DraftOptions& options, const SessionOptions& session)
    : draw_(model.config(), tokenizer, options),
      session_(model, run, capacity(model.config(), of_text, run.device != nullptr), session),
      guesses_(options.tokens) {}

int64_t DraftModel::capacity(const ModelConfig& config, int64_t of_text, bool on_gpu) {
  return std::min(of_text, context_for(config, 0, on_gpu));
}

SessionOptions DraftModel::session_options(const ModelConfig& config,
                                           std::optional<DType> cache_dtype) {
  SessionOptions options{.cache_dtype = cache_dtype};
  if (config.moe_layer_count() > 0) options.routing = default_eval(config.routing);
  return options;
}

bool DraftModel::can_read(std::span<const int32_t> text) const {
  return std::ssize(text) <= session_.capacity() && draw_.knows(text);
}

bool DraftModel::begin(std::span<const int32_t> prompt, const KeepReading& keep) {
  guesses_.forget();
  if (!can_read(prompt)) return true;
  const auto held = static_cast<size_t>(session_.keep_prefix(prompt));
  const bool all = !session_.prefill(prompt.subspan(held), 1, keep).empty();
  most_held_ = std::max(most_held_, session_.length());
  return all;
}

// Wrong guesses, which the session still holds, end what it has in common with the text.
std::span<const float> DraftModel::read(std::span<const int32_t> text) {
  const std::span<const int32_t> unread =
      text.subspan(static_cast<size_t>(session_.keep_prefix(text)));
  return std::ssize(unread) <= kReadAsDrawn ? session_.decode(unread).last(draw_.rows())
                                            : session_.prefill(unread);
}

std::vector<int32_t> DraftModel::guess(std::span<const int32_t> text, const Sampler& sampler,
                                       int64_t most) {
  guesses_.judge(text);
  if (most < 1 || !can_read(text)) return {};
  most = std::min({most, guesses_.next(), session_.capacity() - std::ssize(text) + 1});
  if (most < 1) return {};
  Sampler ahead = sampler;
  guesses_.begin(text.size());
  std::span<const float> logits = read(text);
  while (const std::optional<int32_t> id = draw_.next(ahead, logits)) {
    guesses_.add(*id);
    if (guesses_.count() == most) break;
    logits = session_.decode({&guesses_.ids().back(), 1});
  }
  most_held_ = std::max(most_held_, session_.length());
  return guesses_.ids();
}

}  // namespace moe
