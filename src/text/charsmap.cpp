#include "text/charsmap.h"

#include <algorithm>

#include "core/error.h"

namespace moe {
namespace {

constexpr size_t kUnit = 4;  // bytes, little-endian

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = kUnit; i-- > 0;) word = word << 8 | static_cast<unsigned char>(bytes[at + i]);
  return word;
}

// The fields of a unit.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  const size_t size = bytes.size() < kUnit ? 0 : word_at(bytes, 0);
  if (size == 0 || size % kUnit != 0 || size > bytes.size() - kUnit)
    fail("its precompiled_charsmap of {} bytes has no trie of {}", bytes.size(), size);
  units_ = bytes.substr(kUnit, size);
  texts_ = bytes.substr(kUnit + size);
}

// Past the end stands what no byte leads to.
uint32_t Charsmap::unit(size_t i) const {
  return i < units_.size() / kUnit ? word_at(units_, i * kUnit) : 0x80000000;
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool longest) const {
  std::optional<Match> match;
  if (units_.empty()) return match;
  size_t node = offset(unit(0));
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    node ^= static_cast<unsigned char>(text[i]);
    const uint32_t here = unit(node);
    if (label(here) != static_cast<unsigned char>(text[i])) break;
    node ^= offset(here);
    if (!has_leaf(here)) continue;
    const size_t at = std::min<size_t>(value(unit(node)), texts_.size());
    const std::string_view rest = texts_.substr(at);
    match = Match{i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return match;
}

}  // namespace moe
