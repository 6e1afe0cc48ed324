// Text to shards (text/shards.h), whatever its size: one file at a time, what waits to be encoded
// bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/shards.h"
#include "text/source.h"
#include "text/tokenizer.h"

namespace moe {

struct TokenizeJob {
  std::vector<std::string> paths;  // as each_source
  std::string out;                 // a folder that is not there yet, or empty
  double hold_out = 0;             // above 0: OUT/train and OUT/valid, split as Corpus::split does
  int threads = 0;                 // 0: all cores
  int64_t shard_tokens = int64_t{1} << 26;
};

struct TokenizeResult {
  TokensIndex train;
  std::optional<TokensIndex> held_out;
  Skipped skipped;
};

// Written beside OUT and renamed, so that OUT is there whole or not at all. `progress` is told the
// bytes of text that are done, and may throw to stop.
TokenizeResult tokenize(const TokenizeJob& job, const Tokenizer& tokenizer,
                        const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace moe
