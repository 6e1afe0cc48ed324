// ChatML as OpenAI published it for GPT-3.5 (openai-python, chatml.md): the marks are single tokens where the vocabulary has them, else plain text.
#include "text/chat.h"

#include <string_view>

#include "core/error.h"
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

}  // namespace moe
