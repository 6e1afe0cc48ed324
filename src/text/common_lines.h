// How much of one text stands in another too, counted by lines: what tells a text that judges a
// model from the one that the model was fitted to.
#pragma once

#include <string_view>

namespace moe {

// The share of the bytes of `text`'s telling lines that are lines of `other` too, wherever they
// stand; 0 where there is no such line. White space around a line does not count. A line of under
// 20 bytes tells nothing (a brace, a heading) where there are longer ones; one of several sentences
// is as many lines, and a very long one is cut at words.
double shared_lines(std::string_view text, std::string_view other);

}  // namespace moe
