// ChatML as OpenAI published it for GPT-3.5 (openai-python, chatml.md): the marks are single tokens
// where the vocabulary has them, else plain text.
#include "text/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr std::string_view kSystem = "system", kUser = "user", kAssistant = "assistant";
// of a role that is not known: what a file says may be of any length
constexpr size_t kShownRole = 40;

constexpr std::string_view kThoughtEnd = "</think>";

// As Python's strip(), which the templates call: the information separators are white space to it
// too.
std::string_view trimmed(std::string_view text) {
  const auto is_space = [](std::string_view character) {
    return space_length(character) == character.size() ||
           (character.size() == 1 && character[0] >= '\x1C' && character[0] <= '\x1F');
  };
  size_t begin = std::string_view::npos, end = 0;
  for (size_t at = 0; at < text.size();) {
    const auto length = static_cast<size_t>(utf8_step(text.substr(at)).length);
    if (!is_space(text.substr(at, length))) {
      begin = std::min(begin, at);
      end = at + length;
    }
    at += length;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

// What of a reply the model sees again.
std::string_view said(const ChatTemplate& t, std::string_view reply) {
  if (const size_t end = t.drop_thoughts ? reply.rfind(kThoughtEnd) : std::string_view::npos;
      end != std::string_view::npos) {
    reply.remove_prefix(end + kThoughtEnd.size());
    reply.remove_prefix(std::min(reply.find_first_not_of('\n'), reply.size()));
  }
  return t.trim_reply ? trimmed(reply) : reply;
}

// Appends the reply and returns where its content stands, with what ends it.
ByteSpan append_reply(std::string& text, const ChatTemplate& t, std::string_view content,
                      bool last) {
  text += t.reply_open;
  const auto begin = static_cast<int64_t>(text.size());
  text += said(t, content);
  text += t.reply_end;
  const ByteSpan span{begin, static_cast<int64_t>(text.size())};
  if (!last || !t.end_plain) text += t.reply_after;
  return span;
}

void append_system(std::string& text, const ChatTemplate& t, std::string_view content) {
  text += t.system.open;
  text += t.trim && t.system_as == ChatTemplate::System::message ? trimmed(content) : content;
  text += t.system.close;
}

// The dialogue as text; `on_reply` is told where each reply stands.
template <class OnReply>
std::string render(std::span<const Message> messages, const ChatTemplate& t,
                   const OnReply& on_reply) {
  using System = ChatTemplate::System;
  std::string text = t.begin;
  const bool has_system = messages[0].role == kSystem;
  const std::string& system = has_system ? messages[0].content : t.default_system;
  if (t.system_as == System::message && (has_system || t.always_system || !system.empty()))
    append_system(text, t, system);
  const size_t first = has_system ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    if (messages[i].role == kAssistant) {
      on_reply(append_reply(text, t, messages[i].content, last));
      continue;
    }
    const bool holds_system = has_system && ((t.system_as == System::first_user && i == first) ||
                                             (t.system_as == System::last_user && last));
    std::string content;
    if (holds_system) append_system(content, t, system);
    content += messages[i].content;
    text += t.user.open;
    text += t.trim ? trimmed(content) : std::string_view(content);
    text += t.user.close;
  }
  return text;
}

constexpr const char *kTemplate = "chat_template", *kEnd = "eos_token",
                     *kConfig = "tokenizer_config.json";

Json config_of(const Tokenizer& tokenizer) {
  if (tokenizer.config_json().empty()) return Json::object();
  Json config = parse_json(tokenizer.config_json(), kConfig);
  JsonReader(config, kConfig);  // an object
  return config;
}

}  // namespace

void check_messages(std::span<const Message> messages, const ChatTemplate& t) {
  if (messages.empty()) fail_usage("a dialogue needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != kSystem && role != kUser && role != kAssistant) {
      const std::string name = printable(role, kShownRole);
      fail_usage("message {}: the role \"{}\" is not known{}", i + 1, name,
                 suggestion(name, {"system", "user", "assistant"}));
    }
    if (role == kSystem && i > 0)
      fail_usage("message {} has the role \"system\", which only the first may have", i + 1);
    if (role == kSystem && t.system_as == ChatTemplate::System::none)
      fail_usage("the template of this model ({}) has no place for a system message", t.name);
    for (const std::string& mark : t.forbidden)
      if (content.find(mark) != std::string::npos)
        fail_usage("message {} holds {}, which parts messages and may not stand inside one", i + 1,
                   printable(mark));
  }
}

Document chat_document(std::span<const Message> messages, const ChatTemplate& t) {
  check_messages(messages, t);
  Document document;
  document.all_trained = false;
  document.text =
      render(messages, t, [&](const ByteSpan& reply) { document.trained.push_back(reply); });
  return document;
}

std::string chat_prompt(std::span<const Message> messages, const ChatTemplate& t) {
  check_messages(messages, t);
  return render(messages, t, [](const ByteSpan&) {}) + t.ask;
}

std::string chat_template_jinja() {
  return fmt::format(
      "{{% for message in messages %}}{{{{ '{}' + message['role'] + '\\n' + message['content'] + "
      "'{}' + '\\n' }}}}{{% endfor %}}"
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
      if (named.is_object() && named.value("name", Json()) == "default" &&
          named.contains("template") && named["template"].is_string())
        return named["template"];
  fail("{}: its {} is neither a text nor a list with a default", kConfig, kTemplate);
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
  const std::string text = found->dump(-1, ' ', false, Json::error_handler_t::replace);
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
