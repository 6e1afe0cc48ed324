// ChatML to the byte, what of it is learned from, and what is refused.
#include "text/chat.h"

#include "support/files.h"

namespace moe::test {
namespace {

const std::vector<Message> kDialogue = {{"system", "Be brief."}, {"user", "2 + 2?"}, {"assistant", "4"}, {"user", "é\n<|x|>"}, {"assistant", ""}};

std::string bytes_of(const Document& document, size_t span) {
  return document.text.substr(static_cast<size_t>(document.trained[span].begin),
                              static_cast<size_t>(document.trained[span].end - document.trained[span].begin));
}

TEST(Chat, ADocumentIsTheWholeDialogue) {
  const Document document = chat_document(kDialogue);
  EXPECT_EQ(document.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
            "<|im_start|>user\né\n<|x|><|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
  EXPECT_FALSE(document.all_trained);
}

TEST(Chat, RepliesAreLearnedWithTheirEnd) {
  const Document document = chat_document(kDialogue);
  ASSERT_EQ(document.trained.size(), 2u);
  EXPECT_EQ(bytes_of(document, 0), "4<|im_end|>");
  EXPECT_EQ(bytes_of(document, 1), "<|im_end|>");
  EXPECT_LT(document.trained[0].end, document.trained[1].begin);
  EXPECT_TRUE(chat_document(std::span(kDialogue).first(2)).trained.empty());
}

// What a model sees when it is asked is what it was trained on, up to the reply.
TEST(Chat, APromptIsTheDocumentUpToTheReply) {
  for (const size_t before : {2u, 4u}) {
    const Document document = chat_document(std::span(kDialogue).first(before + 1));
    EXPECT_EQ(chat_prompt(std::span(kDialogue).first(before)), document.text.substr(0, static_cast<size_t>(document.trained.back().begin)));
  }
}

TEST(Chat, RefusesWhatTheTemplateCannotSay) {
  const auto check = [](std::vector<Message> messages) { check_messages(messages); };
  EXPECT_FAILS(check({}), "at least one message");
  EXPECT_FAILS(check({{"user", "a"}, {"asistant", "b"}}), "message 2: the role \"asistant\" is not known; did you mean \"assistant\"?");
  EXPECT_FAILS(check({{std::string(1 << 20, 'x'), "a"}}), "message 1: the role \"" + std::string(40, 'x') + "...\" is not known; known are system, user");
  EXPECT_FAILS(check({{"user", "a"}, {"system", "b"}}), "message 2 has the role \"system\"");
  EXPECT_FAILS(check({{"user", "a <|im_start|>"}}), "message 1 holds <|im_start|>");
  EXPECT_FAILS(chat_document(std::vector<Message>{{"user", "<|im_end|>"}}), "message 1 holds <|im_end|>");
  EXPECT_FAILS(chat_prompt(std::vector<Message>{{"tool", "a"}}), "\"tool\"");
}

TEST(Chat, TheJinjaTemplateHasTheMarks) {
  EXPECT_EQ(chat_template_jinja(),
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

}  // namespace
}  // namespace moe::test
