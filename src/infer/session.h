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

// One sequence. Owns the cache; the Model and the Run must outlive it.
class Session {
 public:
  // `capacity`: most tokens the session will ever hold. `routing` absent: default_eval. Fails (usage) for a routing that depends on later tokens, which a
  // session has not.
  Session(Model&, Run&, int64_t capacity, std::optional<EvalRouting> routing = std::nullopt);

  // Appends tokens (a prompt in chunks, or one token) and returns the logits [V] after the last one, valid until the next call. At least one token.
  std::span<const float> feed(std::span<const int32_t> ids);
  // Makes these the tokens that the session holds and returns the logits after them. Keys and values stay as far as both agree; only what follows is fed.
  std::span<const float> read(std::span<const int32_t> ids);
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  int64_t capacity() const { return cache_.capacity(); }
  int64_t fed() const { return fed_; }  // tokens since the session began, those since dropped too

 private:
  void feed_chunk(std::span<const int32_t> ids);

  Model& model_;
  Run& run_;
  RoutingSpec routing_;
  KvCache cache_;
  std::vector<int32_t> ids_;  // what the cache holds
  int64_t fed_ = 0;
  std::vector<float> logits_;  // [V]
};

struct GenerateOptions {
  int64_t max_tokens = 200;       // fewer where the model's learned positions end
  std::vector<std::string> stop;  // generation ends before the first of these
  SamplerOptions sampler;
  // Absent: dropless. Models whose experts choose their tokens need EvalRouting::threshold, which has to be asked for because it is not what they train with.
  std::optional<EvalRouting> routing;
};

// Throws (usage) on values outside their range.
void validate(const GenerateOptions&);

struct Generated {
  std::string text;  // without the prompt
  int64_t prompt_tokens = 0;
  int64_t read_tokens = 0;  // of them, those that the session had not read before
  int64_t tokens = 0;
  std::string finish;  // "length", "stop" or "interrupted"
};

// Gets text as soon as it is certain (whole characters, no part of a stop string); returning false ends the generation.
using EmitText = std::function<bool(const std::string&)>;

Generated generate(Model&, Run&, const Tokenizer&, const std::string& prompt, const GenerateOptions&, const EmitText&);
// The same in a session that may have read some of the prompt already; its routing and the room it has left count, not those of the options.
Generated generate(Session&, const Tokenizer&, std::span<const int32_t> prompt, const GenerateOptions&, const EmitText&);
// Fails (usage) for a model that writes a text only by a routing that has to be asked for, when none was.
void check_asked_for(const ModelConfig&, std::optional<EvalRouting> asked);

}  // namespace moe
