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

// Trinity's for digits: in threes from the right, in runs of 510 of which the first is what is left
// over.
inline constexpr std::string_view kTrinityDigits[] = {
    R"(\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510})",
    R"(\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z))", R"(\A\p{Nd}{3}|\G\p{Nd}{3})"};

// What to match by in place of patterns that cut in turn.
std::vector<std::string> linear_patterns(const std::vector<std::string>& patterns);

}  // namespace moe
