// The one exception of the library, and the two ways to throw it.
// The library never prints or exits: a message says what went wrong, where (tensor, shape, file, offset) and what to do.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace moe {

class Error : public std::runtime_error {
 public:
  // `usage` is for a command line or configuration that asks for something that has no meaning (exit code 2);
  // `failed` for everything that went wrong while doing something meaningful (exit code 1).
  enum class Kind { failed, usage };

  explicit Error(const std::string& message, Kind kind = Kind::failed) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...), Error::Kind::usage);
}

}  // namespace moe
