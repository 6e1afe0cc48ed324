// ChatML as OpenAI published it for GPT-3.5 (openai-python, chatml.md): the marks are single tokens where the vocabulary has them, else plain text.
#include "text/chat.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"

namespace moe {
namespace {

constexpr std::string_view kSystem = "system", kUser = "user", kAssistant = "assistant";
constexpr size_t kShownRole = 40;  // of a role that is not known: what a file says may be of any length

std::string opening(std::string_view role) { return fmt::format("{}{}\n", kMessageBegin, role); }

// Appends the message and returns where its content stands.
ByteSpan append(std::string& text, const Message& message) {
  text += opening(message.role);
  const auto begin = static_cast<int64_t>(text.size());
  text += message.content;
  text += kMessageEnd;
  const ByteSpan content{begin, static_cast<int64_t>(text.size())};
  text += '\n';
  return content;
}

constexpr const char *kTemplate = "chat_template", *kEnd = "eos_token", *kConfig = "tokenizer_config.json";

Json config_of(const Tokenizer& tokenizer) {
  if (tokenizer.config_json().empty()) return Json::object();
  Json config = parse_json(tokenizer.config_json(), kConfig);
  JsonReader(config, kConfig);  // an object
  return config;
}

}  // namespace

void check_messages(std::span<const Message> messages) {
  if (messages.empty()) fail_usage("a dialogue needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != kSystem && role != kUser && role != kAssistant) {
      const std::string name = printable(role, kShownRole);
      fail_usage("message {}: the role \"{}\" is not known{}", i + 1, name, suggestion(name, {"system", "user", "assistant"}));
    }
    if (role == kSystem && i > 0) fail_usage("message {} has the role \"system\", which only the first may have", i + 1);
    for (const std::string_view mark : {kMessageBegin, kMessageEnd})
      if (content.find(mark) != std::string::npos) fail_usage("message {} holds {}, which parts messages and may not stand inside one", i + 1, mark);
  }
}

Document chat_document(std::span<const Message> messages) {
  check_messages(messages);
  Document document;
  document.all_trained = false;
  for (const Message& message : messages) {
    const ByteSpan content = append(document.text, message);
    if (message.role == kAssistant) document.trained.push_back(content);
  }
  return document;
}

std::string chat_prompt(std::span<const Message> messages) {
  check_messages(messages);
  std::string text;
  for (const Message& message : messages) append(text, message);
  return text + opening(kAssistant);
}

std::string chat_template_jinja() {
  return fmt::format(
      "{{% for message in messages %}}{{{{ '{}' + message['role'] + '\\n' + message['content'] + '{}' + '\\n' }}}}{{% endfor %}}"
      "{{% if add_generation_prompt %}}{{{{ '{}assistant\\n' }}}}{{% endif %}}",
      kMessageBegin, kMessageEnd, kMessageBegin);
}

std::string chat_template_of(const Tokenizer& tokenizer) {
  const Json config = config_of(tokenizer);
  const auto found = config.find(kTemplate);
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const Json& named : *found)
      if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") && named["template"].is_string())
        return named["template"];
  fail("{}: its {} is neither a text nor a list with a default", kConfig, kTemplate);
}

// Some folders have a list of named templates: any of them may hold the marks.
Dialogues dialogues_of(const Tokenizer& tokenizer) {
  const Json config = config_of(tokenizer);
  const auto found = config.find(kTemplate);
  if (found == config.end() || found->is_null()) return Dialogues::none;
  const std::string text = found->dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.find(kMessageBegin) != std::string::npos && text.find(kMessageEnd) != std::string::npos ? Dialogues::chatml : Dialogues::other;
}

void mark_dialogues(Tokenizer& tokenizer, bool trained) {
  if (!trained && dialogues_of(tokenizer) == Dialogues::none) return;
  Json config = config_of(tokenizer);
  config.erase(kTemplate);
  // Only the template's mark: another end of text is the vocabulary's own.
  if (const auto end = config.find(kEnd); end != config.end() && *end == kMessageEnd) config.erase(end);
  if (trained) {
    config[kTemplate] = chat_template_jinja();
    // For transformers: which class reads tokenizer.json, and which token ends a reply where one does.
    config.emplace("tokenizer_class", "PreTrainedTokenizerFast");
    config.emplace("clean_up_tokenization_spaces", false);
    if (tokenizer.encode(kMessageEnd).size() == 1) config[kEnd] = kMessageEnd;
  }
  tokenizer.set_config_json(config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace moe
