// Generation: a session feeds tokens to a model and keeps their keys and values.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/sampler.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace moe {

constexpr int64_t kPromptChunk = 512;  // tokens of a prompt that a forward reads; bounds the memory of a long one

struct SessionOptions {
  // Absent: default_eval. Models whose experts choose their tokens generate by EvalRouting::threshold, which has to be asked for because it is not what they
  // train with.
  std::optional<EvalRouting> routing;
  int64_t top_k_experts = 0;         // experts a token takes; 0: the model's own number
  std::optional<DType> cache_dtype;  // of keys and values; absent: cache_dtype()
};
// What keys and values are kept in: as asked, else as the products compute, but of half precision where weights are quantised, whose products round the
// activations more: bf16 where that is multiplied, else f16.
DType cache_dtype(const SessionOptions&, const Model&, DType compute);

// Asked before each chunk of a prompt; false: the rest of it is not read. Empty: nobody asks.
using KeepReading = std::function<bool()>;

// One sequence. Owns the cache; the Model and the Run must outlive it.
class Session {
 public:
  // `capacity`: most tokens the session will ever hold. Fails (usage) for a routing that depends on later tokens, which a session has not.
  Session(Model&, Run&, int64_t capacity, const SessionOptions& options = {});

  // Appends tokens (a prompt in chunks, or one token) and returns the logits [rows,V] after the last `rows` of them, valid until the next call; nothing when
  // `keep` said no. At least one token.
  std::span<const float> feed(std::span<const int32_t> ids, int64_t rows = 1, const KeepReading& keep = {});
  // Makes these the tokens that the session holds and returns the logits [V] after them. Keys and values stay as far as both agree; only what follows is fed.
  std::span<const float> read(std::span<const int32_t> ids, const KeepReading& keep = {});
  // Goes back to the first `length` tokens.
  void cut(int64_t length);
  std::span<const int32_t> ids() const { return ids_; }
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  int64_t capacity() const { return cache_.capacity(); }
  int64_t fed() const { return fed_; }  // tokens since the session began, those since dropped too
  // Rows that each expert [E] of each MoE layer in order computed since the session began.
  const std::vector<std::vector<int64_t>>& expert_rows() const { return expert_rows_; }

 private:
  void feed_chunk(std::span<const int32_t> ids, Tensor logits);

  Model& model_;
  Run& run_;
  RoutingSpec routing_;
  KvCache cache_;
  std::vector<int32_t> ids_;  // what the cache holds
  int64_t fed_ = 0;
  std::vector<float> logits_;  // [rows,V]
  std::vector<std::vector<int64_t>> expert_rows_;
};

struct GenerateOptions {
  int64_t max_tokens = 200;       // fewer where the model's learned positions end
  std::vector<std::string> stop;  // generation ends before the first of these
  SamplerOptions sampler;
  SessionOptions session;
  // Prompt lookup (infer/lookup.h): at most so many tokens are guessed from what the text said before and checked together in one forward; 0: none. The text is
  // the same, token for token, as far as a row of a product does not depend on other rows (ops::products_keep_row_bits).
  int64_t prompt_lookup = 0;
};

// Throws (usage) on values outside their range.
void validate(const GenerateOptions&);

struct Generated {
  std::string text;  // without the prompt
  int64_t prompt_tokens = 0;
  int64_t read_tokens = 0;  // of them, those that the session had not read before
  int64_t tokens = 0;
  int64_t proposed = 0, accepted = 0;    // tokens guessed by prompt lookup, and those of them that were the ones drawn
  std::vector<int32_t> prompt_ids, ids;  // [prompt_tokens], [tokens]
  std::string finish;                    // "length", "stop" or "interrupted"
  double prompt_seconds = 0, decode_seconds = 0;
  std::vector<std::vector<int64_t>> expert_rows;  // as Session has them, since it began
};

// Gets text as soon as it is certain (whole characters, no part of a stop string); returning false ends the generation.
using EmitText = std::function<bool(const std::string&)>;

// A session with room for the prompt and what `options` let follow, so that several texts can follow it. Fails as generate() does.
Session session_for(Model&, Run&, std::span<const int32_t> prompt, const GenerateOptions&);

Generated generate(Model&, Run&, const Tokenizer&, const std::string& prompt, const GenerateOptions&, const EmitText&, const KeepReading& = {});
// The same in a session that may have read some of the prompt already; its own options and the room it has left count, not those of `options`.
Generated generate(Session&, const Tokenizer&, std::span<const int32_t> prompt, const GenerateOptions&, const EmitText&, const KeepReading& = {});
// Fails (usage) for a model that writes a text only by a routing that has to be asked for, when none was.
void check_asked_for(const ModelConfig&, std::optional<EvalRouting> asked);

}  // namespace moe
