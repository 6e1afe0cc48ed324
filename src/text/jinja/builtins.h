// What templates call by name: filters, tests, methods of texts, dicts and lists, and functions.
// Each is a row of a table in builtins.cpp or text_methods.cpp; a name that stands in none is
// refused.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace moe::jinja {

// What the interpreter offers to what it calls. Throws where a name is not known.
class Host {
 public:
  virtual ~Host() = default;
  virtual Value filter(const std::string& name, const Value& on, const Arguments&) = 0;
  virtual bool test(const std::string& name, const Value& on, const Arguments&) = 0;
  // x.name; undefined where there is none.
  virtual Value attribute(const Value& x, const std::string& name) = 0;
  // x[key]; what x holds, before its attributes.
  virtual Value item(const Value& x, const Value& key) = 0;
  // Before so many bytes are made; throws where a template has made too many.
  virtual void spend(size_t bytes) = 0;
  // Before so many are gone through; likewise.
  virtual void work(int64_t bytes) = 0;
};

struct Call {
  Host& host;
  std::string_view name;
  const Value& on;  // what a filter, test or method is applied to
  const Arguments& given;

  // The argument at this place or of this name; null where it was not given.
  const Value* find(size_t place, std::string_view argument) const;
  Value get(size_t place, std::string_view argument, Value otherwise) const;
  Value need(size_t place, std::string_view argument) const;
  bool flag(size_t place, std::string_view argument, bool otherwise) const;
  // Refuses more than these arguments.
  void only(size_t places, std::initializer_list<std::string_view> names) const;
};

using Builtin = Value (*)(const Call&);
using Table = std::map<std::string_view, Builtin>;

const Table& filters();
const Table& tests();
const Table& text_methods();
const Table& dict_methods();
const Table& sequence_methods();

// What a loop goes through: items, keys, characters, nothing where undefined.
List items_of(Host&, const Value&);
// to_text(), within what a template may make.
std::string written(Host&, const Value&);
// Before two values are compared, or one with each of `count`, or a text is looked for in another.
void work_of_comparing(Host&, const Value& a, const Value& b);
void work_of_finding(Host&, int64_t count, const Value&);
void work_of_searching(Host&, std::string_view text, std::string_view what);
// Python's x in all.
bool contains(Host&, const Value& all, const Value& x);
Value length_of(const Value&);
// As Python's str.lower() and upper(); fails for letters that are not ASCII.
std::string lowered(std::string_view text);
std::string raised(std::string_view text);
// For HTML.
std::string escaped(Host&, std::string_view text);
std::string text_of(const Call&, const Value&);
int64_t integer_of(const Call&, const Value&);

}  // namespace moe::jinja
