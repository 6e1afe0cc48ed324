// What the readers of calls in replies share (text/tool_calls.h): white space, marks, JSON.
#pragma once

#include <algorithm>
#include <cstdint>
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
// first to the last what stands between marks, on_text(text), perhaps in several pieces, and each
// mark, on_mark(row). What may become a mark at the end is kept until it is one, or none.
template <class Mark, size_t N>
class MarkReader {
 public:
  explicit MarkReader(const Mark (&marks)[N]) : marks_(marks) {}

  template <class OnText, class OnMark>
  void add(std::string_view piece, OnText&& on_text, OnMark&& on_mark) {
    held_ += piece;
    looked_ += static_cast<int64_t>(held_.size());
    const std::string_view text = held_;
    size_t from = 0;  // of the text that no mark has ended
    for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at)) {
      const Mark* mark = std::find_if(marks_, marks_ + N, [&](const Mark& each) {
        return text.substr(at).starts_with(each.text);
      });
      if (mark == marks_ + N) {
        ++at;
        continue;
      }
      if (at > from) on_text(text.substr(from, at - from));
      on_mark(*mark);
      from = at += mark->text.size();
    }
    const std::string_view rest = text.substr(from);
    const size_t kept = part_at_end_of(rest);
    if (kept < rest.size()) on_text(rest.substr(0, rest.size() - kept));
    held_.erase(0, held_.size() - kept);
  }
  // Nothing follows.
  template <class OnText>
  void end(OnText&& on_text) {
    if (!held_.empty()) on_text(std::string_view(held_));
    held_.clear();
  }
  // Bytes, each as often as it was looked at.
  int64_t looked() const { return looked_; }

 private:
  // How many bytes may become a mark.
  size_t part_at_end_of(std::string_view text) const {
    const size_t at = text.rfind('<');
    const bool part =
        at != std::string_view::npos && std::any_of(marks_, marks_ + N, [&](const Mark& each) {
          return each.text.starts_with(text.substr(at));
        });
    return part ? text.size() - at : 0;
  }

  const Mark (&marks_)[N];
  std::string held_;
  int64_t looked_ = 0;
};

// The value that a text is in JSON.
std::optional<OrderedJson> json_of(std::string_view text);

}  // namespace moe
