#include "core/base64.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"

namespace moe {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::string from_base64(std::string_view text) {
  std::string bytes;
  const size_t end = text.find('=') == std::string_view::npos ? text.size() : text.find('=');
  if (text.size() % 4 != 0 || text.size() - end > 2 ||
      text.find_first_not_of('=', end) != std::string_view::npos)
    fail_usage("{} characters are no base64", text.size());
  uint32_t group = 0;
  for (size_t i = 0; i < end; ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) fail_usage("character {} is no digit of base64", i + 1);
    group = group << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) bytes += static_cast<char>(group >> (6 - 2 * (i % 4)) & 255);
  }
  return bytes;
}

}  // namespace moe
