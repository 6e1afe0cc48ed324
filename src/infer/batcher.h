// Continuous batching: many texts under way in the steps of one runner. Each step reads one token
// of every reply that is being written and a piece of the prompts that wait beside them; a text
// joins as soon as there is room for it and leaves when it ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "infer/generate.h"
#include "infer/prefix_cache.h"
#include "infer/shared_draft.h"

namespace moe {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// A token as the model saw it come, and those that were likelier than others in its place, most
// likely first, of the ids that texts have. Of the logits as they are, before temperature,
// penalties and cuts.
struct TokenLogprobs {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
  // How many tokens are as likely as it, itself among them, or likelier; 0: not asked for
  // (TextRequest::prompt_alternatives).
  int64_t rank = 0;
};

// The experts of tokens that were read, in the MoE layers [L] in order.
struct TokenRouting {
  std::vector<int32_t> ids;      // [tokens]
  std::vector<int32_t> experts;  // [tokens,L,K] as record_choices() writes them
  std::vector<float> weights;    // [tokens,L,K], 0 where nothing was sent
  void drop_last(int64_t tokens);
};

// What a step brought to one text.
struct TextProgress {
  std::string text;                            // that is certain now
  std::vector<int32_t> ids;                    // drawn
  std::vector<TokenLogprobs> logprobs;         // of `ids`, where asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // of the prompt's tokens but the first
  TokenRouting routing;                        // of the tokens read, where asked for
  bool empty() const {
    return text.empty() && ids.empty() && prompt_logprobs.empty() && routing.ids.empty();
  }
};

struct TextRequest {
  std::vector<int32_t> prompt;
  GenerateOptions options;  // `session` is the runner's affair
  // What the text has to be one of, and the tokens it is made of; null: anything.
  std::shared_ptr<const grammar::Grammar> grammar;
  std::shared_ptr<const grammar::TokenTable> tokens;
  std::string client;                // clients take turns
  int64_t top_logprobs = -1;         // alternatives of each token; -1: no log-probabilities at all
  bool prompt_logprobs = false;      // of the prompt's tokens too
  int64_t prompt_alternatives = -1;  // of those; -1: as many as of the others
  int32_t adapter = 0;               // that it is written with (ModelRunner::set_adapters); 0: none
  bool routing = false;
  // [tokens,L,K] of the first tokens of prompt and reply: what the routers take instead of their
  // own choices. Null: nothing. The choices of one prompt share it.
  std::shared_ptr<const std::vector<int32_t>> recorded;
  // Asked before each step, and must not throw; false: the text ends as "interrupted". Empty: it is
  // wanted.
  std::function<bool()> wanted;
  // Given what of the text has become certain, as soon as it has, from any thread but one piece
  // after the other; false: the text ends there as "interrupted". Empty: it goes on.
  std::function<bool(const std::string&)> goes_on;
  std::function<void(const TextProgress&)> on_progress;
  // Called once, last, and must not throw. The error is null where the text came to its end.
  std::function<void(const Generated&, const std::exception_ptr&)> on_end;
};

// Runner, tokenizer and draft outlive it. For one thread at a time.
class Batcher {
 public:
  // `parallel`: texts under way at most; `context`: tokens of one text at most, prompt and reply.
  // `draft`: guesses for the texts while there are few (SharedDraft::kTexts); null: nobody does.
  Batcher(ModelRunner&, const Tokenizer&, int64_t parallel, int64_t context,
          SharedDraft* draft = nullptr);
  ~Batcher();

  // Fails (usage) for what never can be done: no token, tokens outside the vocabulary, a prompt
  // that fills the context or the cache, choices of another model. May be called from any thread.
  void check(const TextRequest&) const;
  // A text takes its turn when room for all its tokens is there, so none runs out of it midway.
  // Fails as check() does; of what goes wrong later, memory that is refused too, the text's own
  // on_end() is told.
  void add(TextRequest);
  // One forward, and whatever of the texts came of it. False: there is nothing to do. Throws
  // nothing.
  bool step();
  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t active() const { return std::ssize(active_); }

 private:
  struct Text;
  using Texts = std::list<std::unique_ptr<Text>>;
  // Rows of one step, and whose they are.
  struct Step;
  struct Part;

  // One MoE layer's rows of a step.
  struct LayerChoices {
    int64_t slots = 0;             // K
    std::vector<int32_t> experts;  // [N,K]
    std::vector<float> weights;    // [N,K]
    void take(const MoeLayerSaved&);
  };

  void admit();
  std::deque<TextRequest>::iterator next_in_turn();
  bool begins_like_one_being_read(const TextRequest&) const;
  void begin(TextRequest);
  void drop_unwanted();
  void guess_ahead();
  void guess_with_draft();

  int64_t recorded_ahead(const Text&) const;
  void add_rows(Step&, Text&, int64_t most) const;
  std::vector<Step> plan_steps() const;
  std::vector<std::vector<int32_t>> recorded_rows(const Part&) const;
  void run(const Step&);
  void run_and_deliver(const Step&);
  void read_again(const Part&);
  std::span<const float> logits_of(const Part&, int64_t row, int64_t rows) const;
  void draw(const Part&) const;
  std::vector<std::exception_ptr> draw_all(const Step&) const;
  void show_routing(const Part&) const;
  void show_prompt_logprobs(const Part&);
  void deliver(const Part&);
  void keep_prefix(const Text&, std::span<const int32_t> ids);
  void flush(Text&);
  // `finish`: what the text is said to have ended by; null: what it did end by.
  void end(Text&, const std::exception_ptr& error, const char* finish = nullptr);

  int64_t most_tokens() const { return std::min(context_, runner_.cache().capacity()); }

  ModelRunner& runner_;
  const Tokenizer& tokenizer_;
  int64_t parallel_, context_;
  SharedDraft* draft_;
  PrefixCache prefixes_;
  std::deque<TextRequest> waiting_;
  Texts active_;                           // in the order they were admitted
  std::map<std::string, uint64_t> turns_;  // when a client's text was admitted last
  uint64_t turn_ = 0;
  std::vector<float> logits_;       // [wanted,V] of the step
  std::vector<LayerChoices> seen_;  // of the step, where somebody asked
};

}  // namespace moe
