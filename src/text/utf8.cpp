#include "text/utf8.h"

#include <algorithm>

namespace moe {

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {Kind::character, 1};
  if (first < 0xC2 || first > 0xF4) return {Kind::broken, 1};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte's range rules out overlong forms (E0, F0), surrogates (ED) and what lies above
  // U+10FFFF (F4).
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < std::min(length, bytes.size()); ++i) {
    const bool fits =
        i == 1 ? byte(i) >= low && byte(i) <= high : byte(i) >= 0x80 && byte(i) <= 0xBF;
    if (!fits) return {Kind::broken, static_cast<int>(i)};
  }
  return bytes.size() < length ? Utf8Step{Kind::cut, static_cast<int>(bytes.size())}
                               : Utf8Step{Kind::character, static_cast<int>(length)};
}

size_t space_length(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) return 1;
  for (const std::string_view space :
       {"\u0085", "\u00A0", "\u1680", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"})
    if (text.starts_with(space)) return space.size();
  return text.size() >= 3 && text.starts_with("\xE2\x80") &&
                 static_cast<unsigned char>(text[2]) <= 0x8A
             ? 3
             : 0;  // U+2000..200A
}

std::string readable_name(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    const Utf8Step step = utf8_step(name);
    const std::string_view part = name.substr(0, static_cast<size_t>(step.length));
    const auto first = static_cast<unsigned char>(part[0]);
    const bool control = first < 0x20 || first == 0x7F ||
                         (first == 0xC2 && static_cast<unsigned char>(part.back()) < 0xA0);
    if (step.kind == Utf8Step::Kind::character && !control) out += part;
    else out += "\uFFFD";
    name.remove_prefix(part.size());
  }
  return out;
}

}  // namespace moe
