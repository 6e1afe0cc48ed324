// What every fuzzer demands of a parser: it takes the bytes, or it refuses them with an Error of one line. Anything else ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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
    demand(!message.empty() && message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
}

}  // namespace moe::fuzz
