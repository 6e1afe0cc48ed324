// The table both ways.
#include "text/byte_alphabet.h"

namespace moe {
namespace {

constexpr int kAlphabet = 256;
constexpr int kCodes = 0x144;  // one past the last character of the alphabet

constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

// Code point -> byte; -1 outside the alphabet.
constexpr std::array<int, kCodes> bytes_of_codes() {
  std::array<int, kCodes> bytes{};
  bytes.fill(-1);
  int next = 0x100;
  for (int b = 0; b < kAlphabet; ++b) bytes[stands_for_itself(b) ? b : next++] = b;
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const std::array<std::string, kAlphabet> alphabet = [] {
    std::array<std::string, kAlphabet> made;
    const auto bytes = bytes_of_codes();
    for (int code = 0; code < kCodes; ++code) {
      if (bytes[code] < 0) continue;
      if (code < 0x80) made[bytes[code]] = static_cast<char>(code);
      else
        made[bytes[code]] = {static_cast<char>(0xC0 | code >> 6),
                             static_cast<char>(0x80 | (code & 0x3F))};
    }
    return made;
  }();
  return alphabet;
}

std::string to_alphabet(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) token += byte_alphabet()[static_cast<unsigned char>(b)];
  return token;
}

std::optional<std::string> from_alphabet(std::string_view token) {
  static constexpr auto kByteOf = bytes_of_codes();
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    int code = static_cast<unsigned char>(token[i]);
    if (code >= 0x80) {
      // All the alphabet's other characters take two bytes.
      if (code < 0xC2 || code > 0xDF || i + 1 == token.size()) return std::nullopt;
      const int low = static_cast<unsigned char>(token[++i]);
      if ((low & 0xC0) != 0x80) return std::nullopt;
      code = (code & 0x1F) << 6 | (low & 0x3F);
    }
    if (code >= kCodes || kByteOf[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[code]);
  }
  return bytes;
}

}  // namespace moe
