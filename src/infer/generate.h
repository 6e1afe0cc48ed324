// Writing a text: tokens are drawn from logits until the text ends. Generation does this and knows
// no model; generate() has a session compute the logits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/guesser.h"
#include "infer/sampler.h"
#include "infer/session.h"
#include "infer/text_stream.h"
#include "text/grammar/token_mask.h"

namespace moe {

struct GenerateOptions {
  int64_t max_tokens = 200;       // fewer where the model's texts end (why_texts_end)
  std::vector<std::string> stop;  // generation ends before the first of these
  TextRules rules;
  SamplerOptions sampler;
  SessionOptions session;
  // Prompt lookup (infer/lookup.h): at most so many tokens are guessed from what the text said
  // before and checked together in one forward; 0: none. The text is the same, token for token, as
  // far as a row of a product does not depend on other rows (ops::products_keep_row_bits).
  int64_t prompt_lookup = 0;
  // Whose guesses are checked so in place of prompt lookup's, such as a draft model's
  // (infer/draft.h); null: nobody's. It outlives the text, and no two texts under way share it.
  Guesser* guesser = nullptr;
};

// The ids that texts have, from 0 on: a model may have more rows than its tokenizer has tokens.
int64_t text_vocab(const ModelConfig&, const Tokenizer&);
// Of a session for a prompt and what follows, no more than ModelConfig::longest_text(). Fails where
// the prompt goes beyond it.
int64_t text_capacity(const ModelConfig&, int64_t prompt_tokens, int64_t max_tokens,
                      bool on_gpu = false);
// Tokens of the longest text where @context asks for so many, or for the model's own (0). Fails
// (usage) where it cannot have them.
int64_t context_for(const ModelConfig&, int64_t asked, bool on_gpu);

// Throws (usage) on values outside their range.
void validate(const GenerateOptions&);

struct Generated {
  std::string text;  // without the prompt
  int64_t prompt_tokens = 0;
  int64_t read_tokens = 0;  // of them, those that the session had not read before
  int64_t tokens = 0;
  int64_t proposed = 0,  // tokens guessed, and those of them that were the ones drawn
      accepted = 0;
  std::vector<int32_t> prompt_ids, ids;  // [prompt_tokens], [tokens]
  std::string finish;                    // "length", "stop" or "interrupted"
  std::string stop;                // of GenerateOptions::stop the one that ended it; empty: none
  std::optional<int32_t> stop_id;  // likewise of TextRules::stop_ids
  double prompt_seconds = 0, decode_seconds = 0;
  std::vector<std::vector<int64_t>> expert_rows;  // as ModelRunner has them, since it began
};

// Gets text as soon as it is certain (whole characters, no part of a stop string); returning false
// ends the generation.
using EmitText = std::function<bool(const std::string&)>;

// One text under way. Whoever runs the model reads the prompt, then as long as take() says so drops
// the tokens of rejected() and decodes next(); several of these share a ModelRunner's steps.
class Generation {
 public:
  // Writes at most options.max_tokens; options.session is the runner's affair. The tokenizer
  // outlives this. With a constraint only tokens that it allows are drawn, and the text ends
  // ("stop") where nothing can follow. It is this text's alone, at its beginning.
  Generation(const Tokenizer&, std::span<const int32_t> prompt, const GenerateOptions&, EmitText,
             std::unique_ptr<grammar::Constraint> = nullptr);

  // logits [n,V] after the last token of the prompt (n = 1), then after each of next(): draws from
  // them. False: the text has come to its end.
  bool take(std::span<const float> logits);
  // The token that was drawn last, and guesses of what follows it.
  std::span<const int32_t> next() const { return next_; }
  // For who guesses in the caller's stead, once take() said that the text goes on: its tokens so
  // far, what draws the next, how many guesses there is room for, and the guesses, which go behind
  // next().
  std::span<const int32_t> text() const { return text_; }
  const Sampler& sampler() const { return sampler_; }
  int64_t room_for_guesses() const { return options_.max_tokens - out_.tokens - 1; }
  void guess(std::span<const int32_t> guesses);
  // What was written so far; its text is not cut yet.
  const Generated& written() const { return out_; }
  // How many of the last tokens that were decoded were guesses that came to nothing.
  int64_t rejected() const { return rejected_; }
  // Shows what was held back. Seconds, read_tokens and expert_rows are left to who ran the model.
  Generated finish();

 private:
  bool write(int32_t id);

  GenerateOptions options_;
  std::unique_ptr<Guesser> lookup_;  // null: not asked for
  Guesser* guesser_;                 // lookup_ or the caller's; null: nothing is guessed
  EmitText emit_;
  Sampler sampler_;
  std::unique_ptr<grammar::Constraint> constraint_;  // may be none
  TextStream stream_;
  size_t vocab_;               // of the tokenizer: what more the model has stands for no text
  std::vector<int32_t> text_;  // tokens of the prompt and those drawn
  std::vector<int32_t> next_;
  int64_t rejected_ = 0;
  Generated out_;
};

// Fails (usage) where tokens are guessed and the model cannot go back behind them.
void check_guessing(const ModelConfig&, const GenerateOptions&);
// A session with room for the prompt and what `options` let follow, so that several texts can
// follow it. Fails as generate() does.
Session session_for(Model&, Run&, std::span<const int32_t> prompt, const GenerateOptions&);

Generated generate(Model&, Run&, const Tokenizer&, const std::string& prompt,
                   const GenerateOptions&, const EmitText&, const KeepReading& = {});
// The same in a session that may have read some of the prompt already; its own options and the room
// it has left count, not those of `options`. The last token drawn is not read. The constraint is
// Generation's.
Generated generate(Session&, const Tokenizer&, std::span<const int32_t> prompt,
                   const GenerateOptions&, const EmitText&, const KeepReading& = {},
                   std::unique_ptr<grammar::Constraint> = nullptr);

}  // namespace moe
