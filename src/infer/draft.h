// A draft model: a small one that reads a text along with the model that writes it, and guesses
// what comes next (speculative decoding, arXiv 2211.17192). It draws from its own logits by the
// very draws that will be made of the other's, so that its guesses are right wherever the two
// models agree, at any temperature; what is written is decided by the other's alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/guesser.h"
#include "infer/session.h"
#include "text/tokenizer.h"

namespace moe {

struct DraftOptions {
  std::string model;    // empty: there is none
  int64_t tokens = 8;   // guessed at once, at most
  float min_p = 0.75f;  // where the draft's likeliest token has less, it guesses no further; 0: off
};
// Throws (usage) on values outside their range.
void validate(const DraftOptions&);

// Fails (usage) where the one model cannot guess for the other: their tokens are not the same, or
// one of them cannot go back behind tokens that were guessed wrong. Ids that stand for no text,
// with which files fill up a vocabulary, may differ.
void check_draft(const ModelConfig&, const Tokenizer&, const ModelConfig& draft,
                 const Tokenizer& of_draft);

// How many tokens to guess at once, by what became of the guesses before.
class DraftPace {
 public:
  explicit DraftPace(int64_t most) : most_(most) {}
  // For the next step; 0: none this time.
  int64_t next();
  // So many were guessed, and the first `right` of them were.
  void judge(int64_t guessed, int64_t right);

 private:
  int64_t most_;
  double share_ = 0.92;  // of guesses that were right, the last ones counting most; at first many
  int64_t lost_ = 0;     // by rounds in a row in which none was
  int64_t pause_ = 0;    // steps left without guesses
};

// The guesses at one text, and what became of them.
class GuessRecord {
 public:
  explicit GuessRecord(int64_t most) : pace_(most) {}
  // The text as it stands now: what followed the last guesses says which were right.
  void judge(std::span<const int32_t> text);
  // How many to make now; 0: none this time.
  int64_t next() { return pace_.next(); }
  // More follow, behind so many tokens.
  void begin(size_t behind);
  void add(int32_t id) { ids_.push_back(id); }
  // Those before are not judged: another text begins.
  void forget() { behind_.reset(); }
  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t count() const { return std::ssize(ids_); }

 private:
  DraftPace pace_;
  std::vector<int32_t> ids_;
  std::optional<size_t> behind_;  // so many tokens they followed; absent: they are judged
};

// How a draft guesses from its logits.
class DraftDraw {
 public:
  // `draft`: its config. The writing model's tokenizer outlives it.
  DraftDraw(const ModelConfig& draft, const Tokenizer&, const DraftOptions&);
  // Whether the draft has every id of a text.
  bool knows(std::span<const int32_t> text) const;
  // The next guess, from the draft's logits [V] after those before; nothing where it is not sure,
  // or the text would end: nothing follows that, and the step that checks the guess before draws
  // it.
  std::optional<int32_t> next(Sampler&, std::span<const float> logits) const;
  size_t rows() const { return rows_; }  // V

 private:
  bool is_unsure(std::span<const float> logits) const;

  const Tokenizer& tokenizer_;
  float min_p_;
  size_t rows_;   // ids that the draft knows
  size_t vocab_;  // of them, those that texts have
};

// Tokens that are read as drawn ones are. Those of a prompt may be read in another way
// (Pass::only_read), and their logits are not worked out.
constexpr int64_t kReadAsDrawn = 4;

// What is read of a text is kept as a Session keeps it, and what was guessed wrong is dropped.
// Where a text is longer than the draft's context nothing is guessed.
class DraftModel : public Guesser {
 public:
  // Model, run and the writing model's tokenizer outlive it. `capacity`: the most tokens of a text.
  DraftModel(Model&, Run&, const Tokenizer&, int64_t capacity, const DraftOptions&,
             const SessionOptions& = {});
  bool begin(std::span<const int32_t> prompt, const KeepReading& keep) override;
  std::vector<int32_t> guess(std::span<const int32_t> text, const Sampler& sampler,
                             int64_t most) override;
  // The most tokens that its cache has held.
  int64_t most_held() const { return most_held_; }
  // Tokens of a text that it ever reads.
  static int64_t capacity(const ModelConfig&, int64_t of_text, bool on_gpu);
  // By its own routing, whatever the other model is asked to take.
  static SessionOptions session_options(const ModelConfig&, std::optional<DType> cache_dtype);

 private:
  bool can_read(std::span<const int32_t> text) const;
  // The logits after the text.
  std::span<const float> read(std::span<const int32_t> text);

  DraftDraw draw_;
  Session session_;
  int64_t most_held_ = 0;
  GuessRecord guesses_;
};

}  // namespace moe
