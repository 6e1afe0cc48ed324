// Kinds of arguments by the schemas of tools, and values of bare texts.
#include "text/tool_arguments.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/call_text.h"

namespace moe::test::tool_arguments_test {
namespace {

unsigned kinds_of(const Json& schema) {
  const Json parameters = {
      {"type", "object"},
      {"properties", {{"a", schema}}},
      {"$defs", {{"list", {{"type", "array"}}}, {"loop", {{"$ref", "#/$defs/loop"}}}}}};
  const Json tools = {
      {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}};
  return argument_kinds(tool_arguments(tools), "f", "a");
}

TEST(ToolArguments, TheSchemaTellsTheKinds) {
  EXPECT_EQ(kinds_of({{"type", "string"}}), kTextArgument);
  EXPECT_EQ(kinds_of({{"type", {"integer", "null"}}}), kWholeArgument | kNullArgument);
  EXPECT_EQ(kinds_of({{"type", "number"}, {"nullable", true}}), kNumberArgument | kNullArgument);
  EXPECT_EQ(kinds_of({{"enum", {"a", true}}}), kTextArgument | kBooleanArgument);
  EXPECT_EQ(kinds_of({{"const", 2.5}}), kNumberArgument);
  EXPECT_EQ(kinds_of({{"anyOf", {{{"type", "object"}}, {{"$ref", "#/$defs/list"}}}}}),
            kObjectArgument | kArrayArgument);
  for (const Json& unknown :
       {Json::object(), Json(true), Json{{"type", "str"}}, Json{{"type", 1}}, Json{{"anyOf", 1}},
        Json{{"$ref", "#/$defs/loop"}}, Json{{"$ref", "#/none"}}, Json{{"$ref", "#a"}},
        Json{{"$ref", "https://example.com"}}, Json{{"anyOf", {{{"type", "string"}}, {{"x", 1}}}}}})
    EXPECT_EQ(kinds_of(unknown), 0u) << unknown;
}

// A schema that leads back to itself in many places is soon given up.
TEST(ToolArguments, ASchemaMayLeadBackToItself) {
  Json list = Json::array();
  for (int i = 0; i < 100; ++i) list.push_back({{"$ref", "#/properties/a"}});
  EXPECT_EQ(kinds_of({{"anyOf", list}}), 0u);
}

TEST(ToolArguments, ToolsWithoutParametersHaveNone) {
  for (const Json& function : {Json{{"name", "f"}}, Json{{"name", "f"}, {"parameters", nullptr}},
                               Json{{"name", "f"}, {"parameters", {{"properties", 1}}}}})
    EXPECT_EQ(argument_kinds(tool_arguments({{{"function", function}}}), "f", "a"), 0u);
  EXPECT_EQ(argument_kinds({}, "f", "a"), 0u);
}

TEST(ToolArguments, ABareTextIsAValueOfItsKind) {
  struct Case {
    unsigned kinds;
    std::string text, json;
  };
  const std::vector<Case> cases = {{kTextArgument, " null ", "\" null \""},
                                   {kTextArgument, "[1]", "\"[1]\""},
                                   {kWholeArgument, " 3\n", "3"},
                                   {kWholeArgument, "three", "\"three\""},
                                   {kWholeArgument, "null", "null"},
                                   {kWholeArgument, "None", "null"},
                                   {kNumberArgument, "1e2", "100.0"},
                                   {kBooleanArgument, "True", "true"},
                                   {kObjectArgument, "{'a': True}", "{\"a\":true}"},
                                   {kObjectArgument, "\"{\\\"a\\\": 1}\"", "{\"a\":1}"},
                                   {kArrayArgument, "[1, 2", "\"[1, 2\""},
                                   {kTextArgument | kWholeArgument, "3", "3"},
                                   {kTextArgument | kWholeArgument, "3.5", "\"3.5\""},
                                   {kTextArgument | kNullArgument, "null", "null"},
                                   {kTextArgument | kNullArgument, "None", "null"},
                                   {kTextArgument | kArrayArgument, "['a']", "[\"a\"]"},
                                   {0, "3", "3"},
                                   {0, "{\"b\": 1, \"a\": 2}", "{\"b\":1,\"a\":2}"},
                                   {0, "None of it", "\"None of it\""},
                                   {0, "", "\"\""},
                                   {kWholeArgument, "", "\"\""}};
  for (const Case& c : cases)
    EXPECT_EQ(one_line_json(argument_value(c.text, c.kinds)), c.json) << c.text;
}

}  // namespace
}  // namespace moe::test::tool_arguments_test
