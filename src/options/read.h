// Values for the fields of a list, from the words of a command line or the values of a JSON object,
// and the record of who gave which.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "options/fields.h"

namespace moe {

enum class GivenBy {
  caller,  // the command line, or a program's call
  config,  // the file that a caller named
  preset,
};

// Which fields were given a value, and by whom.
class Given {
 public:
  void add(std::string_view name, GivenBy by) { by_.emplace(name, by); }
  bool has(std::string_view name) const { return by_.find(name) != by_.end(); }
  bool by_caller(std::string_view name) const;
  std::set<std::string, std::less<>> names() const;

 private:
  std::map<std::string, GivenBy, std::less<>> by_;
};

// The value that the words of a command line stand for, as Field::set takes it; nothing where they
// are none of its kind. A whole number may be written 1e6.
std::optional<Json> parse_words(const Field&, const std::vector<std::string>& words);
// The digits of a whole number written with a point or an exponent, 1e6 or 2.50e2; anything else as
// it is.
std::string whole_number(const std::string& word);

// Gives every field that has no value yet the one that a JSON object has under one of its names.
// Names that are none are refused with the nearest one, and so is a null. `where` opens every
// message. `passed_over`: names whose values are looked at by nobody.
void read_options(FieldList&, const Json& object, const std::string& where, GivenBy by,
                  Given& given, const std::set<std::string, std::less<>>& passed_over = {});
// Of a program, for which null and an empty list stand for an option that is left out. `text`: NULL
// or nothing stands for none.
Given read_caller_options(FieldList list, const char* text);
Given read_caller_options(FieldList list, Json object, const std::string& where);
// What to_json() of the list gave. Absent fields stay as they are.
void read_record(FieldList&, const Json& object, const std::string& where);

}  // namespace moe
