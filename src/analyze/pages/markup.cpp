#include "analyze/pages/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "text/utf8.h"

namespace moe {
namespace {

// The character that a complete sequence of UTF-8 encodes.
uint32_t code_point(std::string_view bytes) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i]));
  };
  switch (bytes.size()) {
    case 1: return byte(0);
    case 2: return (byte(0) & 31) << 6 | (byte(1) & 63);
    case 3: return (byte(0) & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    default:
      return (byte(0) & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
  }
}

// Directions (Unicode annex 9), invisible joins and breaks. U+200D stays: emoji are made with it.
bool is_unseen(uint32_t c) {
  return c == 0xAD || c == 0x61C || c == 0x180E || c == 0x200B || c == 0x200C || c == 0x200E ||
         c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
         c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE0FFF);
}

bool is_no_character(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE;
}

void append_character(std::string& out, std::string_view bytes, Spaces spaces) {
  const uint32_t c = code_point(bytes);
  if (c == '&') out += "&amp;";
  else if (c == '<') out += "&lt;";
  else if (c == '>') out += "&gt;";
  else if (c == '"') out += "&quot;";
  else if (c == '\'') out += "&#39;";
  else if (c == '\n') out += "↵";
  else if (c == '\t') out += "⇥";
  else if (c == ' ' && spaces == Spaces::shown) out += "␣";
  else if (c == 0x7F) out += "␡";
  else if (c < 0x20)
    out += {'\xE2', '\x90',
            static_cast<char>(0x80 + c)};  // U+2400 and on: pictures of control characters
  else if (is_unseen(c)) out += fmt::format("‹U+{:04X}›", c);
  else if (is_no_character(c)) out += "\uFFFD";
  else out += bytes;
}

}  // namespace

std::string escape(std::string_view text, Spaces spaces) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const auto length = static_cast<size_t>(step.length);
    if (step.kind == Utf8Step::Kind::character)
      append_character(out, text.substr(0, length), spaces);
    else out += "\uFFFD";
    text.remove_prefix(length);
  }
  return out;
}

size_t length_of(std::string_view text) {
  size_t characters = 0;
  for (; !text.empty(); ++characters)
    text.remove_prefix(static_cast<size_t>(utf8_step(text).length));
  return characters;
}

std::string shortened(std::string_view text, size_t characters) {
  if (length_of(text) <= characters) return std::string(text);
  size_t bytes = 0;
  for (size_t i = 1; i < characters; ++i)
    bytes += static_cast<size_t>(utf8_step(text.substr(bytes)).length);
  return std::string(text.substr(0, bytes)) + "…";
}

std::string decimal(double x, int digits) {
  if (!std::isfinite(x)) return "n/a";
  std::string text = fmt::format("{:.{}f}", x, digits);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string compact(double x) {
  if (!std::isfinite(x)) return "n/a";
  static constexpr auto kUnits = std::to_array<std::pair<double, const char*>>(
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}});
  const double size = std::abs(x);
  for (const auto& [unit, name] : kUnits) {
    if (size < unit * 0.9995) continue;
    const double scaled = x / unit;
    const int digits = std::abs(scaled) >= 99.95 ? 0 : std::abs(scaled) >= 9.995 ? 1 : 2;
    std::string text = decimal(scaled, digits);
    if (unit == 1 && std::abs(scaled - std::round(scaled)) < 1e-9) text = decimal(scaled, 0);
    return text + name;
  }
  if (size == 0) return "0";
  if (size < 1e-3) return fmt::format("{:.1e}", x);
  return decimal(x, size >= 0.1 ? 3 : 4);
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "n/a";
  const double hundredths = share * 100;
  if (hundredths == 0) return "0%";
  if (std::abs(hundredths) < 0.05) return "<0.1%";
  return decimal(hundredths, std::abs(hundredths) >= 9.95 ? 0 : 1) + "%";
}

std::string fine_percent(double share) {
  if (!std::isfinite(share)) return "n/a";
  return std::abs(share) < 0.0995 ? percent(share) : coordinate(share * 100) + "%";
}

std::string tick_number(double x, double step) {
  if (x == 0 || !std::isfinite(x)) return x == 0 ? "0" : "n/a";
  static constexpr auto kUnits = std::to_array<std::pair<double, const char*>>(
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}});
  for (const auto& [unit, name] : kUnits) {
    if (std::abs(x) < unit && unit > 1) continue;
    // Steps are 1, 2 or 5 times a power of ten, so that their logarithm says how many decimals tell
    // neighbours apart.
    const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)));
    if (digits > 4) break;
    return decimal(x / unit, digits) + name;
  }
  return fmt::format("{:.0e}", x);
}

std::string times(double ratio) {
  return decimal(ratio, ratio >= 9.95 ? 0 : ratio >= 0.095 ? 1 : 2) + "×";
}

std::string coordinate(double x) {
  std::string text = decimal(std::isfinite(x) ? x : 0, 1);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace moe
