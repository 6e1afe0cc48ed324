// Schemas and the texts that they let through, byte by byte, and what is refused by its name.
#include "text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/files.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/states.h"

namespace moe::test::json_schema_test {
namespace {

using grammar::Grammar;
using grammar::States;

std::shared_ptr<const Grammar> of(const std::string& schema) {
  return grammar::json_schema_grammar(schema, "response_format");
}

// "ok"; or where the text leaves the grammar.
std::string read(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  States states(grammar);
  grammar::StateId state = states.start();
  for (size_t i = 0; i < text.size(); ++i) {
    state = states.next(state, static_cast<uint8_t>(text[i]));
    if (state == grammar::kDead) return text.substr(0, i) + " <- " + text.substr(i);
  }
  return states.complete(state) ? "ok" : "cut";
}

struct Case {
  std::string schema;
  std::vector<std::string> good, bad;
};

void check(const Case& c) {
  const auto grammar = of(c.schema);
  for (const std::string& text : c.good) EXPECT_EQ(read(grammar, text), "ok") << c.schema;
  for (const std::string& text : c.bad) EXPECT_NE(read(grammar, text), "ok") << c.schema << text;
}

TEST(JsonObject, IsAnyObjectInALayoutThatEnds) {
  const auto grammar = grammar::json_object_grammar();
  for (const char* text :
       {"{}", "{ }", "{\n}", "{\n  \"a\": 1,\n  \"b\": [\n    true,\n    null\n  ]\n}",
        "{\"a\":{\"b\":{}}, \"c\":[[],[1,2]]}", "{\"\\u00e9\\ud83d\\ude00\":\"\xC3\xA9\\n\"}",
        "{\"a\":-0.5e-3,\"a\":0}", "{\n\t\"a\": \"\"\n}"})
    EXPECT_EQ(read(grammar, text), "ok");
  for (const char* text : {"",
                           "[]",
                           "1",
                           "\"a\"",
                           " {}",
                           "{} ",
                           "{  }",
                           "{\n\n}",
                           "{a:1}",
                           "{\"a\" :1}",
                           "{\"a\":1,}",
                           "{\"a\":01}",
                           "{\"a\":+1}",
                           "{\"a\":.5}",
                           "{\"a\":1.}",
                           "{\"a\":nul}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":\"\\ud83d\"}",
                           "{\"a\":\"\\ude00\"}",
                           "{\"a\":[1,]}",
                           "{\"a\":1}}",
                           "{\"\xC3\":1}",
                           "{\"\xED\xA0\x80\":1}",
                           "{\"\xC0\x80\":1}",
                           "{\"\xF4\x90\x80\x80\":1}",
                           "{\"\xFF\":1}",
                           "{\"a\":1e999}"})
    EXPECT_NE(read(grammar, text), "ok") << text;
  const std::string indent(41, ' ');
  EXPECT_EQ(read(grammar, "{\n" + indent.substr(1) + "}"), "ok");
  EXPECT_NE(read(grammar, "{\n" + indent + "}"), "ok");
  EXPECT_NE(read(grammar, "{\"a\":" + std::string(19, '1') + "}"), "ok");
}

// What is allowed can always be completed, so depth is bounded where it begins, not where it ends.
TEST(JsonObject, NestsToADepthAndThenStillCloses) {
  const auto grammar = grammar::json_object_grammar();
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "{\"a\":";
    return text + "[" + "]" + std::string(static_cast<size_t>(depth), '}');
  };
  EXPECT_EQ(read(grammar, nested(30)), "ok");
  EXPECT_NE(read(grammar, nested(200)), "ok");
  States states(grammar);
  grammar::StateId state = states.start();
  int depth = 0;
  for (; depth < 1000; ++depth) {
    grammar::StateId deeper = state;
    for (const char c : std::string("{\"a\":"))
      deeper = states.next(deeper, static_cast<uint8_t>(c));
    if (deeper == grammar::kDead) break;
    state = deeper;
  }
  EXPECT_LT(depth, 200);
  state = states.next(state, '1');
  for (int i = 0; i < depth; ++i) state = states.next(state, '}');
  EXPECT_TRUE(states.complete(state));
}

TEST(JsonSchema, Types) {
  check({R"({"type": "string"})", {R"("")", R"("a\"b")"}, {"1", "null", "\"a"}});
  check({R"({"type": "integer"})", {"0", "-7", "120"}, {"1.0", "-0", "01", "1e3", "\"1\""}});
  check({R"({"type": "number"})", {"0", "-0.5", "1E+3"}, {"1.", "--1", "true"}});
  check({R"({"type": "boolean"})", {"true", "false"}, {"True", "0"}});
  check({R"({"type": "null"})", {"null"}, {"nul", "{}"}});
  check({R"({"type": ["integer", "null"]})", {"null", "3"}, {"\"3\"", "2.5"}});
  check({R"({"type": "array"})", {"[]", "[1, \"a\", {}]"}, {"{}", "[1 2]"}});
  check({"{}", {"{}", "[]", "1", "null"}, {""}});
  check({"true", {"{}", "1"}, {""}});
}

TEST(JsonSchema, PropertiesComeInTheirOrder) {
  const std::string two = R"("properties": {"b": {"type": "integer"}, "a": {"type": "null"}})";
  check(
      {R"({"type": "object", "additionalProperties": false, "required": ["a", "b"], )" + two + "}",
       {R"({"b":1,"a":null})", R"({"b": 1, "a": null})"},
       {R"({"a":null,"b":1})", R"({"b":1})", "{}", R"({"b":1,"a":null,"c":1})"}});
  check({R"({"additionalProperties": false, )" + two + "}",
         {"{}", R"({"b":1})", R"({"a":null})", R"({"b":1,"a":null})"},
         {R"({"a":null,"b":1})", R"({"b":1,"b":1})", R"({"b":1,})", R"({,"b":1})"}});
  check({R"({"required": ["a"], "additionalProperties": false, )" + two + "}",
         {R"({"a":null})", R"({"b":1,"a":null})"},
         {"{}", R"({"b":1})"}});
  check({R"({"type": "object", "properties": {"é\n\"": {"const": 1}},
            "additionalProperties": false})",
         {"{\"\xC3\xA9\\n\\\"\":1}"},
         {R"({"\u00e9\n\"":1})"}});
}

TEST(JsonSchema, OtherPropertiesHaveOtherNames) {
  check({R"({"properties": {"ab": {"type": "integer"}, "a\n": {"const": 0}, "é": {"const": 1}},
            "additionalProperties": {"type": "string"}})",
         {R"({"ab":1,"a":"x"})", R"({"abc":"x"})", R"({"":"x"})", R"({"a":"x","b":"y"})",
          R"({"ba":"\u0041"})", R"({"a\t":"x"})", "{\"\xC3\xAA\":\"x\"}", "{\"\xC4\xA9\":\"x\"}",
          "{\"\xC3\xA9\xC3\xA9\":\"x\"}", R"({"x\u0041":"y"})"},
         {R"({"ab":"x"})", R"({"a":1})", R"({"a":"x","ab":1})", R"({"\u0061b":"x"})",
          R"({"a\n":"x"})", "{\"\xC3\xA9\":\"x\"}", R"({"\u00e9":"x"})", "{\"\xC3\":\"x\"}"}});
  check({R"({"type": "object", "required": ["x"]})",
         {R"({"x":[]})", R"({"x":1,"y":2})"},
         {"{}", R"({"y":2})", R"({"x":1,"x":2})"}});
  check({R"({"type": "object", "properties": {"a/b": {}}})", {R"({"a/b":1})"}, {R"({"a\/b":1})"}});
}

TEST(JsonSchema, ArraysCountTheirElements) {
  check({R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
         {"[1,2]", "[1, 2, 3]"},
         {"[]", "[1]", "[1,2,3,4]", "[1,\"a\"]"}});
  check({R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}});
  check({R"({"prefixItems": [{"const": "a"}, {"const": "b"}], "items": {"type": "null"}})",
         {"[]", "[\"a\"]", "[\"a\",\"b\"]", "[\"a\",\"b\",null,null]"},
         {"[\"b\"]", "[\"a\",null]", "[null]"}});
  check({R"({"prefixItems": [{"const": 1}, {"const": 2}], "items": false, "minItems": 1})",
         {"[1]", "[1,2]"},
         {"[]", "[1,2,3]"}});
  check({R"({"prefixItems": [{"const": 1}, {"const": 2}], "minItems": 4, "maxItems": 4})",
         {"[1,2,0,\"x\"]"},
         {"[1,2]", "[1,2,0]", "[1,2,0,0,0]"}});
  check({R"({"items": {}, "minItems": 1, "maxItems": 1, "uniqueItems": false})",
         {"[[[]]]"},
         {"[]", "[1,1]"}});
}

TEST(JsonSchema, StringsCountCharacters) {
  check({R"({"minLength": 2, "maxLength": 3})",
         {R"("ab")", "\"\xC3\xA9\xF0\x9F\x98\x80\"", R"("\n\u0041\ud83d\ude00")"},
         {R"("a")", R"("abcd")", "\"\xC3\xA9\"", "12"}});
  check({R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}});
}

TEST(JsonSchema, Formats) {
  check({R"({"format": "date"})",
         {R"("2024-02-29")", R"("2000-02-29")", R"("2023-12-31")", R"("0001-04-30")"},
         {R"("2023-02-29")", R"("1900-02-29")", R"("2023-13-01")", R"("2023-04-31")",
          R"("2023-1-01")", R"("2023-00-10")", R"("")"}});
  check({R"({"type": "string", "format": "time"})",
         {R"("23:59:59Z")", R"("00:00:00.125+02:30")"},
         {R"("24:00:00Z")", R"("12:00:60Z")", R"("12:00:00")", R"("12:00Z")"}});
  check({R"({"format": "date-time"})",
         {R"("2024-02-29T12:00:00Z")"},
         {R"("2024-02-29 12:00:00Z")", R"("2024-02-29")"}});
  check({R"({"format": "uuid"})",
         {R"("123e4567-e89b-12d3-A456-426614174000")"},
         {R"("123e4567e89b12d3a456426614174000")", R"("g23e4567-e89b-12d3-a456-426614174000")"}});
}

TEST(JsonSchema, EnumsShareBeginnings) {
  check({R"({"enum": ["a", "ab", "abc", 1, 12, null, [1, {"x": true}], 1.5]})",
         {R"("a")", R"("ab")", R"("abc")", "1", "12", "null", "[1,{\"x\":true}]",
          "[\n  1,\n  {\"x\": true}\n]", "1.5"},
         {R"("")", R"("abcd")", R"("b")", "2", "121", "[1]", "1.50", "[1,{\"x\":true,\"y\":1}]"}});
  check({R"({"type": "string", "enum": ["a", 1, "b"]})", {R"("a")", R"("b")"}, {"1"}});
  check({R"({"const": {"a": [], "b": {}}})", {R"({"a":[],"b":{}})"}, {R"({"b":{},"a":[]})", "{}"}});
}

TEST(JsonSchema, Alternatives) {
  check({R"({"anyOf": [{"type": "integer"}, {"type": "null"}, false], "title": "t"})",
         {"1", "null"},
         {"\"\"", "true"}});
  check({R"({"oneOf": [{"properties": {"k": {"const": "a"}, "x": {"type": "null"}},
                        "required": ["k", "x"], "additionalProperties": false},
                       {"properties": {"k": {"const": "ab"}, "x": {"type": "integer"}},
                        "required": ["k", "x"], "additionalProperties": false}]})",
         {R"({"k":"a","x":null})", R"({"k":"ab","x":1})"},
         {R"({"k":"a","x":1})", R"({"k":"ab","x":null})"}});
  check({R"({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"const": 3}}, "default": 3})",
         {"3"},
         {"4"}});
}

TEST(JsonSchema, RefersToItself) {
  check({R"({"properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
             "required": ["child"], "additionalProperties": false})",
         {R"({"child":null})", R"({"child":{"child":{"child":null}}})"},
         {"{}", R"({"child":{}})"}});
  check({R"({"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": {"type": "array",
             "items": {"$ref": "#/definitions/a~1b%25"}}}})",
         {"[]", "[[],[[]]]"},
         {"[1]"}});
  check({R"({"anyOf": [{"const": 1}, {"$ref": "#/anyOf/0"}]})", {"1"}, {"2"}});
}

// What has an $id is a schema of its own: a $ref in it leads from there, wherever that came from.
TEST(JsonSchema, RefersWithinItsOwnId) {
  const std::string part = R"({"$id": "part", "$defs": {"one": {"const": 1}}, "properties":
      {"one": {"$ref": "#/$defs/one"}, "again": {"$ref": "#"}}, "additionalProperties": false})";
  const std::vector<std::string> held = {R"({"one":1})", R"({"again":{"again":{"one":1}}})"},
                                 others = {R"({"one":2})", "[]", R"({"again":[]})"};
  check({R"({"$defs": {"one": {"const": 2}}, "anyOf": [)" + part + "]}", held, others});
  check({R"({"$ref": "#/$defs/part", "$defs": {"part": )" + part + "}}", held, others});
  check({R"({"$ref": "#/$defs/part/$defs/one", "$defs": {"part": )" + part + "}}", {"1"}, {"2"}});
}

TEST(JsonSchema, RangesOfWholeNumbers) {
  const std::vector<std::pair<int, int>> ranges = {{0, 0},    {0, 9},    {5, 17},    {-3, 4},
                                                   {-20, -7}, {99, 101}, {123, 456}, {-1000, 1000},
                                                   {7, 7},    {-1, -1},  {10, 99},   {95, 1205}};
  for (const auto& [low, high] : ranges) {
    const auto closed =
        of(fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", low, high));
    const auto open = of(
        fmt::format(R"({{"type": "integer", "exclusiveMinimum": {}, "exclusiveMaximum": {:.1f}}})",
                    low - 1, high + 0.5));
    const auto decimals = of(fmt::format(
        R"({{"type": "number", "minimum": {}, "exclusiveMaximum": {}}})", low, high + 1));
    for (int n = -1300; n <= 1300; ++n) {
      const bool inside = n >= low && n <= high;
      ASSERT_EQ(read(closed, std::to_string(n)) == "ok", inside) << n << " " << low << " " << high;
      ASSERT_EQ(read(open, std::to_string(n)) == "ok", inside) << n << " " << low << " " << high;
      ASSERT_EQ(read(decimals, std::to_string(n)) == "ok", inside)
          << n << " " << low << " " << high;
      const std::string half = (n < 0 ? "-" : "") + std::to_string(std::abs(n)) + ".50";
      const double x = n < 0 ? n - 0.5 : n + 0.5;
      ASSERT_EQ(read(decimals, half) == "ok", x >= low && x < high + 1) << half << low << high;
    }
    EXPECT_NE(read(closed, "-0"), "ok");
  }
  check({R"({"type": "integer", "minimum": 1})", {"1", "999999999999999999"}, {"0", "-1"}});
  check({R"({"type": "integer", "maximum": -2.5})", {"-3"}, {"-2", "0"}});
  check({R"({"type": "integer", "minimum": -1e300, "maximum": 5})", {"-77", "5"}, {"6"}});
}

TEST(JsonSchema, RangesOfNumbers) {
  check({R"({"type": "number", "minimum": 0, "maximum": 1})",
         {"0", "0.25", "1", "1.000"},
         {"-0.5", "1.5", "1.01", "2", "1e3"}});
  check({R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
         {"0.5", "0.001"},
         {"0", "1", "0.000", "1.0", "-0.1"}});
  check({R"({"type": "number", "exclusiveMinimum": -2, "maximum": -1})",
         {"-1", "-1.0", "-1.5", "-1.999"},
         {"-2", "-2.0", "-0.5", "-2.5", "0"}});
  check({R"({"type": "number", "minimum": 3, "maximum": 3})", {"3", "3.00"}, {"3.01", "2"}});
  check({R"({"type": "number", "exclusiveMinimum": 0})", {"0.5", "12.25"}, {"0", "-1", "0.0"}});
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties": {"a": {"patternProperties": {}}}})",
       "response_format: #/properties/a/patternProperties is not supported"},
      {R"({"pattern": "a"})", "#/pattern is not supported"},
      {R"({"not": {}})", "#/not is not supported"},
      {R"({"if": {}, "then": {}})", "#/if is not supported"},
      {R"({"type": "object", "minProperties": 1})", "#/minProperties is not supported"},
      {R"({"items": {"multipleOf": 2}})", "#/items/multipleOf is not supported"},
      {R"({"uniqueItems": true})", "#/uniqueItems is not supported"},
      {R"({"format": "email"})", "#/format \"email\" is not supported; date, time"},
      {R"({"format": "date", "maxLength": 3})", "#/maxLength is not supported beside format"},
      {R"({"items": [{}]})", "#/items as a list is not supported"},
      {R"({"allOf": [{}, {}]})", "#/allOf of more than one schema"},
      {R"({"anyOf": []})", "#/anyOf must be a list"},
      {R"({"anyOf": [{"a/b~": 1}]})", "#/anyOf/0/a~1b~0 is not supported"},
      {R"({"anyOf": [{}], "type": "object"})", "#/type is not supported beside anyOf"},
      {R"({"$ref": "#/$defs/x", "minLength": 1, "$defs": {"x": {}}})",
       "#/minLength is not supported beside $ref"},
      {R"({"$ref": "other.json"})", "#/$ref leads out of the schema"},
      {R"({"$ref": "#/$defs/x"})", "#/$ref leads to nothing"},
      {R"({"$ref": "#"})", "leads back to its own schema"},
      {R"({"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"$ref": "#"}}})",
       "leads back to its own schema"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no text satisfies it"},
      {"false", "no text satisfies it"},
      {R"({"type": "strin"})", "#/type must be object"},
      {R"({"type": []})", "#/type must not be empty"},
      {R"({"type": "string", "enum": [1]})", "no text satisfies it"},
      {R"({"enum": []})", "#/enum must be a list"},
      {R"({"enum": ["a"], "minLength": 1})", "#/minLength is not supported beside enum"},
      {R"({"required": ["a"], "additionalProperties": false})", "#/required asks for \"a\""},
      {R"({"required": "a"})", "#/required must be a list of names"},
      {R"({"properties": []})", "#/properties must be an object"},
      {R"({"properties": {"a": 1}})", "#/properties/a must be a schema"},
      {R"({"minLength": -1})", "#/minLength must be a whole number"},
      {R"({"minLength": 1e9})", "#/minLength is more than the"},
      {R"({"minItems": 2, "maxItems": 1})", "no text satisfies it"},
      {R"({"type": "number", "minimum": 0.5})", "#/minimum that is not whole"},
      {R"({"type": "integer", "minimum": 1e18})", "#/minimum of more than 18 digits"},
      {R"({"type": "number", "exclusiveMaximum": 1e14})",
       "#/exclusiveMaximum of more than 14 digits"},
      {R"({"exclusiveMaximum": true})", "#/exclusiveMaximum must be a number"},
      {R"({"items": {"$id": "#x"}})", "#/items/$id is not supported"},
      {"{\"type\": \"string\"", "line 1"},
      {R"({"type": "string", "type": "null"})", "stands twice"},
      {"3", "# must be a schema"},
  };
  for (const auto& one : cases) {
    EXPECT_FAILS(of(one.first), one.second.c_str());
    try {
      of(one.first);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage) << one.first;
    }
  }
}

TEST(JsonSchema, SizesAreBounded) {
  EXPECT_FAILS(of(std::string(200'000, ' ') + "{}"), "131072");
  std::string deep = "{}";
  for (int i = 0; i < 80; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_FAILS(of(deep), "nested deeper");
  std::string names, values;
  for (int i = 0; i < 1001; ++i) {
    names += fmt::format("{}\"n{}\": {{}}", i ? "," : "", i);
    values += fmt::format("{}\"n{}\"", i ? "," : "", i);
  }
  EXPECT_FAILS(of("{\"properties\": {" + names + "}}"), "more than 1000");
  EXPECT_FAILS(of("{\"enum\": [" + values + "]}"), "more than 1000");
  std::string long_name(1000, 'x'), many;
  for (int i = 0; i < 60; ++i) many += fmt::format("{}\"{}{}\": {{}}", i ? "," : "", i, long_name);
  EXPECT_FAILS(of("{\"properties\": {" + many + "}}"), "more than 262144 symbols");

  // a chain of references is no recursion of ours
  std::string chain;
  for (int i = 0; i < 2500; ++i)
    chain += fmt::format(R"({}"d{}": {{"$ref": "#/$defs/d{}"}})", i ? "," : "", i, i + 1);
  EXPECT_EQ(
      read(of(R"({"$ref": "#/$defs/d0", "$defs": {)" + chain + R"(, "d2500": {"const": 1}}})"),
           "1"),
      "ok");
}

// Each level may be read as either alternative, so ways to read double with every level.
TEST(JsonSchema, AmbiguityEndsInAnError) {
  const auto grammar = of(R"({"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [
      {"properties": {"c": {"$ref": "#/$defs/n"}, "x": {"const": 1}}, "required": ["c"]},
      {"properties": {"c": {"$ref": "#/$defs/n"}, "y": {"const": 1}}, "required": ["c"]},
      {"type": "null"}]}}})");
  std::string text;
  for (int i = 0; i < 5; ++i) text += R"({"c":)";
  EXPECT_EQ(read(grammar, text + "null" + std::string(5, '}')), "ok");
  for (int i = 0; i < 25; ++i) text += R"({"c":)";
  EXPECT_FAILS(read(grammar, text), "too many ways to read");
}

}  // namespace
}  // namespace moe::test::json_schema_test
