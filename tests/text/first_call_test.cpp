// Where the first call of a reply under way is whole: in every form, in pieces of any size, and
// not in a thought.
#include "text/first_call.h"

#include <gtest/gtest.h>

namespace moe::test::first_call_test {
namespace {

struct Case {
  ToolCallForm form;
  std::string until, behind;  // the first call is whole between them
  std::string content = {}, call = "f{\"a\":1}";
};

// With a second call behind each, as the whole reply shows.
const std::vector<Case>& cases() {
  using enum ToolCallForm;
  static const std::vector<Case> all = {
      {hermes, "So. <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
       "\n<tool_call>{\"name\": \"g\"}</tool_call>", "So."},
      {hermes,
       "<tool_call> no </tool_call><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
       "</tool_call>",
       "<tool_call>{\"name\": \"g\"}</tool_call>", "<tool_call> no </tool_call>"},
      {hunyuan, R"(Hm <tool_calls>[{"name": "f", "arguments": {"a": 1}})",
       R"(, {"name": "g"}]</tool_calls>)", "Hm"},
      {nemotron, R"(<TOOLCALL>[{"name": "f", "arguments": {"a": "]}'\"[", "b": [{}]}})",
       R"(, {"name": "g"}]</TOOLCALL>)", "", R"(f{"a":"]}'\"[","b":[{}]})"},
      {granite3, R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}})", R"(, {"name": "g"}])"},
      {mistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}})",
       R"(, {"name": "g", "arguments": {}}])"},
      {mistral, R"(Wait. [TOOL_CALLS]f[ARGS]{"a": {"b": "]"}})", "[TOOL_CALLS]g[ARGS]{}", "Wait.",
       R"(f{"a":{"b":"]"}})"},
      {mistral, R"([TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1})", "[TOOL_CALLS]g[ARGS]{}"},
      {lfm2, "So. <|tool_call_start|>[f(a='it\\'s', b=[1, None])", ", g()]<|tool_call_end|>", "So.",
       R"(f{"a":"it's","b":[1,null]})"},
      {lfm2, R"(<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}})",
       R"(, {"name": "g"}]<|tool_call_end|>)"},
      {olmo3, "So.\n<function_calls>f(a=\"(\", b=true)", "\ng()</function_calls>", "So.",
       R"(f{"a":"(","b":true})"},
      {deepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>",
       "\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {kimi,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
       "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>",
       "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"},
      {gemma4, "So.<|tool_call>call:f{a:1}<tool_call|>", "<|tool_call>call:g{}<tool_call|>", "So."},
      {qwen3_coder, "So.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
       "\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>", "So."},
      // A value may hold the marks, and a call may lose its own end.
      {qwen3_coder,
       "<tool_call>\n<function=f>\n<parameter=a>\n</function></tool_call>\n</parameter>\n"
       "</function>",
       "\n<function=g>\n</function>", "", R"(f{"a":"</function></tool_call>"})"},
      {qwen3_coder, "<tool_call>\n<function=f>\n</tool_call>",
       "\n<tool_call>\n<function=g>\n</tool_call>", "", "f{}"},
      {glm, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
       "\n<tool_call>g</tool_call>"},
      {hunyuan3,
       "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
       "</tool_call>",
       "\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>"},
      {hunyuan3_open,
       "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
       "<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1"
       "</arg_value:opensource>\n</tool_call:opensource>",
       "\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>"},
      {minimax,
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke>",
       "\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>"},
      {deepseek_v32,
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
       "<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>",
       "\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {solar,
       "<|content|>I look.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>1"
       "<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}<|tool_call:end|>",
       "<|tool_call:begin|>2<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|>", "I look."},
      {harmony,
       "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|end|>",
       "<|start|>assistant<|channel|>commentary to=functions.g<|message|>{}", "I look."},
  };
  return all;
}

// What of the text was given when the first call was whole; empty: it never was.
std::string given_until_whole(FirstCall& first, const std::string& text, size_t piece) {
  for (size_t at = 0; at < text.size(); at += piece)
    if (first.add(std::string_view(text).substr(at, piece))) return text.substr(0, at + piece);
  return "";
}

TEST(FirstCall, IsToldWhereItIsWhole) {
  for (const Case& c : cases()) {
    const std::string text = c.until + c.behind;
    const ParsedReply whole = parse_reply(c.form, text);
    ASSERT_EQ(whole.calls.size(), 2u) << text;
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size()}) {
      FirstCall first({.calls = c.form});
      const std::string given = given_until_whole(first, text, piece);
      ASSERT_TRUE(first.reply()) << text;
      EXPECT_TRUE(given.starts_with(c.until)) << text << "\nin pieces of " << piece;
      EXPECT_LT(given.size(), c.until.size() + piece) << text << "\nin pieces of " << piece;
      ASSERT_EQ(first.reply()->calls.size(), 1u);
      const ToolCall& call = first.reply()->calls[0];
      EXPECT_EQ(call.name + call.arguments, c.call);
      EXPECT_EQ(call.name, whole.calls[0].name);
      EXPECT_EQ(call.arguments, whole.calls[0].arguments);
      EXPECT_EQ(first.reply()->content, c.content) << text;
      EXPECT_TRUE(first.add(" and more")) << "it stays so";
      EXPECT_EQ(first.reply()->content, c.content);
    }
  }
}

TEST(FirstCall, WhatIsShownOfAReplyIsOfTheOneThatEndsThere) {
  for (const Case& c : cases()) {
    const std::string text = c.until + c.behind;
    FirstCall first({.calls = c.form});
    ASSERT_TRUE(first.add(text)) << text;
    ReplyReader reader({.calls = c.form});
    for (size_t size = 0; size <= c.until.size(); ++size)
      EXPECT_TRUE(first.reply()->content.starts_with(
          reader.read(std::string_view(text).substr(0, size)).content))
          << text << " up to " << size;
  }
}

TEST(FirstCall, IsNotThereWhereNoneIs) {
  using enum ToolCallForm;
  for (const auto& [form, text] : std::vector<std::pair<ToolCallForm, std::string>>{
           {none, "<tool_call>{\"name\": \"f\"}</tool_call>"},
           {hermes, "It is <b>4</b>."},
           {hermes, "<tool_call>{\"name\": \"f\""},
           {hermes, "<tool_call> no </tool_call>"},
           {mistral, "[TOOL_CALLS] and so on (or not) [1]"},
           {mistral, "f[ARGS]{}"},
           {lfm2, "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
           {qwen3_coder, "<function=f>\n<parameter=a>\n1\n</function>"},
           // The whole reply is the call, so that nothing can follow it.
           {llama3, "{\"name\": \"f\", \"parameters\": {}}"},
           {hermes, ""}})
    for (const size_t piece : {1, 5, 100}) {
      FirstCall first({.calls = form});
      EXPECT_EQ(given_until_whole(first, text, piece), "");
      EXPECT_FALSE(first.reply()) << text;
    }
}

TEST(FirstCall, StandsBehindTheThought) {
  const std::string call = "<tool_calls>[{\"name\": \"f\"}", more = ", {\"name\": \"g\"}]",
                    thought = "I write <tool_calls>[{\"name\": \"t\"}]</tool_calls> or ([{ it's";
  const ThoughtTags* tags = thought_tags("<think>");
  for (const bool opened : {false, true})
    for (const bool apart : {false, true})
      for (const size_t piece : {1, 4, 1000}) {
        const std::string before = (opened ? "" : "<think>") + thought + "</think>\n";
        FirstCall first(
            {.calls = ToolCallForm::hunyuan, .tags = tags, .apart = apart, .in_thought = opened});
        const std::string given = given_until_whole(first, before + call + more, piece);
        ASSERT_TRUE(first.reply());
        EXPECT_LT(given.size(), (before + call).size() + piece);
        EXPECT_EQ(first.reply()->calls[0].name, "f");
        EXPECT_EQ(first.reply()->thought, apart ? thought : "");
      }
}

// The tool's schema tells what bare text is.
TEST(FirstCall, HasArgumentsAsTheToolSays) {
  const ToolArguments arguments = {{"f", {{"a", kTextArgument}}}};
  FirstCall first({.calls = ToolCallForm::glm, .arguments = &arguments});
  ASSERT_TRUE(
      first.add("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"));
  EXPECT_EQ(first.reply()->calls[0].arguments, "{\"a\":\"1\"}");
}

// Whatever a reply has in place of calls, it is not read anew at each place where one may end.
TEST(FirstCall, IsLookedForInLinearTime) {
  using enum ToolCallForm;
  const auto many = [](const std::string& part) {
    std::string text;
    while (text.size() < 5'000) text += part;
    return text;
  };
  for (const auto& [form, text] : std::vector<std::pair<ToolCallForm, std::string>>{
           {hermes, many("</tool_call>")},
           {hermes, many("<tool_call>x</tool_call>")},
           {olmo3, "<function_calls>" + many("()")},
           {mistral, "[TOOL_CALLS]" + many("{}")},
           {glm, many("<tool_call>f</tool_cal></tool_call>")},
           {solar, "<|tool_calls|>" + many("<|tool_call:end|>")},
           {harmony, many("<|end|>")}}) {
    FirstCall first({.calls = form});
    for (const char byte : text) first.add(std::string_view(&byte, 1));
    EXPECT_LE(first.looked(), FirstCall::kMostReadings * std::ssize(text)) << text.substr(0, 40);
    EXPECT_GT(first.looked(), std::ssize(text)) << text.substr(0, 40);
  }
}

}  // namespace
}  // namespace moe::test::first_call_test
