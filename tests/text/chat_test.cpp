// ChatML to the byte, what of it is learned from, and what is refused.
#include "text/chat.h"

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/files.h"
#include "text/bpe_train.h"

namespace moe::test::chat_test {
namespace {

const std::vector<Message> kDialogue = {{"system", "Be brief."},
                                        {"user", "2 + 2?"},
                                        {"assistant", "4"},
                                        {"user", "é\n<|x|>"},
                                        {"assistant", ""}};

std::string bytes_of(const Document& document, size_t span) {
  return document.text.substr(
      static_cast<size_t>(document.trained[span].begin),
      static_cast<size_t>(document.trained[span].end - document.trained[span].begin));
}

TEST(Chat, ADocumentIsTheWholeDialogue) {
  const Document document = chat_document(kDialogue);
  EXPECT_EQ(document.text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + "
            "2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
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
    EXPECT_EQ(chatml().prompt(std::span(kDialogue).first(before)),
              document.text.substr(0, static_cast<size_t>(document.trained.back().begin)));
  }
}

TEST(Chat, RefusesWhatTheTemplateCannotSay) {
  const auto check = [](std::vector<Message> messages) { chatml().check(messages); };
  EXPECT_FAILS(check({}), "at least one message");
  EXPECT_FAILS(check({{"user", "a"}, {"asistant", "b"}}),
               "message 2: the role \"asistant\" is not known; did you mean \"assistant\"?");
  EXPECT_FAILS(check({{std::string(1 << 20, 'x'), "a"}}),
               "message 1: the role \"" + std::string(40, 'x') +
                   "...\" is not known; known are system, user");
  EXPECT_FAILS(check({{"user", "a"}, {"system", "b"}}), "message 2 has the role \"system\"");
  EXPECT_FAILS(check({{"user", "a <|im_start|>"}}), "message 1 holds <|im_start|>");
  EXPECT_FAILS(chat_document(std::vector<Message>{{"user", "<|im_end|>"}}),
               "message 1 holds <|im_end|>");
  EXPECT_FAILS(chatml().prompt(std::vector<Message>{{"tool", "a"}}), "\"tool\"");
}

TEST(Chat, TheJinjaTemplateHasTheMarks) {
  EXPECT_EQ(chat_template_jinja(),
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
            "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

TEST(Chat, AFolderSaysThatItsModelKnowsDialogues) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::none);
  mark_dialogues(*tokenizer, false);
  EXPECT_EQ(tokenizer->config_json(), "") << "nothing is written where there is nothing to say";
  mark_dialogues(*tokenizer);
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::chatml);
  const Json config = Json::parse(tokenizer->config_json());
  EXPECT_EQ(config.at("chat_template"), chat_template_jinja());
  EXPECT_FALSE(config.contains("eos_token")) << "over bytes no token ends a reply";

  const std::string other =
      R"({"add_bos_token": false, "chat_template": "[INST]", "tokenizer_class": "Qwen2Tokenizer"})";
  tokenizer->set_config_json(other);
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::other);
  mark_dialogues(*tokenizer);
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::chatml);
  EXPECT_EQ(Json::parse(tokenizer->config_json()).at("tokenizer_class"), "Qwen2Tokenizer");
  mark_dialogues(*tokenizer, false);
  EXPECT_EQ(
      Json::parse(tokenizer->config_json()),
      Json::parse(
          R"({"add_bos_token": false, "clean_up_tokenization_spaces": false, "tokenizer_class": "Qwen2Tokenizer"})"));
  tokenizer->set_config_json(
      R"({"chat_template": [{"name": "default", "template": "<|im_start|> <|im_end|>"}]})");
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::chatml);
  tokenizer->set_config_json(R"({"chat_template": null})");
  EXPECT_EQ(dialogues_of(*tokenizer), Dialogues::none);
}

TEST(Chat, AVocabularyLearnedFromDialoguesHasTheMarks) {
  const std::string text = chat_document(kDialogue).text;
  BpeLearner learner;
  for (int i = 0; i < 3; ++i) learner.add(text);
  const auto tokenizer = learner.learn(280, true);
  const std::vector<int32_t> begin = tokenizer->encode(kMessageBegin),
                             end = tokenizer->encode(kMessageEnd);
  ASSERT_EQ(begin.size(), 1u);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(begin[0], tokenizer->vocab_size() - 2);
  EXPECT_EQ(end[0], tokenizer->vocab_size() - 1);
  EXPECT_EQ(*tokenizer->eos_id(), tokenizer->vocab_size() - 3);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  const auto read = parse_tokenizer(tokenizer->to_json(), "t.json");
  EXPECT_EQ(read->encode(text), tokenizer->encode(text));
  for (int32_t id = 256; id < *tokenizer->eos_id(); ++id)
    EXPECT_EQ(tokenizer->piece(id).find("im_"), std::string::npos)
        << "nothing is learned from the marks themselves";
  mark_dialogues(*tokenizer);
  EXPECT_EQ(Json::parse(tokenizer->config_json()).at("eos_token"), kMessageEnd);
  mark_dialogues(*tokenizer, false);
  EXPECT_FALSE(Json::parse(tokenizer->config_json()).contains("eos_token"))
      << "a model of plain text never writes it";
  tokenizer->set_config_json(R"({"chat_template": "[INST]", "eos_token": "</s>"})");
  mark_dialogues(*tokenizer, false);
  EXPECT_EQ(Json::parse(tokenizer->config_json()).at("eos_token"), "</s>");

  const auto plain = learner.learn(280);
  EXPECT_GT(plain->encode(kMessageEnd).size(), 1u);
  EXPECT_FAILS(learner.learn(258, true), "for dialogues has from 259");
  EXPECT_EQ(learner.learn(259, true)->vocab_size(), 259);
}

}  // namespace
}  // namespace moe::test::chat_test
