// Words and JSON become values, or are refused by name; who gave what is recorded, and who was
// first wins.
#include "options/read.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "options/common.h"
#include "support/comma_locale.h"
#include "support/files.h"

namespace moe::read_test {
namespace {

struct All {
  bool toggle = false;
  std::optional<bool> boolean;
  int threads = 1;
  int64_t whole = 0;
  uint64_t natural = 0;
  double number = 0;
  std::string text, file;
  std::vector<std::string> texts;
  std::vector<int64_t> wholes;
  std::map<std::string, double> mix;
  MemoryLimits limits;
};

FieldList fields(All& a) {
  FieldList list;
  list.add("toggle", a.toggle, "");
  list.add("boolean", a.boolean, "");
  add_threads(list, a.threads);
  list.add("whole_number", a.whole, "").also({"num_whole"});
  list.add("natural", a.natural, "");
  list.add("number", a.number, "");
  list.add("text", a.text, "").takes_json();
  list.add("file", a.file, "").of_caller();
  list.add("texts", a.texts, "");
  list.add("wholes", a.wholes, "");
  list.add("mix", a.mix, "").form("NAME=WEIGHT", "a=2");
  add_memory_limits(list, a.limits);
  return list;
}

All read(const char* json, Given given = {}, GivenBy by = GivenBy::config) {
  All a;
  FieldList list = fields(a);
  read_options(list, parse_json(json, "f"), "f", by, given);
  return a;
}

TEST(Read, NumbersHavePointsInEveryLocale) {
  const test::CommaLocale comma;
  if (!comma.works()) GTEST_SKIP() << "no locale with a comma can be made here (localedef)";
  EXPECT_EQ(read(R"({"number": 0.25})").number, 0.25);
  EXPECT_EQ(read(R"({"number": "-2.5e-3"})").number, -0.0025);
  EXPECT_EQ(read(R"({"mix": {"a": 0.5}})").mix.at("a"), 0.5);
  EXPECT_FAILS(read(R"({"number": "0,25"})"), "a number is needed");
}

TEST(Read, EveryKindFromJson) {
  const All a = read(
      R"({"toggle": true, "boolean": false, "threads": 2, "whole-number": 1e6, "natural": 18446744073709551615, "number": 3, "text": {"a": 1},
                         "texts": ["x", "y"], "wholes": [1, "2,3"], "mix": {"a b": 0.5}, "memory": "2K"})");
  EXPECT_TRUE(a.toggle);
  EXPECT_EQ(a.boolean, false);
  EXPECT_EQ(a.threads, 2);
  EXPECT_EQ(a.whole, 1000000);
  EXPECT_EQ(a.natural, ~uint64_t{0});
  EXPECT_EQ(a.number, 3);
  EXPECT_EQ(a.text, R"({"a":1})");
  EXPECT_EQ(a.texts, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(a.wholes, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(a.mix.at("a b"), 0.5);
  EXPECT_EQ(a.limits.all, 2048);
  EXPECT_EQ(read(R"({"texts": "x", "whole_number": "12"})").whole, 12)
      << "a text is read as a word would be";
}

TEST(Read, WhatIsNoneOfItsKindIsRefusedByName) {
  // an exponent whose size no int holds
  EXPECT_FAILS(read(R"({"whole_number": "0e-2147483648"})"), "a whole number is needed");
  EXPECT_FAILS(read(R"({"whole_number": 1.5})"),
               "f: \"whole_number\" is 1.5; a whole number is needed");
  EXPECT_FAILS(read(R"({"threads": 99999999999})"),
               "\"threads\" is 99999999999, which is out of range");
  EXPECT_FAILS(read(R"({"natural": -1})"),
               "\"natural\" is -1; a whole number from 0 to 2^64 - 1 is needed");
  EXPECT_FAILS(read(R"({"number": "much"})"), "a number is needed");
  EXPECT_FAILS(read(R"({"boolean": "perhaps"})"), "true or false is needed");
  EXPECT_FAILS(read(R"({"number": [1, 2]})"), "number takes one value, not a list of 2");
  EXPECT_FAILS(read(R"({"number": null})"), "\"number\" must be");
  EXPECT_FAILS(read(R"({"mix": ["a"]})"), "mix a: expected NAME=WEIGHT, such as a=2");
  EXPECT_FAILS(read(R"({"mix": ["a=1", "a=2"]})"), "mix names \"a\" twice");
  EXPECT_FAILS(read(R"({"memory": "much"})"), "memory is \"much\"");
  EXPECT_FAILS(read(R"({"wholenumber": 1})"),
               "no option is called \"wholenumber\"; did you mean \"whole_number\"?");
  EXPECT_FAILS(read(R"({"num_whle": 1})"), "did you mean \"num_whole\"?");
  EXPECT_FAILS(read(R"({"file": "x"})"), "\"file\" can only stand on the command line");
  EXPECT_FAILS(read("[1]"), "expected a JSON object");
  EXPECT_EQ(read(R"({"file": "x"})", {}, GivenBy::caller).file, "x");
}

TEST(Read, AnotherNameIsTheSameOption) {
  EXPECT_EQ(read(R"({"num_whole": 3})").whole, 3);
  EXPECT_FAILS(read(R"({"num_whole": 3, "whole_number": 3})"),
               "\"num_whole\" and \"whole_number\" are names of the same option");
}

TEST(Read, WhoWasFirstWins) {
  All a;
  FieldList list = fields(a);
  Given given;
  given.add("number", GivenBy::caller);
  read_options(list, parse_json(R"({"number": 5, "num_whole": 6, "natural": 7})", "f"), "f",
               GivenBy::config, given, {"natural"});
  EXPECT_EQ(a.number, 0);
  EXPECT_EQ(a.whole, 6);
  EXPECT_EQ(a.natural, 0u) << "passed over";
  EXPECT_FALSE(given.has("natural"));
  EXPECT_TRUE(given.has("whole_number"));
  EXPECT_FALSE(given.by_caller("whole_number"));
  read_options(list, parse_json(R"({"whole_number": 8, "text": "t"})", "g"), "g", GivenBy::preset,
               given);
  EXPECT_EQ(a.whole, 6);
  EXPECT_EQ(a.text, "t");
}

TEST(Read, AProgramLeavesOptionsOut) {
  All a;
  const Given given = read_caller_options(
      fields(a), R"({"number": null, "texts": [], "mix": {}, "whole_number": 2, "toggle": false})");
  EXPECT_EQ(given.names(), (std::set<std::string, std::less<>>{"toggle", "whole_number"}));
  EXPECT_TRUE(given.by_caller("whole_number"));
  EXPECT_TRUE(read_caller_options(fields(a), nullptr).names().empty());
  EXPECT_TRUE(read_caller_options(fields(a), "").names().empty());
  EXPECT_FAILS(read_caller_options(fields(a), R"({"no": null})"), "no option is called \"no\"");
  EXPECT_FAILS(read_caller_options(fields(a), "[1]"), "options: expected a JSON object");
}

TEST(Read, ARecordComesBack) {
  All a, b;
  a.mix = {{"x", 0.25}};
  a.natural = ~uint64_t{0};
  a.wholes = {4, 5};
  a.boolean = true;
  FieldList list = fields(b);
  read_record(list, to_json(fields(a)), "record");
  EXPECT_EQ(to_json(fields(b)), to_json(fields(a)));
  EXPECT_FAILS(read_record(list, Json{{"nubmer", 1}}, "record"),
               "record: \"nubmer\" is not known here; did you mean \"number\"?");
}

}  // namespace
}  // namespace moe::read_test
