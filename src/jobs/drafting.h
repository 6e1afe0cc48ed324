// A draft model (infer/draft.h) as whatever writes texts opens it: named by an option, held
// against the model whose tokens it guesses, its memory estimated beside that model's.
#pragma once

#include <cstdint>
#include <memory>

#include "core/watch.h"
#include "hub/hub.h"
#include "infer/memory_plan.h"
#include "infer/options.h"
#include "infer/shared_draft.h"
#include "options/read.h"

namespace moe {

// Fails (usage) for options that do not go together, before a model is loaded for nothing.
void check_draft_options(const DraftOptions&, const Given&);
void check_draft_options(const DraftOptions&, const GenerateOptions&, const Given&);
// Fails (usage) where a text is to be guessed in two ways.
void check_one_guesser(const DraftOptions&, const GenerateOptions&);

class Drafting {
 public:
  // Opens the model that the options name; as check_draft() fails. The other model outlives it.
  // `capacity`: tokens of a text at most; tells where the draft's context is shorter.
  Drafting(const DraftOptions&, const LoadedModel& writer, const SessionOptions& of_writer,
           const ComputeOptions&, int64_t capacity, const MemoryLimits&, const Watch&);
  // With a model that is open already, which others may use at the same time.
  Drafting(const DraftOptions&, std::shared_ptr<LoadedModel>, const LoadedModel& writer,
           const SessionOptions& of_writer, const ComputeOptions&, int64_t capacity, const Watch&);
  // What it holds, reading `tokens` at once.
  ForwardUse use(int64_t tokens) const;
  // Of many texts at once, of no more than `capacity` tokens each and `tokens` in the cache of the
  // model that writes them.
  ForwardUse shared_use(int64_t tokens) const;
  // Bytes of its cache a token.
  int64_t token_bytes() const;
  const DraftOptions& options() const { return options_; }
  // To the device, with a cache of its own. What it returns lives as long as this.
  Guesser& start();
  SharedDraft& start_shared(int64_t tokens);
  // Bytes of its cache that no text has filled yet.
  int64_t unfilled() const;

 private:
  DraftOptions options_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<LoadedModel> loaded_;
  Run run_;
  int64_t capacity_;
  SessionOptions session_;
  std::unique_ptr<DraftModel> model_;  // once it has started
  std::unique_ptr<SharedDraft> shared_;
};

// What came of the guesses in texts that were written so, `sum` of all; nothing where nobody
// guessed.
void tell_guesses(const GenerateOptions&, const Generated& sum, const Watch&);

}  // namespace moe
