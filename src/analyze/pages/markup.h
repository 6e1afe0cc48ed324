// Text and numbers as they stand in a page: whatever came from a file or a model is escaped here,
// and numbers are rounded to what a reader can use. The same value gives the same bytes everywhere.
#pragma once

#include <string>
#include <string_view>

namespace moe {

enum class Spaces { kept, shown };  // shown: as open boxes, for a token that stands alone

// Safe between tags and in quoted attributes, of HTML and XML alike. What cannot be seen is made
// visible: line ends and tabs as arrows, control characters as their pictures, marks that change
// the direction or the joining of what follows as their number; bytes that are no UTF-8 become
// U+FFFD.
std::string escape(std::string_view text, Spaces spaces = Spaces::kept);

// The first `characters` of a text, an ellipsis in place of the rest; never cuts a character of
// UTF-8.
std::string shortened(std::string_view text, size_t characters);
// Characters of UTF-8, a broken byte counting as one.
size_t length_of(std::string_view text);

// Values that are not finite print as "n/a".
std::string decimal(double x, int digits);
std::string compact(double x);           // three digits: 0.0312, 1.34, 924k, 2.69M
std::string percent(double share);       // 52%, 5.2%, 0.5%
std::string fine_percent(double share);  // 12.5%
std::string times(double ratio);         // 2.3×
std::string coordinate(double x);        // one decimal at most
// A number of an axis: as many decimals as the distance of its neighbours needs.
std::string tick_number(double x, double step);

}  // namespace moe
