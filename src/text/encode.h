// Runs of text made into tokens, on all threads, in order: the same tokens whatever the number of
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "text/source.h"
#include "text/tokenizer.h"

namespace moe {

struct TokenSpan {
  uint32_t begin = 0, end = 0;  // tokens [begin, end)
};

struct EncodedRun {
  int64_t tokens() const { return static_cast<int64_t>(ids.size() + raw.size()); }

  std::vector<int32_t> ids;
  std::string_view raw;              // instead of ids where they are a text's bytes; of the file
  std::vector<uint32_t> ends;        // one past the last token of each document that ends here
  std::vector<TokenSpan> untrained;  // ascending, apart
  int64_t bytes = 0;                 // of text
  bool held_out = false;
  bool in_pair = false;  // as TextRun has it
};

class Encoder {
 public:
  using Sink = std::function<void(EncodedRun&&)>;
  // `threads` 0: all cores. The sink is called in the order of add(), from add() and flush().
  Encoder(const Tokenizer& tokenizer, int threads, Sink sink);
  void add(TextRun&& run);
  // Encodes what waits. Call it before the bytes that runs view go away.
  void flush();

 private:
  const Tokenizer& tokenizer_;
  int threads_;
  Sink sink_;
  std::vector<TextRun> waiting_;
  size_t waiting_bytes_ = 0;
};

// Bytes of an id: 1, 2 or 4.
int id_width(int64_t vocab);

}  // namespace moe
