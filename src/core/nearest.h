// Parts of helpful messages: the known name nearest to a mistyped one, and foreign text made fit
// for one line.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, the first of equals; nothing when none is near enough to be meant (a third
// of the longer name differs, and it is not its beginning, be it with one edit). Case counts for
// nothing, and so do '-' and '_'.
std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates);

// "; did you mean \"NAME\"?" or, where nothing is near, "; known are A, B, C" (at most `list`
// names) or nothing. For the end of a message.
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates,
                       size_t list = 12);

// What a file, perhaps a hostile one, may put into a message: one line of printable ASCII, cut
// after `limit` characters.
std::string printable(std::string_view text, size_t limit = 120);
// A message as it is shown: the name of a file may hold a newline, and a message is one line. UTF-8
// stays.
std::string one_line(std::string text);

}  // namespace moe
