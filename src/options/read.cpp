#include "options/read.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <clocale>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/nearest.h"

namespace moe {
namespace {

using Kind = Field::Kind;

// In any case of letters.
std::optional<bool> parse_truth(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* yes : {"true", "on", "t", "+", "yes", "y", "1", "enable"})
    if (word == yes) return true;
  for (const char* no : {"false", "off", "f", "-", "no", "n", "0", "disable"})
    if (word == no) return false;
  return std::nullopt;
}

template <class T, class Read>
std::optional<T> parse_number(const std::string& word, Read&& read) {
  char* end = nullptr;
  errno = 0;
  const T number = read(word.c_str(), &end);
  if (word.empty() || errno == ERANGE || end != word.c_str() + word.size()) return std::nullopt;
  return number;
}

std::optional<Json> parse_whole(const Field& field, const std::string& word) {
  const auto number = parse_number<long long>(
      whole_number(word), [](const char* text, char** end) { return std::strtoll(text, end, 0); });
  if (!number || *number < field.low || *number > field.high) return std::nullopt;
  return Json(static_cast<int64_t>(*number));
}

std::optional<Json> parse_natural(const std::string& word) {
  if (word.starts_with('-')) return std::nullopt;  // which would wrap
  const auto number = parse_number<unsigned long long>(
      whole_number(word), [](const char* text, char** end) { return std::strtoull(text, end, 0); });
  return number ? std::make_optional(Json(static_cast<uint64_t>(*number))) : std::nullopt;
}

// A number too large or too small for a double is infinite or 0. With a point, whatever the locale
// of the program around the library has in its place: numbers of its JSON come here too.
std::optional<Json> parse_real(const std::string& word) {
  static const locale_t with_points = newlocale(LC_ALL_MASK, "C", nullptr);
  char* end = nullptr;
  const long double number = strtold_l(word.c_str(), &end, with_points);
  if (word.empty() || end != word.c_str() + word.size()) return std::nullopt;
  return Json(static_cast<double>(number));
}

std::optional<Json> parse_wholes(const Field& field, const std::vector<std::string>& words) {
  Json numbers = Json::array();
  for (const std::string& word : words)
    for (size_t begin = 0; begin <= word.size();) {
      const size_t end = std::min(word.find(',', begin), word.size());
      const std::optional<Json> number = parse_whole(field, word.substr(begin, end - begin));
      if (!number) return std::nullopt;
      numbers.push_back(*number);
      begin = end + 1;
    }
  return numbers;
}

Json parse_weighted(const Field& f, const std::vector<std::string>& words) {
  Json numbers = Json::object();
  for (const std::string& word : words) {
    const size_t equals = word.rfind('=');  // a name may hold one itself
    double number = 0;
    const char* end = word.data() + word.size();
    const bool has_both = equals != std::string::npos && equals > 0;
    const auto [stop, error] = has_both ? std::from_chars(word.data() + equals + 1, end, number)
                                        : std::from_chars_result{end, std::errc::invalid_argument};
    if (error != std::errc{} || stop != end)
      fail_usage("{} {}: expected {}, such as {}", field(f.name), printable(word), f.form,
                 f.example);
    const std::string name = word.substr(0, equals);
    if (numbers.contains(name)) fail_usage("{} names \"{}\" twice", field(f.name), printable(name));
    numbers[name] = number;
  }
  return numbers;
}

bool is_list(const Field& field) {
  return field.kind == Kind::texts || field.kind == Kind::wholes || field.kind == Kind::weighted;
}

// What a JSON value would be on the command line; lists give one word an entry, weighted names one
// a name.
std::vector<std::string> as_words(const Field& field, const Json& value, const std::string& key,
                                  const std::string& where) {
  std::vector<std::string> words;
  if (value.is_array()) {
    for (const Json& entry : value)
      for (std::string& word : as_words(field, entry, key, where)) words.push_back(std::move(word));
    return words;
  }
  if (value.is_object() && field.kind == Kind::weighted) {
    for (const auto& [name, number] : value.items()) words.push_back(name + "=" + number.dump());
    return words;
  }
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean() || value.is_number() || (value.is_object() && field.takes_json))
    return {value.dump()};
  fail_usage("{}: \"{}\" must be a string, a number, true, false or a list of these", where,
             printable(key));
}

const char* kind_in_words(Kind kind) {
  switch (kind) {
    case Kind::toggle:
    case Kind::boolean: return "true or false";
    case Kind::whole: return "a whole number";
    case Kind::natural: return "a whole number from 0 to 2^64 - 1";
    case Kind::number: return "a number";
    case Kind::wholes: return "a list of whole numbers";
    case Kind::text:
    case Kind::texts:
    case Kind::weighted:
    case Kind::json: break;
  }
  return "a text";
}

void read_one(Field& f, const Json& value, const std::string& key, const std::string& where) {
  const std::vector<std::string> words = as_words(f, value, key, where);
  if (words.empty() && is_list(f)) return;  // an empty list, or no names: as if left out
  if (words.size() != 1 && !is_list(f))
    fail_usage("{}: {} takes one value, not a list of {}", where, field(f.name), words.size());
  const std::optional<Json> parsed = parse_words(f, words);
  if (!parsed && value.is_number_integer() && (f.kind == Kind::whole || f.kind == Kind::natural))
    if (value >= 0 || f.kind == Kind::whole)
      fail_usage("{}: \"{}\" is {}, which is out of range", where, printable(key), value.dump());
  if (!parsed)
    fail_usage("{}: \"{}\" is {}; {} is needed", where, printable(key), printable(value.dump()),
               kind_in_words(f.kind));
  f.set(*parsed);
}

}  // namespace

bool Given::by_caller(std::string_view name) const {
  const auto found = by_.find(name);
  return found != by_.end() && found->second == GivenBy::caller;
}

std::set<std::string, std::less<>> Given::names() const {
  std::set<std::string, std::less<>> names;
  for (const auto& [name, by] : by_) names.insert(name);
  return names;
}

std::string whole_number(const std::string& word) {
  const size_t sign = word.starts_with('-') || word.starts_with('+') ? 1 : 0,
               e = std::min(word.find_first_of("eE"), word.size());
  const size_t point = std::min(word.find('.'), e);
  if (point == word.size()) return word;
  std::string digits = word.substr(sign, point - sign);
  const std::string fraction = point < e ? word.substr(point + 1, e - point - 1) : "";
  digits += fraction;
  int exponent = 0;
  if (e < word.size()) {
    const char *begin = word.data() + e + 1, *end = word.data() + word.size();
    if (begin < end && *begin == '+') ++begin;
    const auto [stop, error] = std::from_chars(begin, end, exponent);
    if (error != std::errc{} || stop != end) return word;
  }
  constexpr int kMost = 40;  // digits: far beyond any whole number that is taken
  const bool is_number =
      !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || exponent < -kMost || exponent > kMost) return word;
  for (int shift = exponent - static_cast<int>(fraction.size()); shift != 0;
       shift += shift < 0 ? 1 : -1) {
    if (shift > 0) digits += '0';
    else if (digits.ends_with('0')) digits.pop_back();
    else if (!digits.empty()) return word;  // 1.5
  }
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  return word.substr(0, sign) + (first == digits.size() ? "0" : digits.substr(first));
}

std::optional<Json> parse_words(const Field& field, const std::vector<std::string>& words) {
  if (field.kind == Kind::texts) return Json(words);
  if (field.kind == Kind::wholes) return parse_wholes(field, words);
  if (field.kind == Kind::weighted) return parse_weighted(field, words);
  if (words.size() != 1) return std::nullopt;
  const std::string& word = words[0];
  switch (field.kind) {
    case Kind::toggle:
    case Kind::boolean: {
      const std::optional<bool> truth = parse_truth(word);
      return truth ? std::make_optional(Json(*truth)) : std::nullopt;
    }
    case Kind::whole: return parse_whole(field, word);
    case Kind::natural: return parse_natural(word);
    case Kind::number: return parse_real(word);
    default: return Json(word);
  }
}

void read_record(FieldList& list, const Json& object, const std::string& where) {
  const JsonReader in(object, where);
  for (Field& field : list) {
    if (!in.has(field.name)) continue;
    if (field.kind == Kind::json) field.set(in.value(field.name));
    else read_one(field, in.value(field.name), field.name, where);
  }
  in.refuse_unknown();
}

void read_options(FieldList& list, const Json& object, const std::string& where, GivenBy by,
                  Given& given, const std::set<std::string, std::less<>>& passed_over) {
  if (!object.is_object())
    fail_usage("{}: expected a JSON object of options, as in {{\"layers\": 4}}", where);
  const Given before = given;
  std::map<std::string, std::string> said;  // by which name
  for (const auto& [key, value] : object.items()) {
    Field* field = list.find(key);
    if (field != nullptr && field->of_caller && by != GivenBy::caller)
      fail_usage("{}: \"{}\" can only stand on the command line", where, printable(key));
    if (field == nullptr || field->recorded_only || field->positional) {
      std::vector<std::string> known;
      for (const Field& one : list) {
        if (one.recorded_only || one.positional || (one.of_caller && by != GivenBy::caller))
          continue;
        known.push_back(one.name);
        known.insert(known.end(), one.also.begin(), one.also.end());
      }
      fail_usage("{}: no option is called \"{}\"{}", where, printable(key), suggestion(key, known));
    }
    // who said it before wins
    if (before.has(field->name) || passed_over.contains(field->name)) continue;
    const auto [other, is_first] = said.emplace(field->name, key);
    if (!is_first)
      fail_usage("{}: \"{}\" and \"{}\" are names of the same option; leave one out", where,
                 other->second, key);
    read_one(*field, value, key, where);
    given.add(field->name, by);
  }
}

Given read_caller_options(FieldList list, const char* text) {
  if (text == nullptr || *text == '\0') return {};
  return read_caller_options(std::move(list), parse_json(text, "options"), "options");
}

Given read_caller_options(FieldList list, Json object, const std::string& where) {
  const auto is_left_out = [&](const std::string& key, const Json& value) {
    const Field* field = list.find(key);
    return field != nullptr &&
           (value.is_null() ||
            ((value.is_array() || field->kind == Kind::weighted) && value.empty()));
  };
  if (object.is_object())
    for (auto it = object.begin(); it != object.end();)
      it = is_left_out(it.key(), it.value()) ? object.erase(it) : std::next(it);
  Given given;
  read_options(list, object, where, GivenBy::caller, given);
  return given;
}

}  // namespace moe
