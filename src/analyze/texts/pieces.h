// Tokens as people may read them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace moe {

// A token that stands alone: valid UTF-8, bytes that are no whole character being written "0xC3".
// Control characters stay; whoever draws them makes them visible.
std::string shown_alone(std::string_view bytes);

// Tokens in a row: together the text. A character of several tokens stands with its last one, the
// others are empty; what can never become a character is U+FFFD.
std::vector<std::string> shown_in_row(const Tokenizer&, std::span<const int32_t> ids);

// The part of a text's tokens in which no character is cut at either end; all of them where the
// text is no UTF-8 there. [begin, end)
struct WholeCharacters {
  size_t begin = 0, end = 0;
};
WholeCharacters whole_characters(const Tokenizer&, std::span<const int32_t> ids);

}  // namespace moe
