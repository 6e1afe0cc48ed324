// Calls with marks around each argument: values of every kind, what a value may hold, what is no
// call.
#include "text/marked_calls.h"

#include <gtest/gtest.h>

#include "support/certain_reply.h"

namespace moe::test::marked_calls_test {
namespace {

using Arguments = std::vector<std::pair<std::string, std::string>>;  // names and bare texts

constexpr ToolCallForm kMarkedForms[] = {ToolCallForm::qwen3_coder, ToolCallForm::glm,
                                         ToolCallForm::hunyuan3,    ToolCallForm::hunyuan3_open,
                                         ToolCallForm::minimax,     ToolCallForm::deepseek_v32};

// A call as a model of the form writes it.
std::string written(ToolCallForm form, const std::string& name, const Arguments& arguments) {
  std::string out;
  const auto each = [&](const auto& write) {
    for (const auto& [key, value] : arguments) out += write(key, value);
  };
  const auto keyed = [&](const std::string& mark) {
    each([&](const std::string& key, const std::string& value) {
      return "<arg_key" + mark + ">" + key + "</arg_key" + mark + ">\n<arg_value" + mark + ">" +
             value + "</arg_value" + mark + ">\n";
    });
  };
  switch (form) {
    case ToolCallForm::qwen3_coder:
      out = "<tool_call>\n<function=" + name + ">\n";
      each([](const std::string& key, const std::string& value) {
        return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
      });
      return out + "</function>\n</tool_call>";
    case ToolCallForm::glm:
      out = "<tool_call>" + name + "\n";
      keyed("");
      return out + "</tool_call>";
    case ToolCallForm::hunyuan3:
      out = "<tool_call>" + name + "<tool_sep>\n";
      keyed("");
      return out + "</tool_call>";
    case ToolCallForm::hunyuan3_open:
      out = "<tool_call:opensource>" + name + "<tool_sep:opensource>\n";
      keyed(":opensource");
      return out + "</tool_call:opensource>";
    case ToolCallForm::minimax:
      out = "<invoke name=\"" + name + "\">\n";
      each([](const std::string& key, const std::string& value) {
        return "<parameter name=\"" + key + "\">" + value + "</parameter>\n";
      });
      return out + "</invoke>";
    default:
      out = "<｜DSML｜invoke name=\"" + name + "\">\n";
      each([](const std::string& key, const std::string& value) {
        return "<｜DSML｜parameter name=\"" + key + "\">" + value + "</｜DSML｜parameter>\n";
      });
      return out + "</｜DSML｜invoke>";
  }
}

ToolArguments one_of_each() {
  return {{"f",
           {{"text", kTextArgument},
            {"number", kNumberArgument},
            {"whole", kWholeArgument},
            {"flag", kBooleanArgument},
            {"object", kObjectArgument},
            {"list", kArrayArgument},
            {"or_null", kTextArgument | kNullArgument},
            {"or_null_too", kTextArgument | kNullArgument}}}};
}

TEST(MarkedCalls, ValuesAreWhatTheSchemaSays) {
  const Arguments given = {{"text", "5"},
                           {"number", "2.50"},
                           {"whole", "7"},
                           {"flag", "true"},
                           {"object", "{\"a\": [1, null]}"},
                           {"list", "[\"x\"]"},
                           {"or_null", "null"},
                           {"or_null_too", "nil"},
                           {"unknown", "[1, true]"},
                           {"words", "a < b"}};
  for (const ToolCallForm form : kMarkedForms) {
    const std::string text = "So.\n" + written(form, "f", given) + "\n" + written(form, "g", {});
    const ParsedReply reply = parse_reply(form, text, one_of_each());
    ASSERT_EQ(reply.calls.size(), 2u) << text;
    EXPECT_EQ(reply.content, "So.");
    EXPECT_EQ(reply.calls[0].name, "f");
    EXPECT_EQ(reply.calls[0].arguments,
              R"({"text":"5","number":2.5,"whole":7,"flag":true,"object":{"a":[1,null]},)"
              R"("list":["x"],"or_null":null,"or_null_too":"nil","unknown":[1,true],)"
              R"("words":"a < b"})")
        << text;
    EXPECT_EQ(reply.calls[1].name + reply.calls[1].arguments, "g{}");
  }
}

TEST(MarkedCalls, WhatIsNotOfItsKindStaysText) {
  const Arguments given = {{"number", "about 3"}, {"flag", "maybe"}, {"object", "{a"}};
  for (const ToolCallForm form : kMarkedForms) {
    const ParsedReply reply = parse_reply(form, written(form, "f", given), one_of_each());
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.calls[0].arguments, R"({"number":"about 3","flag":"maybe","object":"{a"})");
  }
}

// A program that writes such calls is a text like any other.
TEST(MarkedCalls, AValueMayHoldTheMarks) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string closing[] = {"</parameter>", "</arg_value>", "</arg_value:opensource>",
                                   "</｜DSML｜parameter>"};
    std::string value = "<parameter=x> <arg_key> <invoke name=";
    for (const std::string& mark : closing) value += " '" + mark + "',";
    const ParsedReply reply =
        parse_reply(form, written(form, "f", {{"text", value}}), one_of_each());
    ASSERT_EQ(reply.calls.size(), 1u) << value;
    EXPECT_EQ(reply.calls[0].arguments, "{\"text\":\"" + value + "\"}");
    EXPECT_EQ(reply.content, "");
  }
}

TEST(MarkedCalls, OneLineEndBesideAValueIsTheMarks) {
  const ParsedReply reply = parse_reply(
      ToolCallForm::qwen3_coder,
      written(ToolCallForm::qwen3_coder, "f", {{"text", "\n  x\n"}, {"whole", ""}}), one_of_each());
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments, R"({"text":"\n  x\n","whole":""})");
}

TEST(MarkedCalls, BytesThatAreNoCharacterAreReplaced) {
  const ParsedReply reply = parse_reply(
      ToolCallForm::glm, written(ToolCallForm::glm, "f", {{"text", "a\xff"}}), one_of_each());
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments, "{\"text\":\"a\xEF\xBF\xBD\"}");
}

TEST(MarkedCalls, WhatIsMalformedOrNotWholeStaysContent) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string whole = written(form, "f", {{"a", "1"}, {"b", "2"}});
    std::vector<std::string> contents = {written(form, "", {}), written(form, "two words", {}),
                                         written(form, "f", {{"a", "1"}, {"a", "2"}}),
                                         written(form, "f", {{"", "1"}})};
    // without its last mark, and what stands around it
    for (size_t size = 0; size < whole.rfind("</"); ++size)
      if (form != ToolCallForm::qwen3_coder || size < whole.find("</function>"))
        contents.push_back(whole.substr(0, size));
    for (const std::string& text : contents) {
      const ParsedReply reply = parse_reply(form, text);
      EXPECT_EQ(reply.content, text);
      EXPECT_TRUE(reply.calls.empty()) << text;
    }
  }
}

// A call that is none does not take those behind it along.
TEST(MarkedCalls, AMalformedCallLeavesTheNext) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string broken = written(form, "f", {{"", "1"}}), good = written(form, "g", {});
    const ParsedReply reply = parse_reply(form, broken + "\nand\n" + good);
    ASSERT_EQ(reply.calls.size(), 1u) << broken;
    EXPECT_EQ(reply.calls[0].name, "g");
    EXPECT_EQ(reply.content, broken + "\nand");
  }
}

// However far a reply is, what is shown of it is how its content begins.
TEST(MarkedCalls, NothingOfACallIsShown) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string text =
        "So <b> it\n" + written(form, "f", {{"a", "x\ny"}}) + "\n" + written(form, "g", {});
    const std::string content = parse_reply(form, text).content;
    EXPECT_EQ(content, "So <b> it");
    for (size_t size = 0; size <= text.size(); ++size) {
      const ParsedReply so_far = certain_of(form, text.substr(0, size));
      EXPECT_TRUE(content.starts_with(so_far.content)) << so_far.content;
    }
  }
}

// Where a value ends is known from a call that was none.
TEST(MarkedCalls, ACallMayBeginWithinOneThatIsNone) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string broken = written(form, "f", {{"a", "VALUE"}}),
                      good = written(form, "g", {{"b", "1"}, {"a", "2"}, {"c", "3"}});
    const ParsedReply reply = parse_reply(form, broken.substr(0, broken.find("VALUE")) + good);
    ASSERT_EQ(reply.calls.size(), 1u) << broken;
    EXPECT_EQ(reply.calls[0].name, "g");
    EXPECT_EQ(reply.calls[0].arguments, R"({"b":1,"a":2,"c":3})");
  }
}

TEST(MarkedCalls, ManyBeginningsAreSoonRead) {
  for (const ToolCallForm form : kMarkedForms) {
    const std::string whole = written(form, "f", {{"a", "VALUE"}, {"a", "2"}});
    const std::string opened = whole.substr(0, whole.find("VALUE"));
    std::string text;
    for (int i = 0; i < 20'000; ++i) text += opened;
    EXPECT_TRUE(parse_reply(form, text).content == text);
    for (int i = 0; i < 20'000; ++i) text += "</parameter> x </arg_value> x";
    EXPECT_TRUE(parse_reply(form, text).content == text);
    // The value of each has its end behind all that, and an argument that is there already follows.
    text += whole.substr(opened.size());
    EXPECT_TRUE(parse_reply(form, text).content == text);
  }
}

}  // namespace
}  // namespace moe::test::marked_calls_test
