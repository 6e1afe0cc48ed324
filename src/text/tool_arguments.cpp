#include "text/tool_arguments.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/call_text.h"
#include "text/literals.h"

namespace moe {
namespace {

constexpr std::pair<std::string_view, ArgumentKind> kArgumentTypes[] = {
    {"string", kTextArgument},     {"number", kNumberArgument}, {"integer", kWholeArgument},
    {"boolean", kBooleanArgument}, {"null", kNullArgument},     {"object", kObjectArgument},
    {"array", kArrayArgument}};

template <class AnyJson>
unsigned kind_of_value(const AnyJson& value) {
  if (value.is_string()) return kTextArgument;
  if (value.is_boolean()) return kBooleanArgument;
  if (value.is_null()) return kNullArgument;
  if (value.is_object()) return kObjectArgument;
  if (value.is_array()) return kArrayArgument;
  const auto number = value.template get<double>();
  return number == std::floor(number) ? kNumberArgument | kWholeArgument : kNumberArgument;
}

// Reads one tool's parameters. A schema may lead back to itself, so that the steps are counted.
class KindReader {
 public:
  explicit KindReader(const Json& root) : root_(root) {}

  unsigned kinds(const Json& schema) {
    if (!schema.is_object() || steps_ == 0) return 0;
    --steps_;
    if (const auto ref = schema.find("$ref"); ref != schema.end()) return referred(*ref);
    unsigned found = 0;
    if (const auto type = schema.find("type"); type != schema.end()) {
      found = named(*type);
    } else if (const auto constant = schema.find("const"); constant != schema.end()) {
      found = kind_of_value(*constant);
    } else if (const auto values = schema.find("enum"); values != schema.end()) {
      if (values->is_array())
        for (const Json& value : *values) found |= kind_of_value(value);
    } else {
      found = any_of(schema);
    }
    if (found != 0 && schema.contains("nullable") && schema["nullable"] == true)
      found |= kNullArgument;
    return found;
  }

 private:
  static unsigned named(const Json& type) {
    if (type.is_array()) {
      unsigned found = 0;
      for (const Json& each : type) found |= each.is_string() ? named(each) : 0;
      return found;
    }
    for (const auto& [name, kind] : kArgumentTypes)
      if (type == std::string(name)) return kind;
    return 0;
  }

  unsigned any_of(const Json& schema) {
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array()) continue;
      unsigned all = 0;
      for (const Json& each : *list) {
        const unsigned one = kinds(each);
        if (one == 0) return 0;
        all |= one;
      }
      return all;
    }
    return 0;
  }

  unsigned referred(const Json& ref) {
    if (!ref.is_string()) return 0;
    const auto& text = ref.get_ref<const std::string&>();
    if (!text.starts_with('#')) return 0;
    try {
      const Json::json_pointer pointer(text.substr(1));
      return root_.contains(pointer) ? kinds(root_.at(pointer)) : 0;
    } catch (const Json::exception&) {
      return 0;
    }
  }

  const Json& root_;
  int steps_ = 1000;
};

}  // namespace

ToolArguments tool_arguments(const Json& tools) {
  ToolArguments out;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    auto& kinds = out[function.at("name").get<std::string>()];
    KindReader reader(*parameters);
    for (const auto& [name, schema] : properties->items()) kinds[name] = reader.kinds(schema);
  }
  return out;
}

unsigned argument_kinds(const ToolArguments& all, std::string_view tool,
                        std::string_view argument) {
  const auto found = all.find(tool);
  if (found == all.end()) return 0;
  const auto kinds = found->second.find(argument);
  return kinds == found->second.end() ? 0 : kinds->second;
}

OrderedJson argument_value(std::string_view text, unsigned kinds) {
  if (kinds == kTextArgument) return std::string(text);
  const bool may_be_text = (kinds & kTextArgument) != 0;
  const std::string_view word = trimmed(text);
  const auto fits = [&](const OrderedJson& value) { return (kind_of_value(value) & kinds) != 0; };
  if (auto json = json_of(word)) {
    // Some models write an object once more as a text.
    if (json->is_string() && kinds != 0 && !may_be_text) {
      auto inside = json_of(json->get_ref<const std::string&>());
      if (inside && fits(*inside)) return std::move(*inside);
    }
    if (!may_be_text || fits(*json)) return std::move(*json);
  } else if (auto value = kinds == 0 ? std::nullopt : python_value(word)) {
    if (fits(*value) || (value->is_null() && !may_be_text)) return std::move(*value);
  }
  return std::string(text);
}

}  // namespace moe
