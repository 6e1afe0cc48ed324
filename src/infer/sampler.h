// From logits to the next token. Option names and their order are llama.cpp's: penalty, top-k,
// top-p, min-p, temperature.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace moe {

struct SamplerOptions {
  float temperature = 0.8f;  // 0: always the most likely token
  int64_t top_k = 40;        // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  float repeat_penalty = 1;  // 1: off; logits of recent tokens are divided by it when positive,
                             // multiplied when negative
  int64_t repeat_last = 64;  // how many tokens count as recent
  // Taken off the logit of a token that the reply holds: once for each time, and once in any case
  // (OpenAI's API reference, "frequency and presence penalties").
  float frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits of these tokens
  std::vector<int32_t> ends = {};  // none of them comes before so many tokens are drawn:
  int64_t min_tokens = 0;
  uint64_t seed = 0;
};

// Throws (usage) on values outside their range.
void validate(const SamplerOptions&);

class Sampler {
 public:
  explicit Sampler(const SamplerOptions&);

  // The next token. `logits` [V] is left alone; ties go to the lower id. The n-th call with the
  // same logits and history gives the same token. `allowed` has one bit a token, 64 a word: others
  // are no candidates at all, nor are those beyond its end; empty: all are.
  int32_t next(std::span<const float> logits, std::span<const uint64_t> allowed = {});
  // A token of the prompt, which counts for the penalty.
  void accept(int32_t id);

 private:
  struct Candidate {
    int32_t id;
    float logit;
    float p;
  };
  // Whether the logits count as they are.
  bool plain() const;
  bool must_go_on() const { return draws_ < static_cast<uint64_t>(options_.min_tokens); }
  // With penalties and biases; the logits themselves where there are none.
  std::span<const float> penalised(std::span<const float> logits);
  void cut(std::vector<Candidate>&) const;
  // `most`: the largest logit of the candidates.
  int32_t draw(std::vector<Candidate>&, float most) const;

  SamplerOptions options_;
  RngKey key_;
  uint64_t draws_ = 0;
  std::vector<int32_t> recent_;
  std::map<int32_t, int64_t> drawn_;  // how often, of the tokens that were drawn
  std::vector<float> changed_;        // [V] what penalised() gave last
};

}  // namespace moe
