// What a long piece of work tells whoever started it, and what it asks of him. Left as it is, it
// tells nobody and is never stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace moe {

// Told how many of `what` are done, of how many.
using Progress = std::function<void(int64_t done, int64_t total, std::string_view what)>;

struct Watch {
  // At the beginning of a stretch of work, whose end is the end of what this returns.
  std::function<Progress()> begin = [] { return [](int64_t, int64_t, std::string_view) {}; };
  // A line for people, with its fields marked (core/error.h).
  std::function<void(const std::string& line)> tell = [](const std::string&) {};
  // Whether the work shall end: it then throws and leaves nothing half done. Who never was asked
  // may still end it where it stands.
  std::function<bool()> stopped = [] { return false; };
};

}  // namespace moe
