// Flags whose values are names: of the rows of a table, or of an enum's values.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"

namespace moe::cli {

template <class T>
std::vector<std::string> names_of(const std::vector<T>& table) {
  std::vector<std::string> names;
  for (const T& row : table) names.emplace_back(row.name);
  return names;
}

template <class T>
std::string listed(const std::vector<T>& table) {
  return fmt::format("{}", fmt::join(names_of(table), ", "));
}

// A named value of an enum, as flags spell it.
template <class T>
struct Choice {
  std::string_view name;
  T value;
};

template <class T>
T choose(std::string_view name, const char* flag, const std::vector<Choice<T>>& choices) {
  for (const Choice<T>& c : choices)
    if (c.name == name) return c.value;
  fail_usage("{} has no value '{}'{}", flag, name, suggestion(name, names_of(choices)));
}
// The same where `names` are those of the enum's values, in their order.
template <class T>
T choose(std::string_view name, const char* flag, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<T>(i);
  fail_usage("{} has no value '{}'{}", flag, name, suggestion(name, names));
}

}  // namespace moe::cli
