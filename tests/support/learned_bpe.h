// A byte-level BPE learned from texts that a test has in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "text/bpe_train.h"

namespace moe::test {

inline std::unique_ptr<Tokenizer> learned_bpe(std::span<const std::string_view> texts,
                                              int64_t size) {
  BpeLearner learner;
  for (const std::string_view text : texts) learner.add(text);
  return learner.learn(size);
}

}  // namespace moe::test
