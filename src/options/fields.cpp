#include "options/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/nearest.h"

namespace moe {
namespace {

using Kind = Field::Kind;

constexpr const char* kKindNames[] = {"toggle", "boolean", "whole",  "natural",  "number",
                                      "text",   "texts",   "wholes", "weighted", "json"};

template <class T>
FieldValue plain(Kind kind, T& x) {
  return {kind, [&x] { return Json(x); }, [&x](const Json& value) { x = value.get<T>(); }};
}
template <class T>
FieldValue optional(Kind kind, std::optional<T>& x) {
  return {kind, [&x] { return x ? Json(*x) : Json(); },
          [&x](const Json& value) { x = value.is_null() ? std::optional<T>() : value.get<T>(); }};
}

std::string canonical(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

}  // namespace

FieldValue value_of(bool& x) { return plain(Kind::toggle, x); }
FieldValue value_of(std::optional<bool>& x) { return optional(Kind::boolean, x); }
FieldValue value_of(int64_t& x) { return plain(Kind::whole, x); }
FieldValue value_of(std::optional<int64_t>& x) { return optional(Kind::whole, x); }
FieldValue value_of(uint64_t& x) { return plain(Kind::natural, x); }
FieldValue value_of(double& x) { return plain(Kind::number, x); }
FieldValue value_of(std::optional<double>& x) { return optional(Kind::number, x); }
FieldValue value_of(std::string& x) { return plain(Kind::text, x); }
FieldValue value_of(std::optional<std::string>& x) { return optional(Kind::text, x); }
FieldValue value_of(std::vector<std::string>& x) { return plain(Kind::texts, x); }
FieldValue value_of(std::vector<int64_t>& x) { return plain(Kind::wholes, x); }
FieldValue value_of(std::map<std::string, double>& x) { return plain(Kind::weighted, x); }

FieldValue value_of(int& x) {
  FieldValue value = plain(Kind::whole, x);
  value.low = std::numeric_limits<int>::min();
  value.high = std::numeric_limits<int>::max();
  return value;
}

FieldValue value_of(float& x) {
  FieldValue value = plain(Kind::number, x);
  value.get = [&x] { return Json(shortest_decimal(x)); };
  return value;
}

FieldValue value_of(std::optional<float>& x) {
  FieldValue value = optional(Kind::number, x);
  value.get = [&x] { return x ? Json(shortest_decimal(*x)) : Json(); };
  return value;
}

FieldEntry FieldList::add(std::string name, FieldValue value, std::string_view help) {
  Field field;
  field.name = std::move(name);
  field.kind = value.kind;
  field.help = marked(help);
  field.group = group_;
  field.low = value.low;
  field.high = value.high;
  field.get = std::move(value.get);
  field.set = std::move(value.set);
  return FieldEntry(fields_.emplace_back(std::move(field)));
}

FieldEntry FieldList::add_named(std::string name, const std::vector<std::string>& names,
                                std::function<std::string()> get,
                                std::function<void(const std::string&)> set,
                                std::string_view help) {
  const auto value = [get = std::move(get)] {
    const std::string word = get();
    return word.empty() ? Json() : Json(word);
  };
  const auto choose = [name, names, set = std::move(set)](const Json& word) {
    set(names[place_of(word.get<std::string>(), names, name)]);
  };
  return add(name, FieldValue{Kind::text, value, choose}, help).values(names);
}

FieldEntry FieldList::add_choice(std::string name, std::string& member,
                                 const std::vector<std::string>& names, std::string_view help) {
  return add_named(
      std::move(name), names, [&member] { return member; },
      [&member](const std::string& word) { member = word; }, help);
}

void FieldList::add(FieldList other) {
  for (Field& field : other.fields_) {
    if (field.group.empty()) field.group = group_;
    fields_.push_back(std::move(field));
  }
}

FieldList FieldList::take(std::initializer_list<std::string_view> names) {
  FieldList taken;
  for (const std::string_view name : names) {
    Field& field = at(name);
    taken.fields_.push_back(std::move(field));
    fields_.erase(fields_.begin() + (&field - fields_.data()));
  }
  return taken;
}

FieldList FieldList::in_group(std::string_view group) const {
  FieldList some;
  for (const Field& field : fields_)
    if (field.group == group) some.fields_.push_back(field);
  return some;
}

Field* FieldList::find(std::string_view name) {
  const std::string wanted = canonical(name);
  for (Field& field : fields_)
    if (field.name == wanted) return &field;
  for (Field& field : fields_)
    if (std::find(field.also.begin(), field.also.end(), wanted) != field.also.end()) return &field;
  return nullptr;
}

Field& FieldList::at(std::string_view name) {
  Field* found = find(name);
  if (found == nullptr) fail("no option is called \"{}\"", printable(name));
  return *found;
}

std::string listed(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

size_t place_of(std::string_view word, const std::vector<std::string>& names,
                std::string_view field_name) {
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end())
    fail_usage("{} is \"{}\"{}", field(field_name), printable(word), suggestion(word, names));
  return static_cast<size_t>(found - names.begin());
}

Json to_json(const FieldList& list) {
  Json out = Json::object();
  for (const Field& field : list) out[field.name] = field.get();
  return out;
}

Json describe(const FieldList& list) {
  Json rows = Json::array();
  for (const Field& field : list) {
    if (field.recorded_only) continue;
    std::string kind = kKindNames[static_cast<size_t>(field.kind)];
    if (field.is_path) kind.replace(0, 4, "path");  // of text and texts
    if (field.takes_json) kind = "text_or_object";
    Json row = {{"name", field.name},   {"also", field.also},
                {"kind", kind},         {"help", spelled(field.help)},
                {"unit", field.unit},   {"values", field.values},
                {"group", field.group}, {"required", field.required}};
    row["default"] = field.has_default && !field.required ? field.get() : Json();
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace moe
