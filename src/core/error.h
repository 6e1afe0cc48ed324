// The one exception of the library, and the two ways to throw it.
// The library never prints or exits: a message says what went wrong, where (tensor, shape, file,
// offset) and what to do.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace moe {

// Messages name fields of options ("min_lr"), which the command line, JSON and Python each spell in
// their own way: a name stands between two marks, and whoever shows the message spells it.
std::string field(std::string_view name);
// `text` with its fields as `spell` writes their names; without one as they are.
using Spelling = std::function<std::string(std::string_view name)>;
std::string spelled(std::string_view text, const Spelling& spell = {});
// `text` with "@min_lr" as field("min_lr").
std::string marked(std::string_view text);

std::string format_message(fmt::string_view format, fmt::format_args args);
// fmt::format of the marked format; arguments are left as they are.
template <class... Args>
std::string message(fmt::format_string<Args...> format, Args&&... args) {
  return format_message(format, fmt::make_format_args(args...));
}

class Error : public std::runtime_error {
 public:
  // `usage` is for a command line or configuration that asks for something that has no meaning
  // (exit code 2); `failed` for everything that went wrong while doing something meaningful (exit
  // code 1).
  enum class Kind { failed, usage };

  explicit Error(const std::string& text, Kind kind = Kind::failed)
      : std::runtime_error(spelled(text)), marked_(text), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }
  // what(), its fields still marked.
  const std::string& marked() const noexcept { return marked_; }

 private:
  std::string marked_;
  Kind kind_;
};

// The format is that of message().
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(format_message(format, fmt::make_format_args(args...)));
}

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(format_message(format, fmt::make_format_args(args...)), Error::Kind::usage);
}

}  // namespace moe
