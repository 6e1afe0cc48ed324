// Solar Open's replies: what is thought, content and call, what a reply under way shows, and what
// is done with a reply that is out of form.
#include "text/solar.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/certain_reply.h"
#include "text/chat_template.h"

namespace moe::test::solar_test {
namespace {

struct Case {
  std::string text, thought, content;
  std::vector<std::string> calls;  // name and arguments
};

std::vector<std::string> names_of(const ParsedReply& reply) {
  std::vector<std::string> out;
  for (const ToolCall& call : reply.calls) out.push_back(call.name + call.arguments);
  return out;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"<|think|>Easy: 4.<|end|><|begin|>assistant<|content|>2 + 2 = 4.<|flush|>",
       "Easy: 4.",
       "2 + 2 = 4.",
       {}},
      {"<|content|>4", "", "4", {}},
      {"<|think|>a<|end|><|begin|>assistant<|content|>I look.<|end|><|begin|>assistant"
       "<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>f<|tool_call:args|>{\"x\": \"a < b\"}"
       "<|tool_call:end|><|tool_call:begin|>x2<|tool_call:name|>g<|tool_call:args|>{}"
       "<|tool_call:end|><|calls|>",
       "a",
       "I look.",
       {R"(f{"x":"a < b"})", "g{}"}},
      // What is no call is content.
      {"<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>[1]<|tool_call:end|"
       ">",
       "",
       "<|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>[1]<|tool_call:end|>",
       {}},
      {"<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>"
       "<|tool_call:begin|>2<|tool_call:name|>g",
       "",
       "<|tool_call:begin|>2<|tool_call:name|>g",
       {"f{}"}},
      // Out of form.
      {"Hello <b>there</b>", "", "Hello <b>there</b>", {}},
      {"<|content|>a<|end|>\n<|content|>b", "", "a\nb", {}},
      {"<|think|>cut in the mid", "cut in the mid", "", {}},
      {"<|content|>a <|en", "", "a <|en", {}},
      {"<|begin|>assistant", "", "", {}},
      {"", "", "", {}}};
  return all;
}

TEST(Solar, PartsAreToldApart) {
  for (const Case& c : cases()) {
    const ParsedReply reply = parse_reply(ToolCallForm::solar, c.text);
    EXPECT_EQ(reply.thought, c.thought) << c.text;
    EXPECT_EQ(reply.content, c.content) << c.text;
    EXPECT_EQ(names_of(reply), c.calls) << c.text;
  }
}

TEST(Solar, WhatIsShownOfAReplyUnderWayIsHowItBegins) {
  for (const Case& c : cases())
    for (size_t size = 0; size <= c.text.size(); ++size) {
      const ParsedReply so_far =
          certain_of(ToolCallForm::solar, std::string_view(c.text).substr(0, size));
      EXPECT_TRUE(c.thought.starts_with(so_far.thought)) << c.text << " up to " << size;
      EXPECT_TRUE(c.content.starts_with(so_far.content)) << c.text << " up to " << size;
    }
  EXPECT_EQ(certain_of(ToolCallForm::solar, "<|content|>It is <|en").content, "It is ");
  EXPECT_EQ(certain_of(ToolCallForm::solar, "<|think|>Hm").thought, "Hm");
}

// The end of a thought ends no reply.
TEST(Solar, OnlyTheEndOfTheLastMessageEndsAReply) {
  const ChatTemplate chat(
      "{% for m in messages %}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endfor %}"
      "{% if tools %}<|tool_calls|><|tool_call:begin|>{% endif %}"
      "{% if add_generation_prompt %}<|begin|>assistant{% endif %}",
      {});
  EXPECT_EQ(chat.calls(), ToolCallForm::solar);
  EXPECT_EQ(chat.stops(), (std::vector<std::string>{"<|flush|>", "<|calls|>"}));
  for (const char* mark : {"<|begin|>", "<|content|>", "<|end|>", "<|flush|>"})
    EXPECT_NE(std::find(chat.marks().begin(), chat.marks().end(), mark), chat.marks().end())
        << mark;
}

}  // namespace
}  // namespace moe::test::solar_test
