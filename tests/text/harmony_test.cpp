// Replies in channels: what is thought, content and call, what a reply under way shows, and what is
// done with a reply that is out of form.
#include "text/harmony.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/certain_reply.h"
#include "text/chat_template.h"

namespace moe::test::harmony_test {
namespace {

struct Case {
  std::string text, thought, content;
  std::vector<std::string> calls;  // name and arguments
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"<|channel|>analysis<|message|>Easy: 4.<|end|><|start|>assistant<|channel|>final<|message|>"
       "2 + 2 = 4.",
       "Easy: 4.",
       "2 + 2 = 4.",
       {}},
      {"<|channel|>final<|message|>4<|return|>", "", "4", {}},
      // Two thoughts and an announcement before a call; the recipient behind the channel.
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
       "<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
       "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": \"a < "
       "b\"}<|call|>",
       "a\nb",
       "I look.",
       {R"(f{"x":"a < b"})"}},
      // The recipient behind the role, as the model's template writes calls.
      {" to=functions.g<|channel|>commentary json<|message|>{}", "", "", {"g{}"}},
      {"<|channel|>analysis<|message|>t<|end|><|start|>assistant "
       "to=functions.g<|channel|>commentary "
       "json<|message|>{}<|call|><|start|>assistant to=functions.f<|channel|>commentary "
       "<|constrain|>json<|message|>{\"a\": 1}",
       "t",
       "",
       {"g{}", R"(f{"a":1})"}},
      // Tools that are built into the model are thoughts: nobody here serves them.
      {"<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "1 + 1", "", {}},
      // What is for a tool and no object is content.
      {"<|channel|>commentary to=functions.f<|message|>[1]<|call|>", "", "[1]", {}},
      {"<|channel|>commentary to=functions.f<|message|>{\"x\": <|end|><|start|>assistant<|channel|>"
       "final<|message|>So.",
       "",
       "{\"x\": \nSo.",
       {}},
      // Out of form.
      {"Hello <b>there</b> to=you", "", "Hello <b>there</b> to=you", {}},
      {"Hello<|channel|>final<|message|>you<|message|>there", "", "Hello\nyou\nthere", {}},
      {"<|message|>bare<|end|>and more", "", "bare\nand more", {}},
      {"<|channel|>final", "", "", {}},
      {"<|channel|>analysis<|message|>cut in the mid", "cut in the mid", "", {}},
      {"<|channel|>final<|message|>a <|me", "", "a <|me", {}},
      {"", "", "", {}},
      {" \n", "", "", {}},
  };
  return all;
}

std::vector<std::string> names_of(const ParsedReply& reply) {
  std::vector<std::string> out;
  for (const ToolCall& call : reply.calls) out.push_back(call.name + call.arguments);
  return out;
}

TEST(Harmony, ThoughtsContentAndCallsComeApart) {
  for (const Case& c : cases()) {
    const ParsedReply parsed = parse_reply(ToolCallForm::harmony, c.text);
    EXPECT_EQ(parsed.thought, c.thought) << c.text;
    EXPECT_EQ(parsed.content, c.content) << c.text;
    EXPECT_EQ(names_of(parsed), c.calls) << c.text;
  }
}

TEST(Harmony, AReplyUnderWayShowsOnlyWhatStays) {
  for (const Case& c : cases())
    for (size_t size = 0; size <= c.text.size(); ++size) {
      const ParsedReply so_far = certain_of(ToolCallForm::harmony, c.text.substr(0, size));
      EXPECT_TRUE(c.content.starts_with(so_far.content)) << c.text << " up to " << size;
      EXPECT_TRUE(c.thought.starts_with(so_far.thought)) << c.text << " up to " << size;
    }
  const auto content = [](const char* text) {
    return certain_of(ToolCallForm::harmony, text).content;
  };
  EXPECT_EQ(content("<|channel|>final<|message|>It is"), "It is");
  EXPECT_EQ(content("<|channel|>final<|message|>It is <|en"), "It is ");
  EXPECT_EQ(content("Plain te"), "Plain te") << "of a model that writes no channels";
  EXPECT_EQ(content(" t"), "") << "to=NAME may come of it";
  EXPECT_EQ(certain_of(ToolCallForm::harmony, "<|channel|>analysis<|message|>Hm").thought, "Hm");
}

// As gpt-oss writes dialogues: the last reply of one that is to be learned ends with <|return|>.
constexpr const char* kTemplate =
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>"
    "commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>functions.f to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}";

TEST(Harmony, OnlyTheEndOfTheLastMessageEndsAReply) {
  const ChatTemplate chat(kTemplate, {"", "<|return|>"});
  EXPECT_EQ(chat.calls(), ToolCallForm::harmony);
  EXPECT_EQ(chat.stops(), (std::vector<std::string>{"<|return|>", "<|call|>"}));
  for (const char* mark : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"})
    EXPECT_NE(std::find(chat.marks().begin(), chat.marks().end(), mark), chat.marks().end())
        << mark;
}

TEST(Harmony, ADialogueTeachesToEndWithTheLastReplyOnly) {
  const ChatTemplate chat(kTemplate, {"", "<|return|>"});
  const Document document = chat.document(
      std::vector<Message>{{"user", "q"}, {"assistant", "a"}, {"user", "r"}, {"assistant", "b"}});
  std::vector<std::string> trained;
  for (const ByteSpan& span : document.trained)
    trained.push_back(document.text.substr(static_cast<size_t>(span.begin),
                                           static_cast<size_t>(span.end - span.begin)));
  EXPECT_EQ(trained, (std::vector<std::string>{"<|channel|>final<|message|>a",
                                               "<|channel|>final<|message|>b<|return|>"}));
}

TEST(Harmony, AThoughtIsGivenBackWithItsCall) {
  const ChatTemplate chat(kTemplate, {"", "<|return|>"});
  const std::string text = chat.render(parse_chat_request(
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": null, "reasoning_content": "t", "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "r"}]})",
      "request"));
  EXPECT_EQ(text,
            "<|start|>user<|message|>q<|end|><|start|>assistant<|channel|>analysis<|message|>t"
            "<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
            "{\"a\": 1}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>"
            "\"r\"<|end|><|start|>assistant");
}

}  // namespace
}  // namespace moe::test::harmony_test
