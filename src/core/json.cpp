#include "core/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"

namespace moe {
namespace {

// Feeds the parser and knows how far it has read, so that errors found between tokens have a place
// too.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    *furthest = ++at;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
  bool operator!=(const CountingIterator& other) const { return at != other.at; }
};

std::string place(std::string_view text, size_t offset, size_t line) {
  const std::string_view before = text.substr(0, offset);
  size_t start = 0;
  for (size_t i = before.find('\n'); i != std::string_view::npos; i = before.find('\n', i + 1)) {
    ++line;
    start = i + 1;
  }
  return fmt::format("line {}, column {}", line, before.size() - start);
}

// "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error ..." without what
// we say ourselves.
std::string reason_of(std::string_view what) {
  if (const size_t bracket = what.find("] ");
      what.starts_with('[') && bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  if (const size_t colon = what.find(": ");
      what.starts_with("parse error at") && colon != std::string_view::npos)
    what.remove_prefix(colon + 2);
  return printable(what);
}

std::string type_of(const Json& value) {
  if (value.is_number_float()) return "a fraction";
  if (value.is_number()) return "a whole number";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.is_boolean() ? "true or false" : "null";
}

bool read(const Json& value, bool& out) {
  if (!value.is_boolean()) return false;
  out = value.get<bool>();
  return true;
}
bool read(const Json& value, int64_t& out) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return false;
  if (!value.is_number_integer()) return false;
  out = value.get<int64_t>();
  return true;
}
bool read(const Json& value, double& out) {
  if (!value.is_number()) return false;
  out = value.get<double>();
  return std::isfinite(out);
}
bool read(const Json& value, std::string& out) {
  if (!value.is_string()) return false;
  out = value.get_ref<const std::string&>();
  return true;
}
template <class T>
bool read(const Json& value, std::vector<T>& out) {
  if (!value.is_array()) return false;
  out.clear();
  for (const Json& element : value) {
    T x{};
    if (!read(element, x)) return false;
    out.push_back(std::move(x));
  }
  return true;
}

template <class T>
constexpr const char* kWanted = "";
template <>
constexpr const char* kWanted<bool> = "true or false";
template <>
constexpr const char* kWanted<int64_t> = "a whole number of 64 bits";
template <>
constexpr const char* kWanted<double> = "a finite number";
template <>
constexpr const char* kWanted<std::string> = "a string";
template <>
constexpr const char* kWanted<std::vector<int64_t>> = "an array of whole numbers";
template <>
constexpr const char* kWanted<std::vector<double>> = "an array of numbers";
template <>
constexpr const char* kWanted<std::vector<std::string>> = "an array of strings";

// `most_keys`: of one object.
template <class AnyJson>
AnyJson parse_checked(std::string_view text, const std::string& where, size_t max_bytes,
                      size_t first_line, size_t most_keys) {
  if (text.size() > max_bytes)
    fail("{}: {} bytes of JSON are more than the {} allowed", where, text.size(), max_bytes);
  const char* furthest = text.data();
  const auto reached = [&] {
    return place(text, static_cast<size_t>(furthest - text.data()), first_line);
  };
  // keys seen in each object around the parser; empty for an array
  std::vector<std::set<std::string, std::less<>>> open;
  using Event = typename AnyJson::parse_event_t;
  const auto check = [&](int, Event event, AnyJson& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      if (open.size() == kJsonMaxDepth)
        fail("{}: {}: nested deeper than {} levels", where, reached(), kJsonMaxDepth);
      open.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      open.pop_back();
    } else if (event == Event::key &&
               !open.back().insert(parsed.template get_ref<const std::string&>()).second) {
      fail("{}: {}: the key \"{}\" stands twice in one object", where, reached(),
           printable(parsed.template get_ref<const std::string&>()));
    } else if (event == Event::key && open.back().size() > most_keys) {
      fail("{}: {}: an object has more than {} keys", where, reached(), most_keys);
    }
    return true;
  };
  try {
    return AnyJson::parse(CountingIterator{text.data(), &furthest},
                          CountingIterator{text.data() + text.size(), &furthest}, check);
  } catch (const Json::parse_error& e) {
    fail("{}: {}: {}", where, place(text, std::min(e.byte, text.size()), first_line),
         reason_of(e.what()));
  } catch (const Json::exception& e) {
    fail("{}: {}: {}", where, reached(), reason_of(e.what()));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, size_t max_bytes,
                size_t first_line) {
  return parse_checked<Json>(text, where, max_bytes, first_line, SIZE_MAX);
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& where, size_t max_bytes,
                               size_t first_line) {
  return parse_checked<OrderedJson>(text, where, max_bytes, first_line, kJsonMostOrderedKeys);
}

Json read_json(const std::string& path, size_t max_bytes) {
  return parse_json(read_text(path, max_bytes), path, max_bytes);
}

namespace {

template <class AnyJson>
std::string dumped_on_one_line(const AnyJson& json) {
  return json.dump(-1, ' ', false, AnyJson::error_handler_t::replace);
}

}  // namespace

std::string one_line_json(const Json& json) { return dumped_on_one_line(json); }
std::string one_line_json(const OrderedJson& json) { return dumped_on_one_line(json); }

double shortest_decimal(float x) {
  const std::string text = fmt::format("{}", x);
  double decimal = x;
  std::from_chars(text.data(), text.data() + text.size(), decimal);
  return static_cast<float>(decimal) == x ? decimal : static_cast<double>(x);
}

JsonReader::JsonReader(const Json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) fail("{}: an object is needed, this is {}", where_, type_of(object));
}

bool JsonReader::has(std::string_view key) const {
  asked_.emplace(key);
  const auto found = object_->find(std::string(key));
  return found != object_->end() && !found->is_null();
}

const Json& JsonReader::need(std::string_view key) const {
  if (!has(key))
    fail("{}: \"{}\" is missing{}", where_, printable(key),
         object_->contains(key) ? ": null is no value" : suggestion(key, keys(), 0));
  return *object_->find(std::string(key));
}

const Json& JsonReader::value(std::string_view key) const { return need(key); }

template <class T>
T JsonReader::get(std::string_view key) const {
  const Json& value = need(key);
  T out{};
  if (!read(value, out))
    fail("{}: \"{}\" must be {}, this is {}", where_, printable(key), kWanted<T>,
         value.is_primitive() ? printable(one_line_json(value)) : type_of(value));
  return out;
}
template bool JsonReader::get<bool>(std::string_view) const;
template int64_t JsonReader::get<int64_t>(std::string_view) const;
template double JsonReader::get<double>(std::string_view) const;
template std::string JsonReader::get<std::string>(std::string_view) const;
template std::vector<int64_t> JsonReader::get<std::vector<int64_t>>(std::string_view) const;
template std::vector<double> JsonReader::get<std::vector<double>>(std::string_view) const;
template std::vector<std::string> JsonReader::get<std::vector<std::string>>(std::string_view) const;

template <class T>
T JsonReader::get_in(std::string_view key, std::type_identity_t<T> low,
                     std::type_identity_t<T> high) const {
  const T value = get<T>(key);
  if (value < low || value > high)
    fail("{}: \"{}\" is {}, it must be between {} and {}", where_, printable(key), value, low,
         high);
  return value;
}
template int64_t JsonReader::get_in<int64_t>(std::string_view, int64_t, int64_t) const;
template double JsonReader::get_in<double>(std::string_view, double, double) const;

size_t JsonReader::get_one_of(std::string_view key, const std::vector<std::string>& names) const {
  const std::string name = get<std::string>(key);
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return i;
  fail("{}: \"{}\" is \"{}\", which is not known{}", where_, printable(key), printable(name),
       suggestion(name, names));
}

JsonReader JsonReader::object(std::string_view key) const {
  return JsonReader(need(key), fmt::format("{}: \"{}\"", where_, printable(key)));
}

std::vector<JsonReader> JsonReader::objects(std::string_view key) const {
  const Json& array = need(key);
  if (!array.is_array())
    fail("{}: \"{}\" must be an array of objects, this is {}", where_, printable(key),
         type_of(array));
  std::vector<JsonReader> out;
  for (const Json& element : array)
    out.emplace_back(element, fmt::format("{}: \"{}\"[{}]", where_, printable(key), out.size()));
  return out;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> out;
  for (const auto& item : object_->items()) out.push_back(item.key());
  return out;
}

void JsonReader::refuse_unknown(const std::vector<std::string>& also) const {
  std::vector<std::string> known(asked_.begin(), asked_.end());
  known.insert(known.end(), also.begin(), also.end());
  const std::set<std::string, std::less<>> allowed(known.begin(), known.end());
  for (const std::string& key : keys())
    if (!allowed.contains(key))
      fail("{}: \"{}\" is not known here{}", where_, printable(key), suggestion(key, known));
}

}  // namespace moe
