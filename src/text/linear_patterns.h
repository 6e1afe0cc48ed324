// Patterns of models that take stack or steps beyond a text's length where one kind of character
// goes on for long, said otherwise: with the same matches in every text. Only Splitter sees that;
// a tokenizer is written and known by the patterns that its model has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe {

// K-EXAONE's: words with single spaces between them are one piece.
inline constexpr std::string_view kExaoneMoePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";

// What to match by in place of patterns that cut in turn.
std::vector<std::string> linear_patterns(const std::vector<std::string>& patterns);

}  // namespace moe
