// Prompt lookup: a guess of how a text goes on, taken from what it said before (the idea of "prompt
// lookup decoding", github apoorvumang/prompt-lookup-decoding).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "infer/guesser.h"

namespace moe {

// At most `most` tokens that may follow `text`: those behind the earlier place whose last tokens
// agree with the last ones of the text for longest; of equal ones the latest. Two have to agree,
// and no more are guessed than agree, so that a chance meeting costs little and a copied passage is
// soon taken in large pieces.
std::vector<int32_t> look_up(std::span<const int32_t> text, int64_t most);

class PromptLookup : public Guesser {
 public:
  explicit PromptLookup(int64_t at_once) : at_once_(at_once) {}
  std::vector<int32_t> guess(std::span<const int32_t> text, const Sampler&, int64_t most) override {
    return look_up(text, std::min(at_once_, most));
  }

 private:
  int64_t at_once_;
};

}  // namespace moe
