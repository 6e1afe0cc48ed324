// The text of tokens that come one by one: what of it may be shown already, and where it ends.
// Knows nothing of where the tokens come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

// What else may be asked of a text than where it ends. Lists of ids are sorted.
struct TextRules {
  std::vector<int32_t> stop_ids = {};  // end the text as the tokenizer's own ends do
  std::vector<int32_t> kept_ids = {};  // of both those whose text stays where they end it
  size_t kept_stops = 0;               // likewise the first so many of the stop strings
  // Whose text is left out. One whose text is a stop string ends the text all the same.
  std::vector<int32_t> hidden = {};
  int64_t min_tokens = 0;  // no stop string ends the text before there are more
};

class TextStream {
 public:
  // The text ends before the first of `stops`, and with the tokenizer's own end. The tokenizer
  // outlives this.
  TextStream(const Tokenizer&, std::vector<std::string> stops, TextRules rules = {});

  // Takes the next token and returns what is certain now and was not before: whole characters, no
  // part of a stop string. With the tokenizer's end all that was held back is.
  std::string push(int32_t id);
  bool ended() const { return ended_; }
  // The stop string that ended it; empty: none has.
  const std::string& stop() const { return stop_; }
  // Which of TextRules::stop_ids has.
  std::optional<int32_t> stop_id() const { return stop_id_; }
  // No token follows: the rest, which held what might have become a character or a stop string.
  std::string finish();
  // All that was returned so far.
  std::string shown() const { return text_.substr(0, shown_); }

 private:
  std::string show(size_t end);
  std::string end_with(int32_t id);
  std::string end_at(const std::string& stop, size_t begin);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  TextRules rules_;
  StreamDecoder decoder_;
  std::string text_, stop_;
  std::optional<int32_t> stop_id_;
  size_t shown_ = 0;
  int64_t tokens_ = 0;
  bool ended_ = false;
};

}  // namespace moe
