// One document as a source hands it out, before it is tokenised.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moe {

struct ByteSpan {
  int64_t begin = 0, end = 0;  // bytes [begin, end)
};

struct Document {
  std::string text;
  bool all_trained = true;  // every byte is learned from; else only those of `trained`
  // ascending, apart; a token is learned from when its first byte lies in one
  std::vector<ByteSpan> trained;
};

}  // namespace moe
