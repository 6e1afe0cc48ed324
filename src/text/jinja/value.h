// What a chat template computes with: Python's None, booleans, numbers, texts, lists, tuples and
// dicts as far as published templates use them, and Jinja's undefined. Lists and dicts never change
// once made, as in transformers' sandbox; only a namespace does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/json.h"

namespace moe::jinja {

class Value;
using List = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;  // in the order of their writing

// What stands behind a name that means nothing; `name` is for the message.
struct Undefined {
  std::string name;
};
struct None {};
struct Sequence {
  // What map() and the like give: to go through and for list(), with no length and no text.
  enum class Form { list, tuple, stream };
  List items;
  Form form = Form::list;
  int64_t weight = 0;  // Value::weight(), by who makes a value of it
};
struct Dict {
  Entries entries;
  int64_t weight = 0;  // likewise
  const Value* find(const Value& key) const;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> fields;
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int holds = 0;  // depth() of what it is bound to
};

class Value {
 public:
  Value() : held_(None{}) {}
  Value(Undefined x) : held_(std::move(x)) {}
  Value(bool x) : held_(x) {}
  Value(int64_t x) : held_(x) {}
  Value(double x) : held_(x) {}
  Value(std::string x) : held_(std::make_shared<const std::string>(std::move(x))) {}
  Value(const char* x) : Value(std::string(x)) {}
  // These fail where values lie too deep in each other: letting go of them takes stack.
  Value(Sequence x);
  Value(List x) : Value(Sequence{std::move(x)}) {}
  Value(Dict x);
  Value(Function x);
  explicit Value(Namespace* x) : held_(x) {}
  static Value of_size(size_t n) { return static_cast<int64_t>(n); }
  static Value tuple(List items) { return of_form(std::move(items), Sequence::Form::tuple); }
  static Value stream(List items) { return of_form(std::move(items), Sequence::Form::stream); }
  static Value of_form(List items, Sequence::Form form) { return Sequence{std::move(items), form}; }
  // Text that `safe` has marked: what + adds to it is escaped for HTML.
  static Value marked_safe(std::string text) {
    Value x(std::move(text));
    x.safe_ = true;
    return x;
  }

  const Undefined* undefined() const { return std::get_if<Undefined>(&held_); }
  bool none() const { return std::holds_alternative<None>(held_); }
  const bool* boolean() const { return std::get_if<bool>(&held_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&held_); }
  const double* real() const { return std::get_if<double>(&held_); }
  bool safe() const { return safe_; }
  // How many lists, dicts and functions lie in each other here.
  int depth() const { return depth_; }
  // About how many bytes are written, or compared, where this is. What lies in lists and dicts
  // several times counts each time, though it is held once: in 64 lists of two that lie in each
  // other that is more than there are bytes.
  int64_t weight() const;
  const std::string* text() const { return shared<std::string>(); }
  const Sequence* sequence() const { return shared<Sequence>(); }
  const Dict* dict() const { return shared<Dict>(); }
  const Function* function() const { return shared<Function>(); }
  Namespace* space() const {
    auto* const* found = std::get_if<Namespace*>(&held_);
    return found == nullptr ? nullptr : *found;
  }
  // Booleans count as 0 and 1, as in Python.
  bool number() const { return boolean() || integer() || real(); }
  double as_double() const;

  bool truth() const;
  // Python's name of the type, for messages.
  const char* type() const;
  friend bool operator==(const Value& a, const Value& b);

 private:
  void set_depth(int of_held);
  template <class T>
  const T* shared() const {
    const auto* found = std::get_if<std::shared_ptr<const T>>(&held_);
    return found == nullptr ? nullptr : found->get();
  }

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<const Function>, Namespace*>
      held_;
  bool safe_ = false;
  int depth_ = 0;
};

// < 0, 0, > 0 as Python orders numbers, texts and sequences of them; fails where it has no order.
int compare(const Value& a, const Value& b);

// Python's str() and repr().
std::string to_text(const Value&);
std::string to_repr(const Value&);

// Python's json.dumps(x, ensure_ascii=False); indent < 0: on one line.
struct JsonStyle {
  int64_t indent = -1;
  bool sorted = false, ascii = false;
  std::string item = ", ", colon = ": ";
  std::function<void(size_t bytes)> spend = {};  // asked before so many are written
};
std::string to_json(const Value&, const JsonStyle&);

// Texts as lists of characters.
List characters(std::string_view text);
size_t character_count(std::string_view text);
// The `place`-th one, empty behind the last.
std::string_view character_of(std::string_view text, size_t place);
// Those from one place up to another.
std::string_view characters_between(std::string_view text, size_t begin, size_t end);

// Of weights, no more than 64 bits hold.
int64_t sum_of_weights(int64_t a, int64_t b);
int64_t product_of_weights(int64_t a, int64_t b);

[[noreturn]] void fail_overflow();  // a whole number beyond 64 bits

// The order of keys is that of the text it was read from only where `json` is of an ordered type.
template <class AnyJson>
Value from_json(const AnyJson& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.template get<bool>();
  if (json.is_number_unsigned() && json.template get<uint64_t>() > uint64_t{INT64_MAX})
    fail_overflow();
  if (json.is_number_integer()) return json.template get<int64_t>();
  if (json.is_number()) return json.template get<double>();
  if (json.is_string()) return json.template get<std::string>();
  if (json.is_array()) {
    List items;
    for (const auto& x : json) items.push_back(from_json(x));
    return items;
  }
  Dict dict;
  for (const auto& [key, x] : json.items()) dict.entries.emplace_back(key, from_json(x));
  return dict;
}

}  // namespace moe::jinja
