// Values and calls as Python and Gemma write them.
#include "text/literals.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/call_text.h"

namespace moe::test::literals_test {
namespace {

std::string shown(const std::optional<OrderedJson>& value) {
  return value ? one_line_json(*value) : "nothing";
}

TEST(Literals, PythonsValues) {
  const std::vector<std::pair<std::string, std::string>> values = {
      {" 1 ", "1"},
      {"-2.5e3", "-2500.0"},
      {"True", "true"},
      {"false", "false"},
      {"None", "null"},
      {"null", "null"},
      {"'a'", R"("a")"},
      {R"("a \"b\"\n\té\u00e9\ud83d\ude00\q")", "\"a \\\"b\\\"\\n\\téé\xF0\x9F\x98\x80\\\\q\""},
      {"'it's'", R"("it's")"},
      {"'a\nb'", R"("a\nb")"},
      {"'''a 'b', c'''", R"("a 'b', c")"},
      {"[1, 'a', [], ]", R"([1,"a",[]])"},
      {"(1, 2)", "[1,2]"},
      {"{'b': 1, \"a\": {'c': None}}", R"({"b":1,"a":{"c":null}})"},
      {"{}", "{}"}};
  for (const auto& [text, json] : values) EXPECT_EQ(shown(python_value(text)), json) << text;
  for (const std::string text :
       {"", "a", "'a", "[1", "[1 2]", "{'a'}", "{a: 1}", "{'a': 1, 'a': 2}", "1 2", "f()", "1]"})
    EXPECT_EQ(shown(python_value(text)), "nothing") << text;
}

TEST(Literals, PythonsCalls) {
  const auto shown_calls = [](const std::string& text) {
    std::string out;
    if (const auto calls = python_calls(text))
      for (const ToolCall& call : *calls) out += call.name + call.arguments;
    return out;
  };
  EXPECT_EQ(shown_calls("[a.f(x = 'b', y=2,), g()]"), R"(a.f{"x":"b","y":2}g{})");
  EXPECT_EQ(shown_calls("f(x={'a': [1]})\ng()\n"), R"(f{"x":{"a":[1]}}g{})");
  EXPECT_EQ(shown_calls("[f(x='(a, b)', y=\"]\")]"), R"-(f{"x":"(a, b)","y":"]"})-");
  for (const char* text : {"", "[]", "f", "f(", "f(1)", "f(x)", "f(x=)", "f(x=1 y=2)",
                           "f(x=1, x=2)", "[f()", "f()]", "[f()] g()", "(x=1)", "f(x='a)"})
    EXPECT_FALSE(python_calls(text).has_value()) << text;
}

TEST(Literals, GemmasObjects) {
  const std::vector<std::pair<std::string, std::string>> objects = {
      {"{}", "{}"},
      {" {a:<|\"|>b, \"c\" {d}\\n<|\"|>,n:-1.5,t:true,z:null} ",
       R"({"a":"b, \"c\" {d}\\n","n":-1.5,"t":true,"z":null})"},
      {"{a:{b:[1,<|\"|>c<|\"|>]},<|\"|>d e<|\"|>:2}", R"({"a":{"b":[1,"c"]},"d e":2})"},
      {"{city:New York}", R"({"city":"New York"})"}};
  for (const auto& [text, json] : objects) EXPECT_EQ(shown(gemma_object(text)), json) << text;
  for (const std::string text :
       {"", "a", "{", "{a}", "{a:}", "{a:1", "{a:<|\"|>b}", "{a:1,a:2}", "{a:1}}", "[1]"})
    EXPECT_EQ(shown(gemma_object(text)), "nothing") << text;
}

TEST(Literals, NestedTooDeepIsNothing) {
  const std::string deep(100'000, '[');
  EXPECT_FALSE(python_value(deep).has_value());
  EXPECT_FALSE(python_calls("f(a=" + deep).has_value());
  EXPECT_FALSE(gemma_object("{a:" + deep).has_value());
}

}  // namespace
}  // namespace moe::test::literals_test
