// What the readers of calls in replies share (text/tool_calls.h): white space, marks, JSON.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace moe {

constexpr std::string_view kReplySpace = " \t\r\n";

inline std::string_view trimmed_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kReplySpace), text.size()));
}
inline std::string_view trimmed_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kReplySpace) + 1);
}
inline std::string_view trimmed(std::string_view text) { return trimmed_left(trimmed_right(text)); }

inline bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (prefix.empty() || !text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// What stands before `mark`, which goes too; nothing where there is no mark.
inline std::optional<std::string_view> take_until(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

// The value that a text is in JSON.
std::optional<OrderedJson> json_of(std::string_view text);
// On one line; bytes that are no character become U+FFFD.
std::string one_line_json(const OrderedJson&);

}  // namespace moe
