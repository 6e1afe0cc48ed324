// The two visitors that walk a list of fields: one reads a JsonReader, one writes a Json. Both
// check the same ranges, so that what is written can be read. Floats are written as the shortest
// decimal that reads back as the same float. Only for the lists of hub/.
#pragma once

#include <algorithm>
#include <cfloat>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "model/config.h"
#include "moe/recipes/spec_json.h"

namespace moe {

inline constexpr int64_t kMaxSize = int64_t{1} << 24;  // as validate() has it
// bounds the work that a hostile file can ask for before its tensors are looked at
inline constexpr int64_t kMaxLayers = 4096;

inline const std::vector<std::string> kNormNames = {"rms", "layer"};
inline const std::vector<std::string> kPlacementNames = {"pre",    "post",        "output", "both",
                                                         "beside", "beside_each", "carried"};
inline const std::vector<std::string> kPositionNames = {"rope", "learned"};
inline const std::vector<std::string> kQkNormNames = {"none", "head", "full", "bare"};
// as transformers calls them
inline const std::vector<std::string> kActNames = {
    "silu", "gelu", "gelu_pytorch_tanh", "relu", "swiglu_oai", "sigmoid", "relu2", "swiglu_10"};
// Other names that it has for the same functions.
inline const std::vector<std::string> kOtherActNames = {"swish", "gelu_new", "gelu_fast"};
inline constexpr ops::Act kOtherActs[] = {ops::Act::silu, ops::Act::gelu_tanh, ops::Act::gelu_tanh};

// What a member of a json object says, for messages.
inline std::string text_of(const JsonReader& reader, const char* key) {
  return printable(reader.value(key).dump(-1, ' ', true, Json::error_handler_t::replace));
}
[[noreturn]] inline void refuse(const JsonReader& reader, const char* key, const char* why) {
  fail("{}: \"{}\" is {}; {}", reader.where(), key, text_of(reader, key), why);
}

// Visitors. A field is (key, member, lowest, highest); `extra` fields have a default and stand in
// the file only when they differ from it.
class FieldReader {
 public:
  explicit FieldReader(const JsonReader& from) : from_(from) {}

  void size(const char* key, int64_t& x, int64_t low, int64_t high = kMaxSize) {
    x = from_.get_in<int64_t>(key, low, high);
  }
  // Under another name, if there is one, where that stands; never written so.
  void size_by(const char* key, const char* other, int64_t& x, int64_t low) {
    size(other != nullptr && from_.has(other) ? other : key, x, low);
  }
  void number(const char* key, float& x, double low) {
    x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX));
  }
  void flag(const char* key, bool& x) { x = from_.get<bool>(key); }
  // Under another name where that stands; never written so.
  void flag_by(const char* key, const char* other, bool& x) {
    flag(from_.has(other) ? other : key, x);
  }
  // Under another name, if there is one, where that stands alone; never written so.
  void number_by(const char* key, const char* other, float& x, double low) {
    number(other != nullptr && !from_.has(key) && from_.has(other) ? other : key, x, low);
  }
  // The same for keys that may be missing; they are always written.
  void size_or(const char* key, int64_t& x, int64_t otherwise, int64_t low,
               int64_t high = kMaxSize) {
    x = from_.get_in<int64_t>(key, low, high, otherwise);
  }
  void number_or(const char* key, float& x, float otherwise, double low) {
    x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX, shortest_decimal(otherwise)));
  }
  void flag_or(const char* key, bool& x, bool otherwise) { x = from_.get<bool>(key, otherwise); }
  void act(const char* key, ops::Act& x) {
    std::vector<std::string> names = kActNames;
    names.insert(names.end(), kOtherActNames.begin(), kOtherActNames.end());
    const size_t which = from_.get_one_of(key, names);
    x = which < kActNames.size() ? static_cast<ops::Act>(which)
                                 : kOtherActs[which - kActNames.size()];
  }
  template <class E>
  void one_of(const char* key, E& x, const std::vector<std::string>& names) {
    x = static_cast<E>(from_.get_one_of(key, names));
  }
  void recipe(const char* key, std::string& x) { x = recipe_name(key); }
  void optional(const char* key, std::optional<bool>& x) {
    if (from_.has(key)) x = from_.get<bool>(key);
  }
  void optional(const char* key, std::optional<float>& x, double low) {
    if (from_.has(key)) x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX));
  }
  void optional(const char* key, std::optional<int64_t>& x, int64_t low) {
    if (from_.has(key)) x = from_.get_in<int64_t>(key, low, kMaxSize);
  }
  template <class E>
  void optional(const char* key, std::optional<E>& x, const std::vector<std::string>& names) {
    if (from_.has(key)) x = static_cast<E>(from_.get_one_of(key, names));
  }
  // Bad stages are refused here, where the file's name is known.
  void stages(const char* key, std::string& x) {
    if (!from_.has(key)) return;
    x = from_.value(key).dump();
    parse_stages(x, fmt::format("{}: \"{}\"", from_.where(), key));
  }
  void layer_list(const char* key, std::vector<int64_t>& x) {
    if (!from_.has(key)) return;
    x = from_.get<std::vector<int64_t>>(key);
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] < 0 || x[i] >= kMaxLayers || (i > 0 && x[i] <= x[i - 1]))
        fail("{}: \"{}\" must list layers from 0 on, each once and in rising order; entry {} is {}",
             from_.where(), key, i, x[i]);
  }
  void extra(const char* key, float& x, float otherwise, double low) {
    x = static_cast<float>(from_.get_in<double>(key, low, FLT_MAX, shortest_decimal(otherwise)));
  }
  void extra(const char* key, int64_t& x, int64_t otherwise, int64_t low) {
    x = from_.get_in<int64_t>(key, low, kMaxSize, otherwise);
  }
  void extra(const char* key, bool& x, bool otherwise) { x = from_.get<bool>(key, otherwise); }
  void extra_recipe(const char* key, std::string& x, const char* otherwise) {
    x = from_.has(key) ? recipe_name(key) : otherwise;
  }

 private:
  std::string recipe_name(const char* key) {
    std::vector<std::string> names;
    for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
    return names[from_.get_one_of(key, names)];
  }

  const JsonReader& from_;
};

class FieldWriter {
 public:
  explicit FieldWriter(Json& to) : to_(to) {}

  void size(const char* key, const int64_t& x, int64_t low, int64_t high = kMaxSize) {
    to_[key] = checked<int64_t>(key, x, low, high);
  }
  void size_by(const char* key, const char*, const int64_t& x, int64_t low) { size(key, x, low); }
  void number(const char* key, const float& x, double low) {
    to_[key] = shortest_decimal(checked<float>(key, x, low, FLT_MAX));
  }
  void flag(const char* key, const bool& x) { to_[key] = x; }
  void flag_by(const char* key, const char*, const bool& x) { flag(key, x); }
  void number_by(const char* key, const char*, const float& x, double low) { number(key, x, low); }
  void size_or(const char* key, const int64_t& x, int64_t, int64_t low, int64_t high = kMaxSize) {
    size(key, x, low, high);
  }
  void number_or(const char* key, const float& x, float, double low) { number(key, x, low); }
  void flag_or(const char* key, const bool& x, bool) { flag(key, x); }
  void act(const char* key, const ops::Act& x) { to_[key] = kActNames.at(static_cast<size_t>(x)); }
  template <class E>
  void one_of(const char* key, const E& x, const std::vector<std::string>& names) {
    to_[key] = names.at(static_cast<size_t>(x));
  }
  void recipe(const char* key, const std::string& x) { to_[key] = x; }
  void optional(const char* key, const std::optional<bool>& x) {
    if (x) to_[key] = *x;
  }
  void optional(const char* key, const std::optional<float>& x, double low) {
    if (x) number(key, *x, low);
  }
  void optional(const char* key, const std::optional<int64_t>& x, int64_t low) {
    if (x) size(key, *x, low);
  }
  template <class E>
  void optional(const char* key, const std::optional<E>& x, const std::vector<std::string>& names) {
    if (x) one_of(key, *x, names);
  }
  void stages(const char* key, const std::string& x) {
    if (!x.empty()) to_[key] = parse_json(x, "the routing stages");
  }
  void layer_list(const char* key, std::vector<int64_t> x) {
    std::sort(x.begin(), x.end());
    x.erase(std::unique(x.begin(), x.end()), x.end());
    if (!x.empty()) to_[key] = x;
  }
  void extra(const char* key, const float& x, float otherwise, double low) {
    if (x != otherwise) number(key, x, low);
  }
  void extra(const char* key, const int64_t& x, int64_t otherwise, int64_t low) {
    if (x != otherwise) size(key, x, low);
  }
  void extra(const char* key, const bool& x, bool otherwise) {
    if (x != otherwise) to_[key] = x;
  }
  void extra_recipe(const char* key, const std::string& x, const char* otherwise) {
    if (x != otherwise) to_[key] = x;
  }

 private:
  template <class T>
  T checked(const char* key, T x, std::type_identity_t<double> low, double high) {
    if (!(static_cast<double>(x) >= low && static_cast<double>(x) <= high))
      fail_usage("\"{}\" is {}, config.json holds {} to {}", key, x, low, high);
    return x;
  }

  Json& to_;
};

}  // namespace moe
