// One draft model (infer/draft.h) that guesses for many texts under way: the rows of all of them
// are one step of the draft, first those that it has not read yet, then a guess of each at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "infer/draft.h"
#include "infer/prefix_cache.h"

namespace moe {

// For one thread at a time.
class SharedDraft {
 public:
  // Guesses are worth their rows in a step that has few others. While more texts than these are
  // under way nobody is guessed for.
  static constexpr int64_t kTexts = 4;

  // Model, run and the writing model's tokenizer outlive it. `of_text`: the most tokens of one
  // text; `cache_tokens`: of all that it reads together.
  SharedDraft(Model&, Run&, const Tokenizer&, int64_t of_text, int64_t cache_tokens,
              const DraftOptions&, const SessionOptions& = {});
  // Tokens of the cache that kTexts texts can fill, of a cache of so many of the writing model.
  static int64_t cache_tokens(int64_t of_text, int64_t of_writer) {
    return std::min(in_blocks(of_writer), kTexts * in_blocks(of_text));
  }

  // What is read of one text, until this goes. The draft outlives it.
  class Reader {
   public:
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    friend class SharedDraft;
    Reader(SharedDraft&, int32_t slot, int64_t limit, int64_t most);

    SharedDraft& draft_;
    int32_t slot_;
    int64_t limit_;             // tokens that it reads at most
    std::vector<int32_t> ids_;  // what the cache holds
    GuessRecord guesses_;
  };
  // Of a text that begins with the prompt and has at most `limit` tokens. Null: it cannot be read,
  // or there is no room for it.
  std::unique_ptr<Reader> follow(std::span<const int32_t> prompt, int64_t limit);

  struct Ask {
    Reader* reader;
    std::span<const int32_t> text;  // as far as it is known
    const Sampler* sampler;         // as it stands behind the text; null: it is only read
    int64_t most;                   // guesses, and no more than kMostGuesses
    std::vector<int32_t> guesses;   // what comes of it
  };
  // Reads of the texts what is new, at most prompt_chunk() tokens of all, and guesses for those
  // that are read. Where it fails, none of these readers may be asked again.
  void guess(std::span<Ask>);
  // Tokens that it has read so far, those of wrong guesses too.
  int64_t computed() const { return computed_; }

 private:
  // An ask under way.
  struct Round;

  std::vector<Round> begin(std::span<Ask>);
  void step(std::span<Round>);
  void draw(std::span<Round>);
  static int64_t unread_of(const Ask&);

  ModelRunner runner_;
  DraftDraw draw_;
  DraftOptions options_;
  int64_t of_text_;
  PrefixCache prefixes_;
  int64_t computed_ = 0;
  int64_t reserved_ = 0;       // tokens, whole blocks, of all readers
  std::vector<float> logits_;  // [wanted,V] of the step
};

}  // namespace moe
