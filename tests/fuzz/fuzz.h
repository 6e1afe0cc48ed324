// What every fuzzer demands of a parser: it takes the bytes, or it refuses them with an Error of
// one line. Anything else ends the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace moe::fuzz {

inline void demand(bool holds) {
  if (!holds) __builtin_trap();
}

template <class F>
void accept_or_refuse(F&& parse) {
  try {
    parse();
  } catch (const Error& e) {
    const std::string_view message = e.what();
    demand(!message.empty() && message.find('\n') == std::string_view::npos &&
           message.size() < 4000);
  }
}

// A safetensors file of a fuzzer's input, at least one byte. Random bytes hardly ever begin with a
// length that fits, so after an even first byte the length is written here: it is that of what
// stands before the first NUL, which parts header and data. After an odd one the bytes are taken as
// they are.
inline std::vector<std::byte> safetensors_file(const uint8_t* data, size_t size) {
  const auto rest = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 2 == 1) return {rest.begin(), rest.end()};
  const auto nul = std::find(rest.begin(), rest.end(), std::byte{0});
  const auto header = static_cast<uint64_t>(nul - rest.begin());
  std::vector<std::byte> file(8);
  std::memcpy(file.data(), &header, 8);
  file.insert(file.end(), rest.begin(), nul);
  if (nul != rest.end()) file.insert(file.end(), nul + 1, rest.end());
  return file;
}

}  // namespace moe::fuzz
