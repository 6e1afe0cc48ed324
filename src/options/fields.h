// The fields of an option struct, written down once beside it: `FieldList fields(TrainOptions&)`.
// From such a list come the flags of the command with their
// --help, manual and completion (cli/flags.h), the names that JSON gives (options/read.h), what a
// checkpoint keeps, and the keywords of Python (moe_options() in include/moe/moe.h). A list views
// the struct, which must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace moe {

struct Field {
  enum class Kind {
    toggle,   // false unless it is given: a flag without a value
    boolean,  // true or false; absent: whoever uses it decides
    whole,    // an int64_t or int
    natural,  // a uint64_t
    number,   // a float or double
    text,
    texts,     // any number of them
    wholes,    // whole numbers, commas between them
    weighted,  // names, each with a number: german=2
    json,      // kept in checkpoints only
  };

  std::string name;  // with underscores: "min_lr"
  // other names of it: the letter of a short flag, other projects' spellings
  std::vector<std::string> also;
  Kind kind = Kind::text;
  std::string help;                 // a phrase; names of fields in it are marked (core/error.h)
  std::string unit;                 // of a number: "tokens"; empty: none, or the help says it
  std::string group;                // a heading; empty: the first one
  std::vector<std::string> values;  // all that a text can be; empty: not a fixed choice
  std::string form, example;        // weighted: "DOMAIN=WEIGHT", "german=2"
  int64_t low = INT64_MIN, high = INT64_MAX;  // that a whole number can hold

  bool is_path = false;  // a text, or texts: names of files or folders
  bool required = false;
  // on the command line it stands without a flag; the name is then in capitals
  bool positional = false;
  bool of_caller = false;   // no file can set it
  bool one_each = false;    // texts: a flag is followed by one of them, and may be repeated
  bool takes_json = false;  // text: an object in JSON stands for its text
  bool has_default = true;  // false: the value in the struct stands for one that is found out later
  bool recorded_only = false;  // a checkpoint keeps it; no user sets it
  bool is_mathematics = true;  // of a training run: whether the weights depend on it

  std::function<Json()> get;  // null: absent
  // a value as `get` gives it; throws (usage) for a text that is none of the values
  std::function<void(const Json&)> set;
};

// How a member of an option struct is read and written.
struct FieldValue {
  Field::Kind kind;
  std::function<Json()> get;
  std::function<void(const Json&)> set;
  int64_t low = INT64_MIN, high = INT64_MAX;
};
FieldValue value_of(bool&);
FieldValue value_of(std::optional<bool>&);
FieldValue value_of(int&);
FieldValue value_of(int64_t&);
FieldValue value_of(std::optional<int64_t>&);
FieldValue value_of(uint64_t&);
FieldValue value_of(float&);
FieldValue value_of(double&);
FieldValue value_of(std::optional<float>&);
FieldValue value_of(std::optional<double>&);
FieldValue value_of(std::string&);
FieldValue value_of(std::optional<std::string>&);
FieldValue value_of(std::vector<std::string>&);
FieldValue value_of(std::vector<int64_t>&);
FieldValue value_of(std::map<std::string, double>&);

// What else there is to say about a field that was added; valid until the next one is.
class FieldEntry {
 public:
  explicit FieldEntry(Field& field) : field_(field) {}
  FieldEntry& also(std::vector<std::string> names) { return field_.also = std::move(names), *this; }
  FieldEntry& unit(const char* unit) { return field_.unit = unit, *this; }
  FieldEntry& values(std::vector<std::string> values) {
    return field_.values = std::move(values), *this;
  }
  FieldEntry& form(const char* form, const char* example) {
    return field_.form = form, field_.example = example, *this;
  }
  FieldEntry& path() { return field_.is_path = true, *this; }
  FieldEntry& required() { return field_.required = true, *this; }
  FieldEntry& positional() { return field_.positional = true, *this; }
  FieldEntry& of_caller() { return field_.of_caller = true, *this; }
  FieldEntry& one_each() { return field_.one_each = true, *this; }
  FieldEntry& takes_json() { return field_.takes_json = true, *this; }
  FieldEntry& no_default() { return field_.has_default = false, *this; }
  FieldEntry& recorded_only() { return field_.recorded_only = true, *this; }
  FieldEntry& no_mathematics() { return field_.is_mathematics = false, *this; }

 private:
  Field& field_;
};

// Throws (usage) with the nearest of them; the place of `word` among the names otherwise.
size_t place_of(std::string_view word, const std::vector<std::string>& names,
                std::string_view field_name);

class FieldList {
 public:
  // Of the fields that are added from now on.
  void group(std::string name) { group_ = std::move(name); }
  // `help`: a phrase, in which @steps names another field.
  FieldEntry add(std::string name, FieldValue value, std::string_view help);
  template <class T>
  FieldEntry add(std::string name, T& member, std::string_view help) {
    return add(std::move(name), value_of(member), help);
  }
  // One of `names`, which are those of the enum's values in their order.
  template <class E>
  FieldEntry add_choice(std::string name, E& member, const std::vector<std::string>& names,
                        std::string_view help) {
    const auto set = [&member, names, name](const std::string& word) {
      member = static_cast<E>(place_of(word, names, name));
    };
    return add_named(
        name, names, [&member, names] { return names.at(static_cast<size_t>(member)); }, set, help);
  }
  template <class E>
  FieldEntry add_choice(std::string name, std::optional<E>& member,
                        const std::vector<std::string>& names, std::string_view help) {
    const auto set = [&member, names, name](const std::string& word) {
      member = static_cast<E>(place_of(word, names, name));
    };
    return add_named(
        name, names,
        [&member, names] { return member ? names.at(static_cast<size_t>(*member)) : ""; }, set,
        help);
  }
  FieldEntry add_choice(std::string name, std::string& member,
                        const std::vector<std::string>& names, std::string_view help);
  // One of `names`, got and set as such; got empty: absent.
  FieldEntry add_named(std::string name, const std::vector<std::string>& names,
                       std::function<std::string()> get,
                       std::function<void(const std::string&)> set, std::string_view help);
  // Those without a group come into the one that is set.
  void add(FieldList other);
  // Removes these from the list.
  FieldList take(std::initializer_list<std::string_view> names);
  // Only those of one group.
  FieldList in_group(std::string_view group) const;

  // By any of its names, with dashes or underscores; null: none is called so.
  Field* find(std::string_view name);
  const Field* find(std::string_view name) const {
    return const_cast<FieldList*>(this)->find(name);
  }
  Field& at(std::string_view name);

  std::vector<Field>::iterator begin() { return fields_.begin(); }
  std::vector<Field>::iterator end() { return fields_.end(); }
  std::vector<Field>::const_iterator begin() const { return fields_.begin(); }
  std::vector<Field>::const_iterator end() const { return fields_.end(); }

 private:
  std::string group_;
  std::vector<Field> fields_;
};

// The names of a table's rows.
template <class Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}
// "a, b, c"
std::string listed(const std::vector<std::string>& names);

// As checkpoints keep them: every field by its name.
Json to_json(const FieldList&);
// What a program needs to know of them: a list of {name, also, kind, help, unit, group, default,
// values, required}.
Json describe(const FieldList&);

}  // namespace moe
