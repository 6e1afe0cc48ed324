// ChatML as OpenAI published it for GPT-3.5 (openai-python, chatml.md): the marks are single tokens
// where the vocabulary has them, else plain text.
#include "text/chat.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json.h"

namespace moe {
namespace {

constexpr const char *kTemplate = "chat_template", *kEnd = "eos_token",
                     *kConfig = "tokenizer_config.json";

Json config_of(const Tokenizer& tokenizer) {
  if (tokenizer.config_json().empty()) return Json::object();
  Json config = parse_json(tokenizer.config_json(), kConfig);
  JsonReader(config, kConfig);  // an object
  return config;
}

constexpr const char* kDefault = "default";

[[noreturn]] void fail_without_default() {
  fail("{}: its {} is neither a text nor a list with a default", kConfig, kTemplate);
}

}  // namespace

const ChatTemplate& chatml() {
  static const ChatTemplate made(chat_template_jinja(), {});
  return made;
}

Document chat_document(std::span<const Message> messages) {
  chatml().check(messages);
  Document document;
  document.all_trained = false;
  for (const auto& [role, content, thought] : messages) {
    document.text += fmt::format("{}{}\n", kMessageBegin, role);
    const auto begin = static_cast<int64_t>(document.text.size());
    document.text += content + kMessageEnd;
    if (role == "assistant")
      document.trained.push_back({begin, static_cast<int64_t>(document.text.size())});
    document.text += '\n';
  }
  return document;
}

DialogueWriter dialogue_writer(const Tokenizer& tokenizer) {
  return [&tokenizer,
          made = std::shared_ptr<const ChatTemplate>()](std::span<const Message> messages) mutable {
    if (made == nullptr) {
      const std::string jinja = chat_template_of(tokenizer);
      if (jinja.empty() || jinja == chat_template_jinja()) return chat_document(messages);
      made = std::make_shared<const ChatTemplate>(chat_template(tokenizer));
    }
    return made->document(messages);
  };
}

DialogueWriter pair_writer(const Tokenizer& tokenizer) {
  return [&tokenizer, write = dialogue_writer(tokenizer)](std::span<const Message> messages) {
    if (chat_template_of(tokenizer).empty())
      fail(
          "the model has no chat template to write lists of messages by; give \"prompt\", "
          "\"chosen\" and \"rejected\" as strings, or take a model that was trained on dialogues");
    return write(messages);
  };
}

std::string chat_template_jinja() {
  return fmt::format(
      "{{% for message in messages %}}{{{{ '{}' + message['role'] + '\\n' + message['content'] + "
      "'{}' + '\\n' }}}}{{% endfor %}}"
      "{{% if add_generation_prompt %}}{{{{ '{}assistant\\n' }}}}{{% endif %}}",
      kMessageBegin, kMessageEnd, kMessageBegin);
}

std::optional<std::map<std::string, std::string>> chat_templates_of(const Tokenizer& tokenizer) {
  const Json config = config_of(tokenizer);
  const auto found = config.find(kTemplate);
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string())
    return std::map<std::string, std::string>{{kDefault, found->get<std::string>()}};
  if (!found->is_array()) fail_without_default();
  std::map<std::string, std::string> templates;
  for (const Json& named : *found) {
    if (!named.is_object()) continue;
    const Json name = named.value("name", Json()), text = named.value("template", Json());
    if (name.is_string() && text.is_string())
      templates.emplace(name.get<std::string>(), text.get<std::string>());
  }
  return templates;
}

std::string chat_template_of(const Tokenizer& tokenizer, const std::string& name) {
  const auto templates = chat_templates_of(tokenizer);
  if (!templates) return "";
  if (const auto named = templates->find(name); named != templates->end()) return named->second;
  if (name == kDefault) fail_without_default();
  return "";
}

std::string end_text(const Tokenizer& tokenizer) {
  const Json config = config_of(tokenizer);
  if (const auto end = config.find(kEnd); end != config.end()) {
    const Json& content = end->is_object() && end->contains("content") ? (*end)["content"] : *end;
    if (content.is_string()) return content.get<std::string>();
  }
  return tokenizer.eos_id() ? tokenizer.piece(*tokenizer.eos_id()) : "";
}

// Some folders have a list of named templates: any of them may hold the marks.
Dialogues dialogues_of(const Tokenizer& tokenizer) {
  const Json config = config_of(tokenizer);
  const auto found = config.find(kTemplate);
  if (found == config.end() || found->is_null()) return Dialogues::none;
  const std::string text = one_line_json(*found);
  return text.find(kMessageBegin) != std::string::npos &&
                 text.find(kMessageEnd) != std::string::npos
             ? Dialogues::chatml
             : Dialogues::other;
}

void mark_dialogues(Tokenizer& tokenizer, bool trained) {
  if (!trained && dialogues_of(tokenizer) == Dialogues::none) return;
  Json config = config_of(tokenizer);
  config.erase(kTemplate);
  // Only the template's mark: another end of text is the vocabulary's own.
  if (const auto end = config.find(kEnd); end != config.end() && *end == kMessageEnd)
    config.erase(end);
  if (trained) {
    config[kTemplate] = chat_template_jinja();
    // For transformers: which class reads tokenizer.json, and which token ends a reply where one
    // does.
    config.emplace("tokenizer_class", "PreTrainedTokenizerFast");
    config.emplace("clean_up_tokenization_spaces", false);
    if (tokenizer.encode(kMessageEnd).size() == 1) config[kEnd] = kMessageEnd;
  }
  tokenizer.set_config_json(config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace moe
