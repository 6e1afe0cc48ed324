#include "text/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/grammar/json_rules.h"

namespace moe::grammar {
namespace {

using Schema = nlohmann::ordered_json;

constexpr size_t kMostMembers = 1000;  // of one object, enum or anyOf
constexpr uint32_t kMostRepeated = 1'000'000;
constexpr int64_t kMostOpenEnd = 99'999'999'999'999;  // leaves a decimal of a double's 15 digits

enum Kind : unsigned {
  kObject = 1,
  kArray = 2,
  kString = 4,
  kNumber = 8,
  kInteger = 16,
  kBoolean = 32,
  kNull = 64
};

constexpr std::array<std::pair<std::string_view, Kind>, 7> kKinds = {{{"object", kObject},
                                                                      {"array", kArray},
                                                                      {"string", kString},
                                                                      {"number", kNumber},
                                                                      {"integer", kInteger},
                                                                      {"boolean", kBoolean},
                                                                      {"null", kNull}}};

// Keywords, and the kind of value they speak of; 0: of all.
constexpr std::array<std::pair<std::string_view, unsigned>, 23> kKeywords = {
    {{"$ref", 0},
     {"anyOf", 0},
     {"oneOf", 0},
     {"allOf", 0},
     {"const", 0},
     {"enum", 0},
     {"type", 0},
     {"properties", kObject},
     {"required", kObject},
     {"additionalProperties", kObject},
     {"items", kArray},
     {"prefixItems", kArray},
     {"minItems", kArray},
     {"maxItems", kArray},
     {"uniqueItems", kArray},
     {"minLength", kString},
     {"maxLength", kString},
     {"format", kString},
     {"minimum", kNumber},
     {"maximum", kNumber},
     {"exclusiveMinimum", kNumber},
     {"exclusiveMaximum", kNumber},
     {"multipleOf", kNumber}}};

constexpr std::array<std::string_view, 12> kNotes = {
    "title", "description", "default", "examples",   "$schema",  "$comment",
    "$defs", "definitions", "$id",     "deprecated", "readOnly", "writeOnly"};

bool is_note(std::string_view keyword) {
  return std::find(kNotes.begin(), kNotes.end(), keyword) != kNotes.end();
}

// Where in the schema something stands; its text is only for a message.
struct Place {
  const Place* above = nullptr;
  std::string_view key;
  const Schema* root = nullptr;  // what a $ref here and below leads from; null: that of `above`

  const Schema* ref_root() const { return root != nullptr ? root : above->ref_root(); }

  std::string text() const {
    if (above == nullptr) return std::string(key);
    std::string out = above->text() + "/";
    for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
  }
};

// A part that has an $id is a schema of its own.
const Schema* root_at(const Schema& part, const Schema* around) {
  const auto id = part.find("$id");
  return id != part.end() && id->is_string() ? &part : around;
}

bool is_of(const Schema& value, unsigned kinds) {
  if (value.is_object()) return kinds & kObject;
  if (value.is_array()) return kinds & kArray;
  if (value.is_string()) return kinds & kString;
  if (value.is_boolean()) return kinds & kBoolean;
  if (value.is_null()) return kinds & kNull;
  if (kinds & kNumber) return true;
  const double number = value.get<double>();
  return (kinds & kInteger) && number == std::floor(number);
}

class SchemaReader {
 public:
  SchemaReader(const Schema& root, const std::string& where)
      : root_(&root), where_(where), builder_(where), rules_(builder_) {}

  std::shared_ptr<const Grammar> read() {
    const RuleId start = reference(*root_, "#", root_);
    // what a $ref names is read one after the other, as each may name the next
    while (!named_.empty()) {
      const Named next = std::move(named_.front());
      named_.pop_front();
      builder_.add(next.rule, {Builder::ref(value(*next.schema, {nullptr, next.text, next.root}))});
    }
    return builder_.build(start);
  }

 private:
  struct Named {
    const Schema* schema;
    RuleId rule;
    std::string text;
    const Schema* root;
  };

  [[noreturn]] void refuse(const Place& place, std::string_view what) const {
    fail_usage("{}: {} {}", where_, printable(place.text()), what);
  }
  [[noreturn]] void refuse_keyword(const Place& place, std::string_view keyword) const {
    refuse({&place, keyword}, "is not supported");
  }

  RuleId reference(const Schema& schema, const std::string& text, const Schema* root) {
    const auto known = references_.find(&schema);
    if (known != references_.end()) return known->second;
    const RuleId rule = builder_.rule();
    references_.emplace(&schema, rule);
    named_.push_back({&schema, rule, text, root});
    return rule;
  }

  RuleId value(const Schema& schema, const Place& given);
  RuleId referred(const Schema& ref, const Place& place);
  RuleId any_of(const Schema& list, const Place& place);
  RuleId listed(const Schema& schema, const Place& place);
  unsigned kinds_of(const Schema& schema, const Place& place) const;
  RuleId object(const Schema& schema, const Place& place);
  RuleId array(const Schema& schema, const Place& place);
  RuleId string(const Schema& schema, const Place& place);
  NumberRange range(const Schema& schema, const Place& place, bool whole) const;
  int64_t end_of_range(const Schema& value, const Place& place, bool whole, bool lower,
                       bool& open) const;
  uint32_t count(const Schema& schema, std::string_view key, uint32_t otherwise,
                 const Place& place) const;
  // Fails on every keyword beside `key` that is no note and not among `also`.
  void only(const Schema& schema, std::string_view key, const Place& place,
            std::string_view also = "") const;
  void check_keywords(const Schema& schema, const Place& place) const;

  const Schema* root_;
  std::string where_;
  Builder builder_;
  JsonRules rules_;
  std::map<const Schema*, RuleId> references_;
  std::deque<Named> named_;
};

void SchemaReader::only(const Schema& schema, std::string_view key, const Place& place,
                        std::string_view also) const {
  for (const auto& [other, unused] : schema.items())
    if (other != key && other != also && !is_note(other))
      refuse({&place, other}, fmt::format("is not supported beside {}", key));
}

void SchemaReader::check_keywords(const Schema& schema, const Place& place) const {
  for (const auto& entry : schema.items()) {
    const std::string& key = entry.key();
    const bool known = std::any_of(kKeywords.begin(), kKeywords.end(),
                                   [&](const auto& keyword) { return keyword.first == key; });
    if (!known && !is_note(key)) refuse_keyword(place, key);
  }
  // in older drafts one with # is but another name, and no root
  if (const auto id = schema.find("$id"); id != schema.end() && &schema != root_)
    if (!id->is_string() || id->get_ref<const std::string&>().starts_with('#'))
      refuse_keyword(place, "$id");
  if (schema.contains("multipleOf")) refuse_keyword(place, "multipleOf");
  if (const auto unique = schema.find("uniqueItems");
      unique != schema.end() && *unique != Schema(false))
    refuse_keyword(place, "uniqueItems");
}

RuleId SchemaReader::value(const Schema& schema, const Place& given) {
  if (schema.is_boolean()) return schema.get<bool>() ? rules_.any() : builder_.rule();
  if (!schema.is_object()) refuse(given, "must be a schema: an object, or true or false");
  const Place place{given.above, given.key, root_at(schema, given.ref_root())};
  check_keywords(schema, place);
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    only(schema, "$ref", place);
    return referred(*ref, {&place, "$ref"});
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto list = schema.find(key);
    if (list == schema.end()) continue;
    only(schema, key, place);
    const Place inside{&place, key};
    if (!list->is_array() || list->empty()) refuse(inside, "must be a list of schemas");
    if (key == std::string_view("allOf") && list->size() > 1)
      refuse(inside, "of more than one schema is not supported");
    return any_of(*list, inside);
  }
  if (schema.contains("enum") || schema.contains("const")) return listed(schema, place);

  const unsigned kinds = kinds_of(schema, place);
  if (kinds == 0) return rules_.any();
  const RuleId made = builder_.rule();
  const auto add = [&](RuleId kind) { builder_.add(made, {Builder::ref(kind)}); };
  if (kinds & kObject) add(object(schema, place));
  if (kinds & kArray) add(array(schema, place));
  if (kinds & kString) add(string(schema, place));
  if (kinds & kNumber) add(rules_.number(range(schema, place, false)));
  else if (kinds & kInteger) add(rules_.integer(range(schema, place, true)));
  if (kinds & kBoolean) add(rules_.boolean());
  if (kinds & kNull) add(rules_.null());
  return made;
}

// RFC 6901 in a fragment of a URI: %41 is a byte, ~1 is /, ~0 is ~.
RuleId SchemaReader::referred(const Schema& ref, const Place& place) {
  if (!ref.is_string()) refuse(place, "must be a string");
  const std::string& text = ref.get_ref<const std::string&>();
  if (text != "#" && !text.starts_with("#/"))
    refuse(place, "leads out of the schema; supported are #, #/$defs/... and #/definitions/...");
  std::string pointer;
  for (size_t i = 1; i < text.size(); ++i) {
    const std::string hex = text.substr(i + 1, 2);
    const bool is_byte = text[i] == '%' && hex.size() == 2 &&
                         hex.find_first_not_of("0123456789ABCDEFabcdef") == std::string::npos;
    pointer += is_byte ? static_cast<char>(std::stoi(hex, nullptr, 16)) : text[i];
    if (is_byte) i += 2;
  }
  const Schema* root = place.ref_root();
  const Schema* at = root;
  for (size_t begin = 0; begin < pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string key;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escape =
          pointer[i] == '~' && i + 1 < end && pointer[i + 1] >= '0' && pointer[i + 1] <= '1';
      key += !escape ? pointer[i] : pointer[++i] == '0' ? '~' : '/';
    }
    const Schema* below = nullptr;
    if (at->is_object()) {
      if (const auto found = at->find(key); found != at->end()) below = &*found;
    } else if (at->is_array() && !key.empty() && key.size() < 8 &&
               key.find_first_not_of("0123456789") == std::string::npos) {
      if (const auto index = static_cast<size_t>(std::stoi(key)); index < at->size())
        below = &(*at)[index];
    }
    if (below == nullptr) refuse(place, "leads to nothing");
    at = below;
    root = root_at(*at, root);
    begin = end;
  }
  return reference(*at, text, root);
}

RuleId SchemaReader::any_of(const Schema& list, const Place& place) {
  if (list.size() > kMostMembers)
    refuse(place, fmt::format("has more than {} elements", kMostMembers));
  const RuleId made = builder_.rule();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string index = std::to_string(i);
    builder_.add(made, {Builder::ref(value(list[i], {&place, index}))});
  }
  return made;
}

// The values of "enum" or "const" that are of the schema's type.
RuleId SchemaReader::listed(const Schema& schema, const Place& place) {
  const bool one = schema.contains("const");
  const std::string_view key = one ? "const" : "enum";
  only(schema, key, place, "type");
  const Schema& values = schema[std::string(key)];
  const Place inside{&place, key};
  const unsigned kinds = schema.contains("type") ? kinds_of(schema, place) : ~0u;
  const RuleId made = builder_.rule();
  const auto add = [&](const Schema& value) {
    if (is_of(value, kinds)) builder_.add(made, {Builder::ref(rules_.exactly(value))});
  };
  if (one) {
    add(values);
    return made;
  }
  if (!values.is_array() || values.empty()) refuse(inside, "must be a list of values");
  if (values.size() > kMostMembers)
    refuse(inside, fmt::format("has more than {} elements", kMostMembers));
  for (const Schema& value : values) add(value);
  return made;
}

// 0: any. Without "type" those that the keywords speak of.
unsigned SchemaReader::kinds_of(const Schema& schema, const Place& place) const {
  unsigned kinds = 0;
  const auto type = schema.find("type");
  if (type == schema.end()) {
    for (const auto& [key, kind] : kKeywords)
      if (schema.contains(std::string(key))) kinds |= kind;
    return kinds;
  }
  const Place inside{&place, "type"};
  const auto add = [&](const Schema& name) {
    const auto known = std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& kind) {
      return name.is_string() && name.get_ref<const std::string&>() == kind.first;
    });
    if (known == kKinds.end())
      refuse(inside, "must be object, array, string, number, integer, boolean, null or a list");
    kinds |= known->second;
  };
  if (type->is_array())
    for (const Schema& name : *type) add(name);
  else add(*type);
  if (kinds == 0) refuse(inside, "must not be empty");
  return kinds;
}

RuleId SchemaReader::object(const Schema& schema, const Place& place) {
  std::optional<RuleId> others;
  const auto additional = schema.find("additionalProperties");
  if (additional == schema.end()) others = rules_.any();
  else if (*additional != Schema(false))
    others = value(*additional, {&place, "additionalProperties"});

  std::vector<Member> members;
  std::map<std::string, size_t> index;
  const Place at_properties{&place, "properties"}, at_required{&place, "required"};
  if (const auto properties = schema.find("properties"); properties != schema.end()) {
    if (!properties->is_object()) refuse(at_properties, "must be an object");
    for (const auto& [name, below] : properties->items()) {
      index.emplace(name, members.size());
      members.push_back({name, value(below, {&at_properties, name}), false});
    }
  }
  if (const auto required = schema.find("required"); required != schema.end()) {
    if (!required->is_array()) refuse(at_required, "must be a list of names");
    for (const Schema& name : *required) {
      if (!name.is_string()) refuse(at_required, "must be a list of names");
      const auto [known, is_new] =
          index.emplace(name.get_ref<const std::string&>(), members.size());
      if (is_new && !others)
        refuse(at_required, fmt::format("asks for \"{}\", which additionalProperties forbids",
                                        printable(known->first, 40)));
      if (is_new) members.push_back({known->first, *others, true});
      members[known->second].required = true;
    }
  }
  if (members.size() > kMostMembers)
    refuse(at_properties, fmt::format("has more than {} elements", kMostMembers));
  return rules_.object(members, others);
}

RuleId SchemaReader::array(const Schema& schema, const Place& place) {
  std::vector<RuleId> first;
  if (const auto list = schema.find("prefixItems"); list != schema.end()) {
    const Place inside{&place, "prefixItems"};
    if (!list->is_array()) refuse(inside, "must be a list of schemas");
    if (list->size() > kMostMembers)
      refuse(inside, fmt::format("has more than {} elements", kMostMembers));
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string index = std::to_string(i);
      first.push_back(value((*list)[i], {&inside, index}));
    }
  }
  std::optional<RuleId> rest;
  if (const auto items = schema.find("items"); items == schema.end()) {
    rest = rules_.any();
  } else if (items->is_array()) {
    refuse({&place, "items"}, "as a list is not supported; prefixItems is");
  } else if (*items != Schema(false)) {
    rest = value(*items, {&place, "items"});
  }
  return rules_.array(first, rest, count(schema, "minItems", 0, place),
                      count(schema, "maxItems", kUnbounded, place));
}

RuleId SchemaReader::string(const Schema& schema, const Place& place) {
  const auto format = schema.find("format");
  if (format == schema.end())
    return rules_.string(count(schema, "minLength", 0, place),
                         count(schema, "maxLength", kUnbounded, place));
  const Place inside{&place, "format"};
  if (!format->is_string()) refuse(inside, "must be a string");
  for (const char* key : {"minLength", "maxLength"})
    if (schema.contains(key)) refuse({&place, key}, "is not supported beside format");
  const std::string& name = format->get_ref<const std::string&>();
  const std::optional<RuleId> rule = rules_.formatted(name);
  if (!rule)
    refuse(inside, fmt::format("\"{}\" is not supported; date, time, date-time and uuid are",
                               printable(name, 40)));
  return *rule;
}

uint32_t SchemaReader::count(const Schema& schema, std::string_view key, uint32_t otherwise,
                             const Place& place) const {
  const auto found = schema.find(std::string(key));
  if (found == schema.end()) return otherwise;
  const double number = found->is_number() ? found->get<double>() : -1;
  if (number < 0 || number != std::floor(number))
    refuse({&place, key}, "must be a whole number of 0 or above");
  if (number > kMostRepeated) {
    if (otherwise == kUnbounded) return kUnbounded;
    refuse({&place, key}, fmt::format("is more than the {} that are possible", kMostRepeated));
  }
  return static_cast<uint32_t>(number);
}

// `open`: whether the end itself is outside; an end between whole numbers is moved onto the next.
int64_t SchemaReader::end_of_range(const Schema& value, const Place& place, bool whole, bool lower,
                                   bool& open) const {
  if (!value.is_number()) refuse(place, "must be a number");
  const double number = value.get<double>();
  if (!value.is_number_integer() && number != std::floor(number)) {
    if (!whole) refuse(place, "that is not whole is not supported");
    open = false;
  }
  if (!(std::abs(number) < 1e18)) {
    // an end beyond all numbers that are written is none
    if (lower ? number < 0 : number > 0) {
      open = false;
      return lower ? -kMostWhole : kMostWhole;
    }
    refuse(place, fmt::format("of more than {} digits is not supported", kMostDigits));
  }
  if (open && !whole && std::abs(number) > static_cast<double>(kMostOpenEnd))
    refuse(place, "of more than 14 digits is not supported");
  if (value.is_number_integer()) return value.get<int64_t>();
  return static_cast<int64_t>(lower ? std::ceil(number) : std::floor(number));
}

NumberRange SchemaReader::range(const Schema& schema, const Place& place, bool whole) const {
  NumberRange out;
  for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const auto found = schema.find(key);
    if (found == schema.end()) continue;
    bool open = std::string_view(key).starts_with("ex");
    const bool lower = std::string_view(key).ends_with("Minimum") || key[1] == 'i';
    const int64_t end = end_of_range(*found, {&place, key}, whole, lower, open);
    if (lower && (end > out.low || (end == out.low && open))) {
      out.low = end;
      out.low_open = open;
    }
    if (!lower && (end < out.high || (end == out.high && open))) {
      out.high = end;
      out.high_open = open;
    }
  }
  return out;
}

}  // namespace

std::shared_ptr<const Grammar> json_schema_grammar(std::string_view schema,
                                                   const std::string& where) {
  try {
    // checks depth, size and repeated names; a Json has its names in another order
    parse_json(schema, where, kMostSchemaBytes);
  } catch (const Error& e) {
    throw Error(e.marked(), Error::Kind::usage);
  }
  const Schema parsed = Schema::parse(schema);
  return SchemaReader(parsed, where).read();
}

}  // namespace moe::grammar
