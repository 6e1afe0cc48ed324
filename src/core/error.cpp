#include "core/error.h"

#include <algorithm>

namespace moe {
namespace {

constexpr char kBegin = '\x01', kEnd = '\x02';  // no text of a person has them
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

}  // namespace

std::string field(std::string_view name) {
  std::string text(1, kBegin);
  text += name;
  return text += kEnd;
}

std::string spelled(std::string_view text, const Spelling& spell) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end =
        text[at] == kBegin ? text.find_first_not_of(kLetters, at + 1) : std::string_view::npos;
    if (end == std::string_view::npos || text[end] != kEnd || end == at + 1) {
      out += text[at++];
      continue;
    }
    const std::string_view name = text.substr(at + 1, end - at - 1);
    out += spell ? spell(name) : std::string(name);
    at = end + 1;
  }
  return out;
}

std::string marked(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '@' || at + 1 == text.size() || !is_letter(text[at + 1])) {
      out += text[at++];
      continue;
    }
    const size_t end = std::min(text.find_first_not_of(kLetters, at + 1), text.size());
    out += field(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

std::string format_message(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(marked({format.data(), format.size()}), args);
}

}  // namespace moe
