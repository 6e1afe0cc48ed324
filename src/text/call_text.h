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

// A reply of rows of text and marks, `marks` a table whose rows have a `text`: takes apart from the
// first to the last what stands between marks, on_text(text, ended), where there is some, and each
// mark, on_mark(row). Of a reply under way (`whole` false) the end that may become a mark is left
// out, and the text before it is not `ended`.
template <class Mark, size_t N, class OnText, class OnMark>
void take_by_marks(std::string_view reply, const Mark (&marks)[N], bool whole, OnText&& on_text,
                   OnMark&& on_mark) {
  size_t from = 0;  // of the text that no mark has ended
  for (size_t at = reply.find('<'); at != std::string_view::npos; at = reply.find('<', at)) {
    const Mark* mark = std::find_if(marks, marks + N, [&](const Mark& each) {
      return reply.substr(at).starts_with(each.text);
    });
    if (mark == marks + N) {
      ++at;
      continue;
    }
    if (at > from) on_text(reply.substr(from, at - from), true);
    on_mark(*mark);
    from = at += mark->text.size();
  }
  std::string_view rest = reply.substr(from);
  if (const size_t at = rest.rfind('<'); !whole && at != std::string_view::npos &&
                                         std::any_of(marks, marks + N, [&](const Mark& each) {
                                           return each.text.starts_with(rest.substr(at));
                                         }))
    rest = rest.substr(0, at);
  if (!rest.empty()) on_text(rest, whole);
}

// The value that a text is in JSON.
std::optional<OrderedJson> json_of(std::string_view text);

}  // namespace moe
