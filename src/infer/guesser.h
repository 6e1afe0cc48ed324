// Whoever guesses how a text goes on. Generation checks the guesses in one step of the model, and
// what is written is the same whatever they are; good ones make it come sooner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "infer/session.h"

namespace moe {

constexpr int64_t kMostGuesses = 64;  // at once

// For one text at a time.
class Guesser {
 public:
  virtual ~Guesser() = default;
  // A text begins with these tokens. False: `keep` ended the reading of them.
  virtual bool begin(std::span<const int32_t> /*prompt*/, const KeepReading& /*keep*/) {
    return true;
  }
  // At most `most` tokens, and no more than kMostGuesses, that may follow `text`, which goes on
  // from what begin() was given. `sampler`: what draws them, as it stands behind the text.
  virtual std::vector<int32_t> guess(std::span<const int32_t> text, const Sampler& sampler,
                                     int64_t most) = 0;
};

}  // namespace moe
