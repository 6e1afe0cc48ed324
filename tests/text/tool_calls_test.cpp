// Calls of tools in replies: the forms of the families, what is no call, and what may be shown of a
// reply under way.
#include "text/tool_calls.h"

#include <gtest/gtest.h>

#include "support/certain_reply.h"
#include "text/chat_template.h"

namespace moe::test::tool_calls_test {
namespace {

struct Reply {
  ToolCallForm form;
  std::string text, content;
  std::vector<std::string> calls;  // name and arguments
};

std::vector<std::string> names_of(const ParsedReply& reply) {
  std::vector<std::string> out;
  for (const ToolCall& call : reply.calls) out.push_back(call.name + call.arguments);
  return out;
}

const std::vector<Reply>& replies() {
  using enum ToolCallForm;
  static const std::vector<Reply> all = {
      {hermes,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1.0, \"a\": \"é\"}}\n</tool_call>",
       "",
       {R"(f{"z":1.0,"a":"é"})"}},
      {hermes,
       " Let me see.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
       "<tool_call>{\"name\": \"g\"}</tool_call>\nDone. ",
       " Let me see.\nDone. ",
       {"f{}", "g{}"}},
      {hermes, R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"})", "", {R"(f{"a": 1})"}},
      {hermes,
       "<think>\nI <tool_call>{\"name\": \"f\"}</tool_call>\n</think>\n\n"
       "<tool_call>{\"name\": \"g\"}</tool_call>",
       "<think>\nI <tool_call>{\"name\": \"f\"}</tool_call>\n</think>",
       {"g{}"}},
      {hermes,
       "<tool_call> no </tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
       "<tool_call> no </tool_call>",
       {"g{}"}},
      {llama3,
       " {\"name\": \"f\", \"parameters\": {\"a\": [1, null]}}\n",
       "",
       {R"(f{"a":[1,null]})"}},
      {llama3, R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}})", "", {"f{}"}},
      {mistral,
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}])",
       "",
       {R"(f{"a":1})", "g{}"}},
      {mistral,
       R"(Wait. [TOOL_CALLS]f[ARGS]{"a": "]"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{})",
       "Wait.",
       {R"(f{"a":"]"})", "g{}"}},
      {deepseek,
       "So:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
       "```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n"
       "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "So:",
       {R"(f{"a":1})", "g{}"}},
      {deepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       "",
       {R"(f{"a":1})"}},
      {granite3, R"(<|tool_call|>[{"name": "f", "arguments": {"a": 1}}])", "", {R"(f{"a":1})"}},
      {nemotron,
       R"(Hm<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</TOOLCALL>)",
       "Hm",
       {R"(f{"a":1})", "g{}"}},
      {kimi,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
       "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1"
       "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       "",
       {R"(f{"a":1})", "g{}"}},
      {hunyuan,
       R"(Hm <tool_calls>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_calls>)",
       "Hm",
       {R"(f{"a":1})", "g{}"}},
      {lfm2,
       "So. <|tool_call_start|>[f(a='it\\'s', b=[1, None]), g()]<|tool_call_end|>",
       "So.",
       {R"(f{"a":"it's","b":[1,null]})", "g{}"}},
      {lfm2,
       R"(<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>So.)",
       "So.",
       {R"(f{"a":1})"}},
      {olmo3,
       "So.\n<function_calls>f(a=\"x\", b=true)\ng()</function_calls>",
       "So.",
       {R"(f{"a":"x","b":true})", "g{}"}},
      {gemma4,
       "So.<|tool_call>call:f{a:<|\"|>x, {y}<|\"|>,b:{c:[1,true]}}<tool_call|>"
       "<|tool_call>call:g{}<tool_call|>",
       "So.",
       {R"(f{"a":"x, {y}","b":{"c":[1,true]}})", "g{}"}},
      {gemma4, R"(<|tool_call>call:f{"a": "x"}<tool_call|>)", "", {R"(f{"a":"x"})"}},
      {qwen3_coder,
       "So.\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n"
       "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n"
       "</tool_call>",
       "So.",
       {R"(f{"a":1,"b":"x\ny"})", "g{}"}},
      {qwen3_coder, "So. <function=g>\n</function>\n</tool_call>", "So.", {"g{}"}},
      {qwen3_coder, "<tool_call>\n<function=g>\n</tool_call>\nDone.", "Done.", {"g{}"}},
      {glm,
       "So.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>"
       "\n<arg_value> x </arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
       "So.",
       {R"(f{"a":1,"b":" x "})", "g{}"}},
      {hunyuan3,
       "So.<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
       "</tool_call>\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>",
       "So.",
       {R"(f{"a":1})", "g{}"}},
      {hunyuan3_open,
       "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
       "<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>x"
       "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
       "",
       {R"(f{"a":"x"})"}},
      {minimax,
       "So.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n"
       "<parameter name=\"b\">{\"c\": null}</parameter>\n</invoke>\n<invoke name=\"g\">\n"
       "</invoke>\n</minimax:tool_call>",
       "So.",
       {R"(f{"a":1,"b":{"c":null}})", "g{}"}},
      {deepseek_v32,
       "So.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
       "<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"b\" string=\"false\">1</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n"
       "</｜DSML｜function_calls>",
       "So.",
       {R"(f{"a":"1","b":1})", "g{}"}},
  };
  return all;
}

TEST(ToolCalls, EveryFormIsTakenOutOfAReply) {
  for (const Reply& reply : replies()) {
    const ParsedReply parsed = parse_reply(reply.form, reply.text);
    EXPECT_EQ(parsed.content, reply.content) << reply.text;
    EXPECT_EQ(names_of(parsed), reply.calls) << reply.text;
  }
}

TEST(ToolCalls, WhatIsNoCallStaysContent) {
  using enum ToolCallForm;
  const std::vector<std::pair<ToolCallForm, std::string>> contents = {
      {none, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)"},
      {hermes, " Hello. \n"},
      {hermes, R"({"name": "f", "arguments": {}})"},
      {hermes, R"(<tool_call>{"name": "f", "arguments": {}} and</tool_call>)"},
      {hermes, R"(<tool_call>{"name": "f", "arguments": [1]}</tool_call>)"},
      {hermes, R"(<tool_call>{"name": "f", "arguments": "a"}</tool_call>)"},
      {hermes, R"(<tool_call>{"name": 1, "arguments": {}}</tool_call>)"},
      {hermes, R"(<tool_call>{"name": "", "arguments": {}}</tool_call>)"},
      {hermes, R"(<tool_call>{"arguments": {}}</tool_call>)"},
      {hermes, R"(<tool_call>{"name": "f", "name": "g"}</tool_call>)"},
      {hermes, "<tool_call></tool_call>"},
      {hermes, "<tool_call>[]</tool_call>"},
      {hermes, "<tool_call>{\"name\": \"f\", \"arg"},
      {hermes, "<tool_call>" + std::string(100'000, '[')},
      {hermes, "<think><tool_call>{\"name\": \"f\"}</tool_call>"},
      {llama3, R"({"name": "Bob", "age": 7})"},
      {llama3, R"(Use {"name": "f", "parameters": {}})"},
      {llama3, R"({"name": "f", "parameters": {}} as said)"},
      {llama3, "<|python_tag|>print(1)"},
      {mistral, "[TOOL_CALLS] and so on"},
      {mistral, "[TOOL_CALLS]f[ARGS]1"},
      {mistral, "[TOOL_CALLS]a name[ARGS]{}"},
      {mistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {}}] there)"},
      {deepseek, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>"},
      {deepseek, "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>"},
      {kimi, "<|tool_call_begin|>functions.f:0{}<|tool_call_end|>"},
      {hunyuan, "<tool_calls>[]</tool_calls>"},
      {lfm2, "<|tool_call_start|>[f(1)]<|tool_call_end|>"},
      {lfm2, "<|tool_call_start|>[f(a=1]<|tool_call_end|>"},
      {lfm2, "<|tool_call_start|>[f(a=1"},
      {olmo3, "<function_calls>as said</function_calls>"},
      {gemma4, "<|tool_call>call:f{a:<|\"|>x}<tool_call|>"},
      {gemma4, "<|tool_call>f{}<tool_call|>"},
      {glm, R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)"},
      {qwen3_coder, R"(<tool_call><function={"name":"f"}></function></tool_call>)"},
  };
  for (const auto& [form, text] : contents) {
    const ParsedReply parsed = parse_reply(form, text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_TRUE(parsed.calls.empty()) << text;
  }
}

// A call may begin within one that is none, but each opening is read up to the mark that closes it,
// so that of very many only the last is.
TEST(ToolCalls, ManyOpeningsAreSoonRead) {
  const auto openings = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "<function_calls>f(a='x ";
    return text;
  };
  const auto calls = [&](int count, const std::string& call) {
    return names_of(parse_reply(ToolCallForm::olmo3, openings(count) + call));
  };
  const std::vector<std::string> plain = {"g{}"}, inside = {R"(g{"a":"<function_calls>"})"};
  const std::string within = "<function_calls>g(a=\"<function_calls>\")</function_calls>";
  EXPECT_EQ(calls(3, "<function_calls>g()</function_calls>"), plain);
  EXPECT_EQ(calls(40, "<function_calls>g()</function_calls>"), plain);
  EXPECT_EQ(calls(3, within), inside);
  EXPECT_EQ(calls(40, within), std::vector<std::string>());
  // What was behind one closing mark says nothing of the next.
  EXPECT_EQ(calls(40, within + within), inside);
  EXPECT_EQ(parse_reply(ToolCallForm::olmo3, openings(5'000)).content, openings(5'000));
}

TEST(ToolCalls, NothingOfACallIsShownBeforeItIsWhole) {
  for (const Reply& reply : replies())
    for (size_t size = 0; size <= reply.text.size(); ++size) {
      const ParsedReply so_far = certain_of(reply.form, reply.text.substr(0, size));
      EXPECT_TRUE(reply.content.starts_with(so_far.content))
          << reply.text << " up to " << size << " shows " << so_far.content;
    }
  using enum ToolCallForm;
  const auto shown = [](ToolCallForm form, const std::string& text) {
    return certain_of(form, text).content;
  };
  EXPECT_EQ(shown(hermes, "Hello. <tool"), "Hello.");
  EXPECT_EQ(shown(hermes, "Hello. <tool_"), "Hello.");
  EXPECT_EQ(shown(hermes, "Hello. <toil>"), "Hello. <toil>");
  EXPECT_EQ(shown(hermes, "Hello <tool_call> there"), "Hello");
  EXPECT_EQ(shown(hermes, "<think> a <tool_call> b"), "<think> a <tool_call> b");
  EXPECT_EQ(shown(hermes, "<think> a </think> b <"), "<think> a </think> b");
  EXPECT_EQ(shown(none, "Hello <tool_call> "), "Hello <tool_call> ");
  EXPECT_EQ(shown(deepseek, "So <｜tool▁calls"), "So");
  EXPECT_EQ(shown(llama3, "Hello {"), "Hello {");
  EXPECT_EQ(shown(llama3, " {"), "");
  EXPECT_EQ(shown(llama3, "<|pyth"), "");
  EXPECT_EQ(shown(llama3, "<|pyro"), "<|pyro");
}

TEST(ToolCalls, TheTemplateTellsTheForm) {
  using enum ToolCallForm;
  const std::vector<std::pair<std::string, ToolCallForm>> templates = {
      {"", none},
      {"{{ '<tool_call>\\n' }}", hermes},
      {"<tool_call>\\n<function=name>\\n<parameter=x>", qwen3_coder},
      {"<function=name>{}</function>", none},
      {"<tool_call>name\\n<arg_key>", glm},
      {"'<tool_calls>' + '<tool_call>' + name + '<tool_sep>' + '<arg_key>'", hunyuan3},
      {"{% set mark = ':opensource' %}<tool_sep<arg_key>", hunyuan3_open},
      {"'<minimax:tool_call>'<invoke name=", minimax},
      {"<invoke name=", none},
      {"{% set mark = '｜DSML｜' %}<invoke name=", deepseek_v32},
      {"'<|tool_call_start|>[' + calls", lfm2},
      {"<|tool_list_start|>", lfm2},
      {"'<function_calls>' + calls", olmo3},
      {"'<|tool_call>call:' + name", gemma4},
      {"'<|tool_calls|>' + '<|tool_call:begin|>'", solar},
      {"<tool_calls>[{\"name\": ...}]</tool_calls>", hunyuan},
      {"[TOOL_CALLS][{", mistral},
      {"Respond in the format {\"name\": function name, \"parameters\": dictionary", llama3},
      {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", deepseek},
      {"<|tool_calls_section_begin|><|tool_call_begin|>", kimi},
      {"<|tool_call|>", granite3},
      {"<TOOLCALL>", nemotron},
      {"'<|start|>assistant<|channel|>analysis<|message|>' + message.thinking", harmony}};
  for (const auto& [text, form] : templates) EXPECT_EQ(tool_call_form(text), form) << text;
  EXPECT_EQ(ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                         "{# <tool_call> #}",
                         {})
                .calls(),
            hermes);
}

// What is forced is an object, whatever the form is.
TEST(ToolCalls, EveryFormCanBeForced) {
  for (int i = 1; i <= static_cast<int>(ToolCallForm::harmony); ++i) {
    const ForcedCall* call = forced_call(static_cast<ToolCallForm>(i));
    ASSERT_NE(call, nullptr) << i;
    EXPECT_TRUE(call->begin != nullptr || call->named != nullptr) << i;
    if (call->named != nullptr)
      EXPECT_NE(std::string(call->named).find("NAME"), std::string::npos) << i;
    const std::string object =
        R"({"name": "f", ")" + std::string(call->arguments) + R"(": {"a": 1}})";
    EXPECT_EQ(names_of(parse_forced("", object)), std::vector<std::string>{R"(f{"a":1})"}) << i;
  }
  EXPECT_EQ(forced_call(ToolCallForm::none), nullptr);
  EXPECT_EQ(names_of(parse_forced("g", R"({"a": 1})")), std::vector<std::string>{R"(g{"a":1})"});
  EXPECT_EQ(parse_forced("g", R"({"a": )").content, R"({"a": )");
  EXPECT_EQ(parse_forced("", R"({"name": "f")").content, R"({"name": "f")");
}

}  // namespace
}  // namespace moe::test::tool_calls_test
