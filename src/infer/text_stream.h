// The text of tokens that come one by one: what of it may be shown already, and where it ends.
// Knows nothing of where the tokens come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

class TextStream {
 public:
  // The text ends before the first of `stops`, and with the tokenizer's own end. The tokenizer
  // outlives this.
  TextStream(const Tokenizer&, std::vector<std::string> stops);

  // Takes the next token and returns what is certain now and was not before: whole characters, no
  // part of a stop string. With the tokenizer's end all that was held back is.
  std::string push(int32_t id);
  bool ended() const { return ended_; }
  // The stop string that ended it; empty: none has.
  const std::string& stop() const { return stop_; }
  // No token follows: the rest, which held what might have become a character or a stop string.
  std::string finish();
  // All that was returned so far.
  std::string shown() const { return text_.substr(0, shown_); }

 private:
  std::string show(size_t end);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  StreamDecoder decoder_;
  std::string text_, stop_;
  size_t shown_ = 0;
  bool ended_ = false;
};

}  // namespace moe
