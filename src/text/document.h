// One document as a source hands it out, before it is tokenised; or a pair of them.
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
  // Of a pair, as it stands and by no template: bos and the end-of-text token are put around it,
  // where the tokenizer has them.
  bool is_plain = false;
  // Of a preference pair, whose chosen text this is: the one that was rejected, alone.
  std::vector<Document> rejected;
};

}  // namespace moe
