// Thoughts between tags: which tags a template tells, replies taken apart, whole and under way, and
// thoughts that are given back to the template.
#include "text/thoughts.h"

#include <gtest/gtest.h>

#include "support/certain_reply.h"
#include "text/chat_template.h"

namespace moe::test::thoughts_test {
namespace {

const ThoughtTags* const kTags = thought_tags("<think>");

struct Case {
  ReplySyntax syntax;
  std::string text, thought, content;
  std::vector<std::string> calls = {};  // name and arguments
};

const std::vector<Case>& cases() {
  using enum ToolCallForm;
  const ReplySyntax plain{.tags = kTags}, opened{.tags = kTags, .in_thought = true},
      calling{.calls = hermes, .tags = kTags},
      calling_opened{.calls = hermes, .tags = kTags, .in_thought = true};
  static const std::vector<Case> all = {
      {plain, "<think>\nEasy: 4.\n</think>\n\nIt is 4.\n", "Easy: 4.", "It is 4.\n"},
      {plain, " \n<think> a\n\nb </think>c", "a\n\nb", "c"},
      {plain, "<think>\n\n</think>\n\nHi", "", "Hi"},
      {plain, "<think>a < b </thin> c</think> d </think> e", "a < b </thin> c", "d </think> e"},
      {plain, "<think>a</think><think>b</think>c", "a", "<think>b</think>c"},
      // Nothing ends it.
      {plain, "<think>\nSo far \n", "So far", ""},
      {plain, "<think>So far </thi", "So far </thi", ""},
      {plain, "<think>", "", ""},
      // None opens the reply.
      {plain, " It is 4.\n", "", " It is 4.\n"},
      {plain, "I <think>b</think> c", "", "I <think>b</think> c"},
      {plain, "a</think>b", "", "a</think>b"},
      {plain, " <thi", "", " <thi"},
      {plain, "<thing></think>", "", "<thing></think>"},
      {plain, "", "", ""},
      {plain, " \n", "", " \n"},
      {{}, "<think>a</think>b", "", "<think>a</think>b"},
      // Where the prompt opened it; a model may do so once more.
      {opened, "\nEasy.\n</think>\n\n4", "Easy.", "4"},
      {opened, "<think>Easy.</think>4", "Easy.", "4"},
      {opened, "So far", "So far", ""},
      {opened, " <thi", "<thi", ""},
      {opened, "</think>4", "", "4"},
      {opened, "", "", ""},
      // Calls stand behind it.
      {calling,
       "<think>I <tool_call>{\"name\": \"f\"}</tool_call></think>\n\nLook:\n<tool_call>\n"
       "{\"name\": \"g\", \"arguments\": {\"a\": 1}}\n</tool_call>",
       "I <tool_call>{\"name\": \"f\"}</tool_call>",
       "Look:",
       {R"(g{"a":1})"}},
      {calling, "<tool_call>{\"name\": \"g\"}</tool_call>", "", "", {"g{}"}},
      {calling_opened, "a\n</think>\n<tool_call>{\"name\": \"g\"}</tool_call>", "a", "", {"g{}"}},
      {calling_opened, "I <tool_call>{\"name\": \"f\"}</tool_call>",
       "I <tool_call>{\"name\": \"f\"}</tool_call>", ""},
      {{.calls = llama3, .tags = kTags},
       "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}",
       "a",
       "",
       {"f{}"}},
      // Other tags.
      {{.tags = thought_tags("[THINK]")}, "[THINK]a <think>[/THINK]b", "a <think>", "b"},
      {{.tags = thought_tags("<|channel>thought")}, "<|channel>thought\na<channel|>b", "a", "b"},
      {{.tags = thought_tags("<think:opensource>")},
       "<think:opensource>a</think>b</think:opensource>c",
       "a</think>b",
       "c"},
      // Left in the content.
      {{.tags = kTags, .apart = false},
       " <think>\na\n</think>\n\nb",
       "",
       " <think>\na\n</think>\n\nb"},
      {{.tags = kTags, .apart = false}, "<think>a </thi", "", "<think>a </thi"},
      {{.calls = hermes, .tags = kTags, .apart = false, .in_thought = true},
       "I <tool_call>{\"name\": \"f\"}</tool_call>\n</think>\n\nb\n"
       "<tool_call>{\"name\": \"g\"}</tool_call>",
       "",
       "I <tool_call>{\"name\": \"f\"}</tool_call>\n</think>\n\nb",
       {"g{}"}},
      // In channels.
      {{.calls = harmony},
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
       "a",
       "b"},
  };
  return all;
}

std::vector<std::string> names_of(const ParsedReply& reply) {
  std::vector<std::string> out;
  for (const ToolCall& call : reply.calls) out.push_back(call.name + call.arguments);
  return out;
}

TEST(Thoughts, ComeApartFromContentAndCalls) {
  for (const Case& c : cases()) {
    const ParsedReply parsed = parse_reply(c.syntax, c.text);
    EXPECT_EQ(parsed.thought, c.thought) << c.text;
    EXPECT_EQ(parsed.content, c.content) << c.text;
    EXPECT_EQ(names_of(parsed), c.calls) << c.text;
  }
}

// What is certain of each beginning of a text, given at once.
std::vector<ParsedReply> certain_of_each(const ReplySyntax& syntax, std::string_view text) {
  std::vector<ParsedReply> all;
  for (size_t size = 0; size <= text.size(); ++size)
    all.push_back(certain_of(syntax, text.substr(0, size)));
  return all;
}

void expect_certain(ReplyReader& reader, std::string_view part, const ParsedReply& want) {
  const ReplyReader::Certain certain = reader.read(part);
  EXPECT_EQ(certain.thought, want.thought) << part;
  EXPECT_EQ(certain.content, want.content) << part;
}

// In pieces of any size it is read as at once: whatever was read before, and all byte by byte.
TEST(Thoughts, AReplyIsReadPieceByPiece) {
  for (const Case& c : cases()) {
    const std::string_view text = c.text;
    const std::vector<ParsedReply> at_once = certain_of_each(c.syntax, text);
    for (const size_t piece : {1, 2, 7}) {
      ReplyReader reader(c.syntax);
      for (size_t size = piece; size <= text.size(); size += piece)
        expect_certain(reader, text.substr(0, size), at_once[size]);
    }
    for (size_t first = 0; first <= text.size(); ++first)
      for (size_t second = first; second <= text.size(); ++second) {
        ReplyReader reader(c.syntax);
        reader.read(text.substr(0, first));
        expect_certain(reader, text.substr(0, second), at_once[second]);
      }
  }
}

// And in every way in which a short one can be cut.
TEST(Thoughts, AShortReplyIsReadInAnyPieces) {
  using enum ToolCallForm;
  const ReplySyntax opened{.calls = hermes, .tags = kTags, .in_thought = true};
  for (const auto& [syntax, text] : std::vector<std::pair<ReplySyntax, std::string>>{
           {{.tags = kTags}, "<think></think>b"},
           {{.tags = kTags, .apart = false}, "<think>a</thin"},
           {opened, "a</think>\n<to"},
           {{.calls = hermes}, "b <tool_call>"},
           {{.calls = kimi}, "a <|tool_call_"},
           {{.calls = llama3}, " {\"a\": 1"},
           {{.calls = harmony}, " to<|end|> a<|"},
           {{.calls = solar}, "<|think|>a<|e"}}) {
    const std::string_view whole = text;
    const std::vector<ParsedReply> at_once = certain_of_each(syntax, whole);
    ASSERT_LE(whole.size(), 16u) << "there are two to the power of that many ways";
    for (uint32_t cuts = 0; cuts < 1u << (whole.size() - 1); ++cuts) {
      ReplyReader reader(syntax);
      for (size_t size = 1; size <= whole.size(); ++size)
        if (size == whole.size() || (cuts >> (size - 1) & 1) != 0)
          expect_certain(reader, whole.substr(0, size), at_once[size]);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Each byte is looked at so often as a mark is long, at most, and not anew with each token.
TEST(Thoughts, AReplyUnderWayIsReadInLinearTime) {
  using enum ToolCallForm;
  const auto many = [](const std::string& part) {
    std::string text;
    while (text.size() < 2'000) text += part;
    return text;
  };
  const std::string channel = "<|channel|>final<|message|>";
  for (const ToolCallForm form : {none, hermes, llama3, mistral, kimi, qwen3_coder, harmony, solar})
    for (const std::string begin : {"", "<think>", "<think>a</think>", "<|content|>", "a ", "to"})
      for (const std::string& text :
           {begin + many("word "), begin + many(" "), begin + many("<tool_cal"),
            begin + many("</thin"), begin + many("[TOOL_"), begin + many("<|chan"),
            begin + many("<|end|>"), channel + many("word <|en"), " to=functions.f" + many("a ")})
        for (const bool apart : {true, false}) {
          ReplyReader reader({.calls = form, .tags = kTags, .apart = apart});
          for (size_t size = 1; size <= text.size(); ++size)
            reader.read(std::string_view(text).substr(0, size));
          EXPECT_LE(reader.looked(), 20 * std::ssize(text)) << text.substr(0, 40);
        }
}

// Cut anywhere, a reply shows nothing that it would have to take back, and in the end all.
TEST(Thoughts, AReplyUnderWayShowsOnlyWhatStays) {
  for (const Case& c : cases()) {
    size_t thought = 0, content = 0;
    for (size_t size = 0; size <= c.text.size(); ++size) {
      const ParsedReply so_far = certain_of(c.syntax, c.text.substr(0, size));
      EXPECT_TRUE(c.thought.starts_with(so_far.thought)) << c.text << " up to " << size;
      EXPECT_TRUE(c.content.starts_with(so_far.content)) << c.text << " up to " << size;
      EXPECT_GE(so_far.thought.size(), thought) << c.text << " up to " << size;
      EXPECT_GE(so_far.content.size(), content) << c.text << " up to " << size;
      thought = so_far.thought.size();
      content = so_far.content.size();
    }
  }
  const ReplySyntax plain{.tags = kTags}, opened{.tags = kTags, .in_thought = true};
  const auto shown = [](const ReplySyntax& syntax, const char* text) {
    const ParsedReply so_far = certain_of(syntax, text);
    return so_far.thought + "|" + so_far.content;
  };
  EXPECT_EQ(shown(plain, "<thi"), "|");
  EXPECT_EQ(shown(plain, "<thing"), "|<thing");
  EXPECT_EQ(shown(plain, "It"), "|It");
  EXPECT_EQ(shown(plain, "<think>\nSo far "), "So far|");
  EXPECT_EQ(shown(plain, "<think>So far</"), "So far|");
  EXPECT_EQ(shown(plain, "<think>So far</b>"), "So far</b>|");
  EXPECT_EQ(shown(plain, "<think>So far</think>\n\n"), "So far|");
  EXPECT_EQ(shown(plain, "<think>So far</think>\n\nIt "), "So far|It ");
  EXPECT_EQ(shown(opened, "So"), "So|");
  EXPECT_EQ(shown(opened, "<th"), "|");
  EXPECT_EQ(shown(opened, "So</think>It"), "So|It");
}

TEST(Thoughts, ReachToBehindTheirTag) {
  const ReplySyntax plain{.tags = kTags}, opened{.tags = kTags, .in_thought = true};
  EXPECT_EQ(thought_bytes(plain, " <think>a</think>b"), std::string(" <think>a</think>").size());
  EXPECT_EQ(thought_bytes(plain, "<think>ab"), 9u);
  EXPECT_EQ(thought_bytes(plain, "ab</think>"), 0u);
  EXPECT_EQ(thought_bytes(opened, "ab</think>c"), 10u);
  EXPECT_EQ(thought_bytes(opened, "ab"), 2u);
  EXPECT_EQ(thought_bytes({}, "<think>a</think>"), 0u);
}

constexpr const char* kTalk =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(Thoughts, TheTemplateTellsTheTags) {
  const auto tags = [](const std::string& jinja) -> std::string {
    const ThoughtTags* found = ChatTemplate(jinja, {}).reply_syntax(true).tags;
    return found == nullptr ? "" : std::string(found->open);
  };
  const std::string talk = kTalk;
  EXPECT_EQ(tags(talk), "");
  EXPECT_EQ(tags(talk + "{# a thinker <thinks> #}"), "");
  // Old templates take the thought out of a content, or open it, and name one tag only.
  EXPECT_EQ(tags(talk + "{{ ''.split('</think>')[-1] }}"), "<think>");
  EXPECT_EQ(tags(talk + "{% if add_generation_prompt %}<think>\n{% endif %}"), "<think>");
  EXPECT_EQ(tags(talk + "{% if false %}[THINK]{% endif %}"), "[THINK]");
  EXPECT_EQ(tags(talk + "{% if add_generation_prompt %}<|channel>thought\n<channel|>{% endif %}"),
            "<|channel>thought");
  // Made of parts, it stands in what the template writes.
  EXPECT_EQ(tags(talk + "{% set x = ':opensource' %}{% if add_generation_prompt %}"
                        "{{ '<think' + x + '></think' + x + '>' }}{% endif %}"),
            "<think:opensource>");
  // In channels a tag is text like any other.
  EXPECT_EQ(tags(talk + "{# <think> <|channel|>analysis<|message|> #}"), "");
}

TEST(Thoughts, ThePromptOpensOne) {
  EXPECT_EQ(opens_thought("<|im_start|>assistant\n<think>\n"), kTags);
  EXPECT_EQ(opens_thought("[THINK]"), thought_tags("[THINK]"));
  EXPECT_EQ(opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"), nullptr);
  EXPECT_EQ(opens_thought("<|im_start|>assistant\n"), nullptr);
  EXPECT_EQ(opens_thought(""), nullptr);
}

// Calls are taken out of a reply where they were offered.
TEST(Thoughts, AStyleHasCallsWhereTheyAreWanted) {
  const ChatTemplate chat(std::string(kTalk) + "{# <tool_call> </think> #}", {});
  EXPECT_EQ(chat.reply_syntax(true).calls, ToolCallForm::hermes);
  EXPECT_EQ(chat.reply_syntax(false).calls, ToolCallForm::none);
  EXPECT_EQ(chat.reply_syntax(false).tags, kTags);
  EXPECT_TRUE(chat.reply_syntax(false).parses());
  EXPECT_FALSE(ChatTemplate(kTalk, {}).reply_syntax(true).parses());
}

// The template may name several, or make those that it writes of parts.
TEST(Thoughts, AreBetweenTheTagsThatThePromptOpened) {
  const ThoughtTags* opened = thought_tags("[THINK]");
  const ReplySyntax syntax =
      ChatTemplate(std::string(kTalk) + "{# </think> #}", {}).reply_syntax(false, opened);
  EXPECT_EQ(syntax.tags, opened);
  const ParsedReply parsed = parse_reply(syntax, "a </think> b[/THINK]c");
  EXPECT_EQ(parsed.thought, "a </think> b");
  EXPECT_EQ(parsed.content, "c");
  const ReplySyntax channels =
      ChatTemplate(std::string(kTalk) + "{# <|channel|>analysis<|message|> #}", {})
          .reply_syntax(false, opened);
  EXPECT_EQ(channels.tags, nullptr) << "in channels a tag is text like any other";
}

// A tag that earlier replies have alone parts no messages: a reply would end with its thought.
TEST(Thoughts, TheirTagsAreNoMarks) {
  const ChatTemplate chat(
      "Think between <think> and </think>.{% for m in messages %}<|{{ m.role }}|>"
      "{{ '</think>' if m.role == 'assistant' }}{{ m.content }}<|end|>{% endfor %}",
      {});
  EXPECT_EQ(chat.marks(), (std::vector<std::string>{"<|end|>", "<|user|>", "<|assistant|>"}));
  EXPECT_EQ(chat.stops(), chat.marks());
}

std::string thinking_template(const std::string& key) {
  return "{% for m in messages %}<|{{ m.role }}|>{% if m." + key +
         " and (keep or m.tool_calls) %}<think>{{ m." + key +
         " }}</think>{% endif %}{{ m.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

// Whether a thought of an earlier reply is written, and under which name, is the template's affair.
TEST(Thoughts, AreGivenBackToTheTemplate) {
  for (const std::string key : {"reasoning_content", "thinking"}) {
    ChatTemplate chat(thinking_template(key), {});
    const std::vector<Message> talk = {
        {"user", "q"}, {"assistant", "a", "hm"}, {"user", "r"}, {"assistant", "b"}, {"user", "s"}};
    EXPECT_EQ(chat.prompt(talk),
              "<|user|>q<|end|><|assistant|>a<|end|><|user|>r<|end|><|assistant|>b<|end|>"
              "<|user|>s<|end|><|assistant|>")
        << key;
    chat.set_variables(parse_template_variables(R"({"keep": true})"));
    EXPECT_EQ(chat.prompt(std::span(talk).first(3)),
              "<|user|>q<|end|><|assistant|><think>hm</think>a<|end|><|user|>r<|end|><|assistant|>")
        << key;
    EXPECT_EQ(chat.render(parse_chat_request(
                  R"({"messages": [{"role": "user", "content": "q"},
                      {"role": "assistant", "content": "a", "reasoning_content": "hm"},
                      {"role": "user", "content": "r"}]})",
                  "request")),
              chat.prompt(std::span(talk).first(3)))
        << key;
  }
}

TEST(Thoughts, OneThatIsBegunIsLeftOpen) {
  EXPECT_EQ(leaves_thought_open("Hi"), nullptr);
  EXPECT_EQ(leaves_thought_open("<think>\nI see</think>4"), nullptr);
  ASSERT_NE(leaves_thought_open("<think>\nI see"), nullptr);
  EXPECT_EQ(leaves_thought_open("<think>\nI see")->close, "</think>");
  EXPECT_NE(leaves_thought_open("<think></think> no <think>"), nullptr);
}

}  // namespace
}  // namespace moe::test::thoughts_test
