// Each family's dialogues to the byte, and by what its template is known. The Jinja texts here are
// ours: tools/interop/chat_check.py has transformers run such texts and compares.
#include "text/chat_template.h"

#include "support/files.h"
#include "text/chat.h"

namespace moe::test {
namespace {

const std::vector<Message> kTalk = {
    {"system", "Be brief."}, {"user", " Hi "}, {"assistant", " Hello "}, {"user", "2?"}};

ChatTemplate of(std::string_view jinja) { return recognize_template(jinja, "<s>", "</s>"); }
std::string prompt(const ChatTemplate& t) { return chat_prompt(kTalk, t); }
std::string without_system(const ChatTemplate& t) {
  return chat_prompt(std::span(kTalk).subspan(3), t);
}

TEST(ChatTemplate, ChatMLMayHaveASystemMessageOfItsOwn) {
  const ChatTemplate plain = of(chat_template_jinja());
  EXPECT_EQ(plain.name, "ChatML");
  EXPECT_EQ(without_system(plain), "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n");
  const ChatTemplate smollm =
      of("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are \\'S\\', a "
         "model<|im_end|>\\n' }}{% endif %}");
  EXPECT_EQ(without_system(smollm),
            "<|im_start|>system\nYou are 'S', a "
            "model<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt(smollm), chat_prompt(kTalk));
  // Qwen2.5 has the words in an else, behind literals that only open the message.
  const ChatTemplate qwen =
      of("{{- '<|im_start|>system\\n' }}{{- '<|im_start|>system\\n' + x + '<|im_end|>\\n' }}{{- "
         "\"<|im_start|>system\\nI'm Q<|im_end|>\\n\" }}");
  EXPECT_EQ(qwen.default_system, "I'm Q");
}

TEST(ChatTemplate, ThoughtsOfEarlierRepliesAreLeftOut) {
  const ChatTemplate qwen3 =
      of("{{ '<|im_start|>' + m.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>' }}");
  const std::vector<Message> talk = {
      {"user", "a"}, {"assistant", "<think>\nb\n</think>\n\n c\n"}, {"user", "d"}};
  EXPECT_EQ(chat_prompt(talk, qwen3),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n "
            "c\n<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n");
  const ChatTemplate thinking =
      of("{{ '<|im_start|><|im_end|></think>' }}{{- '<|im_start|>assistant\\n<think>\\n' }}");
  EXPECT_TRUE(chat_prompt(talk, thinking).ends_with("<|im_start|>assistant\n<think>\n"));
}

TEST(ChatTemplate, Llama3TrimsAndBegins) {
  const ChatTemplate t = of("{{ bos_token + '<|start_header_id|>' + '<|eot_id|>' }}");
  EXPECT_EQ(prompt(t),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
            "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>"
            "user<|end_header_id|>\n\n2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  const ChatTemplate dated =
      of("{{ '<|start_header_id|><|eot_id|>Cutting Knowledge Date: December 2023\\nToday Date: ' + "
         "date_string }}");
  EXPECT_TRUE(without_system(dated).starts_with(
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday "
      "Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user"));
}

TEST(ChatTemplate, Llama2PutsTheSystemMessageIntoTheFirstQuestion) {
  const ChatTemplate t =
      of("{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{{ '<<SYS>>' + eos_token }}");
  EXPECT_EQ(t.name, "Llama 2");
  EXPECT_EQ(prompt(t),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi [/INST] Hello </s><s>[INST] 2? [/INST]");
  EXPECT_EQ(without_system(t), "<s>[INST] 2? [/INST]");
  const Document document = chat_document(std::span(kTalk).first(3), t);
  ASSERT_EQ(document.trained.size(), 1u);
  EXPECT_EQ(document.text.substr(static_cast<size_t>(document.trained[0].begin)), "Hello </s>");
}

TEST(ChatTemplate, MistralsSpacesAreThoseOfTheTemplate) {
  const ChatTemplate v1 =
      of("{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + "
         "eos_token + ' ' }}");
  EXPECT_EQ(chat_prompt(std::span(kTalk).subspan(1), v1),
            "<s>[INST]  Hi  [/INST] Hello </s> [INST] 2? [/INST]");
  EXPECT_FAILS(prompt(v1), "has no place for a system message");
  const ChatTemplate v1_later =
      of("{{ bos_token }}{{ ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' "
         "[/INST]' }}{{ ' ' + message['content'] + eos_token }}");
  EXPECT_EQ(prompt(v1_later), "<s> [INST] Be brief.\n\n Hi  [/INST]  Hello </s> [INST] 2? [/INST]");
  const ChatTemplate v3 =
      of("{{ bos_token }}{% if loop.last and system_message %}{{ '[INST] ' + message['content'] + "
         "'[/INST]' }}{{ ' ' + message['content']|trim + eos_token }}");
  EXPECT_EQ(prompt(v3), "<s>[INST]  Hi [/INST] Hello</s>[INST] Be brief.\n\n2?[/INST]");
  const ChatTemplate tekken =
      of("{{ bos_token }}{% if loop.last and system_message %}{{ '[INST]' + message['content'] + "
         "'[/INST]' }}{{ message['content'] + eos_token }}");
  EXPECT_EQ(prompt(tekken), "<s>[INST] Hi [/INST] Hello </s>[INST]Be brief.\n\n2?[/INST]");
}

TEST(ChatTemplate, DeepSeekTuluAndZephyr) {
  const ChatTemplate deepseek =
      of("{{ bos_token }}{{ 'User: ' + message['content'] + '\\n\\n' }}{{ 'Assistant: ' + "
         "message['content'] + eos_token }}{{ 'Assistant:' }}");
  EXPECT_EQ(prompt(deepseek),
            "<s>Be brief.\n\nUser:  Hi \n\nAssistant:  Hello </s>User: 2?\n\nAssistant:");
  const ChatTemplate tulu =
      of("{{ bos_token }}{{ '<|user|>\\n' + message['content'] + '\\n' }}{{ '<|assistant|>\\n' + "
         "message['content'] + eos_token + '\\n' }}");
  EXPECT_EQ(prompt(tulu),
            "<s><|system|>\nBe brief.\n<|user|>\n Hi \n<|assistant|>\n Hello "
            "</s>\n<|user|>\n2?\n<|assistant|>\n");
  EXPECT_TRUE(chat_document(std::span(kTalk).first(3), tulu).text.ends_with(" Hello </s>"));
  const ChatTemplate zephyr =
      of("{{ '<|user|>\\n' + message['content'] + eos_token }}\n{{ '<|assistant|>\\n' + "
         "message['content'] + eos_token }}\n");
  EXPECT_EQ(prompt(zephyr),
            "<|system|>\nBe brief.</s>\n<|user|>\n Hi </s>\n<|assistant|>\n Hello "
            "</s>\n<|user|>\n2?</s>\n<|assistant|>\n");
}

TEST(ChatTemplate, MarksMayNotStandInAMessage) {
  const ChatTemplate t = of("{{ bos_token + '[INST] ' + '[/INST]' + '<<SYS>>' + eos_token }}");
  for (const std::string mark : {"[INST]", "[/INST]", "<<SYS>>", "<s>", "</s>"})
    EXPECT_FAILS(chat_prompt(std::vector<Message>{{"user", "a " + mark}}, t),
                 "message 1 holds " + mark);
  EXPECT_NO_THROW(chat_prompt(std::vector<Message>{{"user", "<|im_end|>"}}, t));
}

TEST(ChatTemplate, WhatIsNotKnownIsRefused) {
  EXPECT_FAILS(of("{{ '<start_of_turn>user' }}"),
               "not known; known are those of Llama 3, ChatML, Llama 2, Mistral, Tulu, DeepSeek");
  EXPECT_FAILS(of("{{ '[SYSTEM_PROMPT] [INST] [/INST]' }}"), "not known");
  EXPECT_FAILS(recognize_template("{{ '[INST] [/INST]' }}", "", ""), "its tokenizer names none");
  EXPECT_FAILS(of(""), "not known");
}

TEST(ChatTemplate, ATokenizersOwnIsTaken) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(chat_template(*tokenizer).name, "ChatML");
  tokenizer->set_config_json(
      R"({"eos_token": {"content": "</s>"}, "chat_template": [{"name": "rag", "template": "?"}, {"name": "default", "template": "[INST] [/INST]"}]})");
  EXPECT_EQ(chat_template(*tokenizer).name, "Mistral");
  EXPECT_EQ(chat_template(*tokenizer).reply_end, "</s>");
  tokenizer->set_config_json(R"({"chat_template": 1})");
  EXPECT_FAILS(chat_template(*tokenizer), "neither a text nor a list");
}

}  // namespace
}  // namespace moe::test
