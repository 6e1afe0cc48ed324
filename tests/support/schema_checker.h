// Whether a value satisfies a JSON schema, by the keywords' definitions alone: shares nothing with
// what makes grammars of schemas. Knows the keywords that text/grammar/json_schema.h supports.
#pragma once

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace moe::test {

using OrderedJson = nlohmann::ordered_json;

class SchemaChecker {
 public:
  explicit SchemaChecker(const std::string& schema) : root_(OrderedJson::parse(schema)) {}
  bool holds(const OrderedJson& value) const { return holds(root_, value); }

 private:
  static bool is(const OrderedJson& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    return value.is_number() && value.get<double>() == std::floor(value.get<double>());
  }

  static size_t characters(const std::string& text) {
    size_t count = 0;
    for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return count;
  }

  static bool is_date(const std::string& text) {
    static const std::regex form("(\\d{4})-(\\d{2})-(\\d{2})");
    std::smatch m;
    if (!std::regex_match(text, m, form)) return false;
    const int year = std::stoi(m[1]), month = std::stoi(m[2]), day = std::stoi(m[3]);
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    const int days[] = {31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1];
  }

  static bool is_time(const std::string& text) {
    static const std::regex form(
        "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)");
    return std::regex_match(text, form);
  }

  static bool of_format(const std::string& text, const std::string& format) {
    if (format == "date") return is_date(text);
    if (format == "time") return is_time(text);
    if (format == "date-time")
      return text.size() > 11 && text[10] == 'T' && is_date(text.substr(0, 10)) &&
             is_time(text.substr(11));
    static const std::regex uuid(
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}");
    return format == "uuid" && std::regex_match(text, uuid);
  }

  bool object_holds(const OrderedJson& s, const OrderedJson& value) const {
    const OrderedJson properties = s.value("properties", OrderedJson::object());
    const OrderedJson others = s.value("additionalProperties", OrderedJson(true));
    for (const OrderedJson& name : s.value("required", OrderedJson::array()))
      if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, element] : value.items())
      if (!holds(properties.contains(name) ? properties[name] : others, element)) return false;
    return true;
  }

  bool array_holds(const OrderedJson& s, const OrderedJson& value) const {
    if (s.contains("minItems") && value.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && value.size() > s["maxItems"].get<size_t>()) return false;
    const OrderedJson first = s.value("prefixItems", OrderedJson::array());
    const OrderedJson rest = s.value("items", OrderedJson(true));
    for (size_t i = 0; i < value.size(); ++i)
      if (!holds(i < first.size() ? first[i] : rest, value[i])) return false;
    return true;
  }

  static bool string_holds(const OrderedJson& s, const std::string& text) {
    if (s.contains("minLength") && characters(text) < s["minLength"].get<size_t>()) return false;
    if (s.contains("maxLength") && characters(text) > s["maxLength"].get<size_t>()) return false;
    return !s.contains("format") || of_format(text, s["format"].get<std::string>());
  }

  static bool number_holds(const OrderedJson& s, double x) {
    return (!s.contains("minimum") || x >= s["minimum"].get<double>()) &&
           (!s.contains("maximum") || x <= s["maximum"].get<double>()) &&
           (!s.contains("exclusiveMinimum") || x > s["exclusiveMinimum"].get<double>()) &&
           (!s.contains("exclusiveMaximum") || x < s["exclusiveMaximum"].get<double>());
  }

  bool holds(const OrderedJson& s, const OrderedJson& value) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref")) {
      const auto pointer = OrderedJson::json_pointer(s["$ref"].get<std::string>().substr(1));
      if (!holds(root_[pointer], value)) return false;
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!s.contains(key)) continue;
      bool any = false;
      for (const OrderedJson& one : s[key]) any = any || holds(one, value);
      if (!any) return false;
    }
    if (s.contains("const") && s["const"] != value) return false;
    if (s.contains("enum") &&
        std::find(s["enum"].begin(), s["enum"].end(), value) == s["enum"].end())
      return false;
    if (s.contains("type")) {
      bool any = false;
      if (s["type"].is_string()) any = is(value, s["type"]);
      else
        for (const OrderedJson& type : s["type"]) any = any || is(value, type);
      if (!any) return false;
    }
    if (value.is_object()) return object_holds(s, value);
    if (value.is_array()) return array_holds(s, value);
    if (value.is_string()) return string_holds(s, value.get<std::string>());
    return !value.is_number() || number_holds(s, value.get<double>());
  }

  OrderedJson root_;
};

}  // namespace moe::test
