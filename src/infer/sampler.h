// From logits to the next token. Option names and their order are llama.cpp's: penalty, top-k,
// top-p, min-p, temperature.
#pragma once

#include <cstdint>
#include <span>
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
  uint64_t seed = 0;
};

// Throws (usage) on values outside their range.
void validate(const SamplerOptions&);

class Sampler {
 public:
  explicit Sampler(const SamplerOptions&);

  // The next token. `logits` [V] is left alone; ties go to the lower id. The n-th call with the
  // same logits and history gives the same token.
  int32_t next(std::span<const float> logits);
  // A token of the prompt, which counts for the penalty.
  void accept(int32_t id);

 private:
  struct Candidate {
    int32_t id;
    float logit;
    float p;
  };
  std::vector<Candidate> penalised(std::span<const float> logits) const;
  void cut(std::vector<Candidate>&) const;

  SamplerOptions options_;
  RngKey key_;
  uint64_t draws_ = 0;
  std::vector<int32_t> recent_;
};

}  // namespace moe
