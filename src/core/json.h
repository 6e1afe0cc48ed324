// JSON of untrusted files: one strict parser (depth and size limited, duplicate keys refused,
// errors with line and column) and a reader over an object that checks types, ranges and names.
// Only the forward declaration of nlohmann::json is included here; who builds or walks values
// includes <nlohmann/json.hpp> in the .cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace moe {

// objects are sorted by key, so what is written is the same every time
using Json = nlohmann::json;
// objects keep the order of their keys, for what is handed on as it was written
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kJsonMaxDepth = 64;
constexpr size_t kJsonMaxBytes = size_t{100} << 20;

// `where` opens every message: a path, "--config run.json", "request body". `first_line`: where in
// the file the text begins.
Json parse_json(std::string_view text, const std::string& where, size_t max_bytes = kJsonMaxBytes,
                size_t first_line = 1);
// The same with the order of keys kept; an object may have so many keys, as each is looked for
// among all before it.
constexpr size_t kJsonMostOrderedKeys = 1024;
OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               size_t max_bytes = kJsonMaxBytes, size_t first_line = 1);
Json read_json(const std::string& path, size_t max_bytes = kJsonMaxBytes);

// How a value is written wherever it goes out: on one line, keys in the order that the value has
// them in. Bytes that are no UTF-8 become U+FFFD.
std::string one_line_json(const Json&);
std::string one_line_json(const OrderedJson&);

// The shortest decimal that reads back as the same float, for writing one: 0.01f is written 0.01,
// not 0.009999999776482582.
double shortest_decimal(float x);

// What a getter can return: bool, int64_t, double, std::string, and vectors of int64_t, double,
// std::string. Whole numbers are accepted where a double is asked for, never the other way round. A
// key whose value is null counts as absent, as in the configurations of Hugging Face.
class JsonReader {
 public:
  // Views `object`, which must outlive the reader. Fails if it is no object.
  JsonReader(const Json& object, std::string where);
  JsonReader(Json&&, std::string) = delete;

  const std::string& where() const { return where_; }
  bool has(std::string_view key) const;

  template <class T>
  T get(std::string_view key) const;
  template <class T>
  T get(std::string_view key, std::type_identity_t<T> otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  // For int64_t and double: low <= value <= high, or a failure that says so.
  template <class T>
  T get_in(std::string_view key, std::type_identity_t<T> low, std::type_identity_t<T> high) const;
  template <class T>
  T get_in(std::string_view key, std::type_identity_t<T> low, std::type_identity_t<T> high,
           std::type_identity_t<T> otherwise) const {
    return has(key) ? get_in<T>(key, low, high) : otherwise;
  }
  // One name of a list, offering the nearest where it is none; returns its place in the list.
  size_t get_one_of(std::string_view key, const std::vector<std::string>& names) const;

  JsonReader object(std::string_view key) const;
  std::vector<JsonReader> objects(std::string_view key) const;  // an array of objects
  const Json& value(std::string_view key) const;
  std::vector<std::string> keys() const;
  // What a getter or has() asked for so far, there or not.
  std::vector<std::string> asked() const { return {asked_.begin(), asked_.end()}; }

  // Refuses, with the nearest known name, every key that neither a getter (or has()) asked for so
  // far nor `also` lists.
  void refuse_unknown(const std::vector<std::string>& also = {}) const;

 private:
  const Json& need(std::string_view key) const;

  const Json* object_;
  std::string where_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace moe
