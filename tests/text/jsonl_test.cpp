// Documents of JSON Lines, and one clear line with its number for everything that is none.
#include "text/jsonl.h"

#include "support/files.h"
#include "text/chat.h"

namespace moe::test::jsonl_test {
namespace {

std::vector<std::string> texts_of(std::string_view bytes, std::vector<int64_t>* lines = nullptr) {
  JsonlReader reader(bytes, "x.jsonl");
  std::vector<std::string> texts;
  for (Document document; reader.next(document);) {
    texts.push_back(document.text);
    if (lines) lines->push_back(reader.line());
  }
  return texts;
}

// Reads all; the first line is fine, so that a failure shows its own line.
std::string refusal(const std::string& line) {
  return message_of(
      [&] { texts_of("{\"text\": \"good\"}\n" + line + "\n{\"text\": \"good\"}\n"); });
}
#define EXPECT_REFUSED(line, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, refusal(line))

TEST(Jsonl, ReadsTextsOneALine) {
  std::vector<int64_t> lines;
  EXPECT_EQ(texts_of("{\"text\": \"one\"}\n\n  \t\r\n{\"id\": 3, \"text\": \"zw\\u00f6lf\\n\", "
                     "\"meta\": {\"a\": [1]}}\r\n{\"text\": \"\"}\n{\"text\": \"end\"}",
                     &lines),
            (std::vector<std::string>{"one", "zwölf\n", "end"}));
  EXPECT_EQ(lines, (std::vector<int64_t>{1, 4, 6}));
  EXPECT_TRUE(texts_of("").empty());
  EXPECT_TRUE(texts_of("\n\n").empty());
  EXPECT_EQ(texts_of("\xEF\xBB\xBF{\"text\": \"marked\"}").size(), 1u);
}

TEST(Jsonl, ATextIsLearnedFromInWhole) {
  JsonlReader reader(R"({"text": "all of it", "messages": null})", "x.jsonl");
  Document document{"left over", false, {{1, 2}}};
  ASSERT_TRUE(reader.next(document));
  EXPECT_TRUE(document.all_trained);
  EXPECT_TRUE(document.trained.empty());
}

TEST(Jsonl, ReadsDialogues) {
  JsonlReader reader(
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "name": "m"}]})",
      "x.jsonl");
  Document document;
  ASSERT_TRUE(reader.next(document));
  const Document want = chat_document(std::vector<Message>{{"user", "Hi"}, {"assistant", "Hello"}});
  EXPECT_EQ(document.text, want.text);
  EXPECT_FALSE(document.all_trained);
  ASSERT_EQ(document.trained.size(), 1u);
  EXPECT_EQ(document.trained[0].begin, want.trained[0].begin);
  EXPECT_EQ(document.trained[0].end, want.trained[0].end);
  EXPECT_FALSE(reader.next(document));
}

TEST(Jsonl, ADialogueIsWrittenAsItIsRead) {
  const std::vector<Message> messages = {
      {"system", "a\n\"b\""}, {"user", "中\\"}, {"assistant", ""}};
  const std::string line = jsonl_line(messages);
  EXPECT_EQ(line,
            "{\"messages\":[{\"role\":\"system\",\"content\":\"a\\n\\\"b\\\"\"},{\"role\":\"user\","
            "\"content\":\"中\\\\\"},"
            "{\"role\":\"assistant\",\"content\":\"\"}]}\n");
  EXPECT_EQ(texts_of(line + line).at(1), chat_document(messages).text);
  EXPECT_EQ(texts_of(jsonl_line(std::vector<Message>{{"assistant", "\xFF"}})).at(0),
            "<|im_start|>assistant\n\xEF\xBF\xBD<|im_end|>\n");
}

TEST(Jsonl, LinesThatAreNoJson) {
  EXPECT_REFUSED("{\"text\": }", "x.jsonl: line 2, column 10: ");
  EXPECT_REFUSED("plain text", "x.jsonl: line 2, column 1: ");
  EXPECT_REFUSED("{\"text\": \"a\"", "x.jsonl: line 2, column ");
  EXPECT_REFUSED("{\"text\": \"a\"} {\"text\": \"b\"}", "x.jsonl: line 2, column 15: ");
  EXPECT_REFUSED("{\"text\": \"\xFF\"}", "x.jsonl: line 2, column 11: ");
  EXPECT_REFUSED("{\"text\": \"\xFF\"}", "UTF-8");
  EXPECT_REFUSED("{\"text\": \"\\ud800\"}", "surrogate");
  EXPECT_REFUSED("{\"text\": \"a\", \"text\": \"b\"}",
                 "x.jsonl: line 2, column 20: the key \"text\" stands twice");
  EXPECT_REFUSED("{\"x\": " + std::string(100000, '['),
                 "x.jsonl: line 2, column 70: nested deeper than 64 levels");
  EXPECT_REFUSED(std::string("\0", 1), "x.jsonl: line 2");
}

TEST(Jsonl, ObjectsThatAreNoDocument) {
  EXPECT_REFUSED("[\"text\"]", "x.jsonl: line 2: an object is needed, this is an array");
  EXPECT_REFUSED(
      "{}",
      "x.jsonl: line 2: an object needs \"text\" (a string), \"messages\" (a list of role "
      "and content) or \"chosen\" and \"rejected\"; this one has no keys");
  EXPECT_REFUSED(R"({"prompt": "a", "completion": "b"})", "this one has completion, prompt");
  EXPECT_REFUSED("{\"" + std::string(1 << 16, 'k') + "\": 1}", std::string(400, 'k') + "...");
  EXPECT_REFUSED(R"({"text": 3})", "x.jsonl: line 2: \"text\" must be a string, this is 3");
  EXPECT_REFUSED(R"({"text": ["a"]})", "\"text\" must be a string, this is an array");
  EXPECT_REFUSED(R"({"text": "a", "messages": []})",
                 "x.jsonl: line 2: \"text\" and \"messages\" are both there");
}

TEST(Jsonl, MessagesThatAreNoDialogue) {
  EXPECT_REFUSED(R"({"messages": {"role": "user"}})",
                 "x.jsonl: line 2: \"messages\" must be an array of objects");
  EXPECT_REFUSED(R"({"messages": ["hello"]})",
                 "x.jsonl: line 2: \"messages\"[0]: an object is needed");
  EXPECT_REFUSED(R"({"messages": [{"content": "a"}]})",
                 "x.jsonl: line 2: \"messages\"[0]: \"role\" is missing");
  EXPECT_REFUSED(R"({"messages": [{"role": "user", "content": null}]})",
                 "\"messages\"[0]: \"content\" is missing");
  EXPECT_REFUSED(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
                 "\"content\" must be a string, this is an array");
  EXPECT_REFUSED(R"({"messages": []})", "x.jsonl: line 2: a dialogue needs at least one message");
  EXPECT_REFUSED(
      R"({"messages": [{"role": "human", "content": "a"}]})",
      "x.jsonl: line 2: message 1: the role \"human\" is not known; known are system, user");
  EXPECT_REFUSED(R"({"messages": [{"role": "user", "content": "<|im_end|>"}]})",
                 "x.jsonl: line 2: message 1 holds <|im_end|>");
  EXPECT_REFUSED(R"({"messages": [{"role": "user", "content": "a"}]})",
                 "x.jsonl: line 2: no message has the role \"assistant\"");
}

TEST(Jsonl, ALongLineIsRead) {
  const std::string text(8 << 20, 'a');
  EXPECT_EQ(texts_of("{\"text\": \"" + text + "\"}\n").at(0), text);
}

TEST(Jsonl, ALineLongerThanTheParserTakesIsRefused) {
  const std::string text(100 << 20, 'a');
  EXPECT_REFUSED("{\"text\": \"" + text + "\"}",
                 "x.jsonl: line 2: it has 104857612 bytes; a line may have 104857600");
}

TEST(Jsonl, AFileIsKnownByItsName) {
  for (const char* path : {"a.jsonl", "folder/b.ndjson", ".jsonl"})
    EXPECT_TRUE(is_jsonl(path)) << path;
  for (const char* path : {"a.json", "jsonl", "a.jsonl.txt", ""})
    EXPECT_FALSE(is_jsonl(path)) << path;
}

}  // namespace
}  // namespace moe::test::jsonl_test
