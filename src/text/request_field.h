// A part of a request and its name there, such as messages[2].content: what is wrong with one is
// refused by that name.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe {

constexpr size_t kShownName = 40;  // of what a client sends: it may be long

// Views its JSON. All that refuses throws a usage error.
struct RequestField {
  const OrderedJson& json;
  std::string name;  // empty: the request itself

  // Null where there is none, or where it is null.
  const OrderedJson* find(const char* key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  RequestField at(const char* key) const {
    const std::string inner = name.empty() ? key : fmt::format("{}.{}", name, key);
    const OrderedJson* found = find(key);
    if (found == nullptr) fail_usage("{} is missing", inner);
    return {*found, inner};
  }
  RequestField at(size_t i) const { return {json[i], fmt::format("{}[{}]", name, i)}; }

  const RequestField& object() const {
    if (!json.is_object()) fail_usage("{} must be an object", name);
    return *this;
  }
  const RequestField& list() const {
    if (!json.is_array()) fail_usage("{} must be a list", name);
    return *this;
  }
  const std::string& text() const {
    if (!json.is_string()) fail_usage("{} must be a string", name);
    return json.get_ref<const std::string&>();
  }
  void only(const std::vector<std::string>& known) const {
    if (std::find(known.begin(), known.end(), text()) != known.end()) return;
    const std::string shown = printable(text(), kShownName);
    fail_usage("{}: \"{}\" is not known here{}", name, shown, suggestion(shown, known));
  }
  void text_if_there(const char* key) const {
    if (find(key) != nullptr) at(key).text();
  }
};

}  // namespace moe
