#include "text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include "core/error.h"
#include "core/nearest.h"
#include "text/chat.h"
#include "text/utf8.h"

namespace moe {
namespace {

constexpr size_t kShownRole = 40;  // of a role that is not known: what a file says may be long
constexpr size_t kLongestMark = 64;

void add(std::vector<std::string>& list, std::string text) {
  if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end())
    list.push_back(std::move(text));
}

// The mark that begins at `at`: <name>, <<NAME>> or [NAME], without white space. Templates write
// their marks so; empty where there is none.
std::string_view mark_at(std::string_view text, size_t at) {
  if (text[at] != '<' && text[at] != '[') return {};
  const char close = text[at] == '<' ? '>' : ']';
  size_t end = text.find(close, at);
  if (end == std::string_view::npos || end - at > kLongestMark || end == at + 1) return {};
  while (close == '>' && end + 1 < text.size() && text[end + 1] == close) ++end;
  const std::string_view mark = text.substr(at, end + 1 - at);
  return mark.find_first_of(" \n\t\"{}") == std::string_view::npos ? mark : std::string_view();
}

// The marks in what stands between two messages. <x> ... </x> is no mark: it encloses a part of a
// message, such as an empty thought.
std::vector<std::string> marks_in(std::string_view text) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size(); ++at)
    if (const std::string_view mark = mark_at(text, at); !mark.empty()) {
      add(found, std::string(mark));
      at += mark.size() - 1;
    }
  std::erase_if(found, [&](const std::string& mark) {
    std::string other = mark;
    if (mark.starts_with("</")) other.erase(1, 1);
    else other.insert(1, 1, '/');
    return text.find(other) != std::string_view::npos;
  });
  return found;
}

std::string text_of(const Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? tokenizer.piece(*id) : "";
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, ChatTokens tokens)
    : template_(jinja), tokens_(std::move(tokens)) {
  const std::vector<Message> talk = {
      {"user", "Aquestiona"}, {"assistant", "Aanswera"}, {"user", "Aseconda"}};
  const std::string text = render(talk, false);
  const size_t question = text.find(talk[0].content), answer = text.find(talk[1].content),
               second = text.find(talk[2].content);
  if (second == std::string::npos || answer > second || question > answer)
    fail("the chat template does not write the messages it is given");
  const auto between = [&](size_t from, size_t message, size_t to) {
    const size_t begin = from + talk[message].content.size();
    return std::string_view(text).substr(begin, to - begin);
  };
  const std::string_view asks = between(question, 0, answer), ends = between(answer, 1, second);
  stops_ = marks_ = marks_in(ends);
  for (std::string& mark : marks_in(asks)) add(marks_, std::move(mark));
  if (marks_in(asks).empty()) {
    const size_t last = asks.find_last_not_of(' ');  // words, such as "\n\nAssistant:"
    if (asks.find_first_not_of(" \n") != std::string_view::npos)
      add(marks_, std::string(asks.substr(0, last + 1)));
  }
  for (const std::string* token : {&tokens_.bos, &tokens_.eos})
    if (!token->empty() && text.find(*token) != std::string::npos) add(marks_, *token);
  add(stops_, tokens_.eos);
}

std::string ChatTemplate::render(std::span<const Message> messages, bool ask) const {
  jinja::List list;
  for (const auto& [role, content] : messages)
    list.emplace_back(jinja::Dict{{{"role", role}, {"content", content}}});
  jinja::Variables variables = {{"messages", std::move(list)},
                                {"tools", {}},
                                {"documents", {}},
                                {"add_generation_prompt", ask}};
  if (!tokens_.bos.empty()) variables.emplace_back("bos_token", tokens_.bos);
  if (!tokens_.eos.empty()) variables.emplace_back("eos_token", tokens_.eos);
  return template_.render(variables, {.now = std::time(nullptr)}).text;
}

void ChatTemplate::check(std::span<const Message> messages) const {
  if (messages.empty()) fail_usage("a dialogue needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role != "system" && role != "user" && role != "assistant") {
      const std::string name = printable(role, kShownRole);
      fail_usage("message {}: the role \"{}\" is not known{}", i + 1, name,
                 suggestion(name, {"system", "user", "assistant"}));
    }
    if (role == "system" && i > 0)
      fail_usage("message {} has the role \"system\", which only the first may have", i + 1);
    for (const std::string& mark : marks_)
      if (content.find(mark) != std::string::npos)
        fail_usage("message {} holds {}, which parts messages and may not stand inside one", i + 1,
                   printable(mark));
  }
}

std::string ChatTemplate::prompt(std::span<const Message> messages) const {
  check(messages);
  return render(messages, true);
}

ChatTemplate chat_template(const Tokenizer& tokenizer) {
  const std::string jinja = chat_template_of(tokenizer);
  if (jinja.empty()) return {chat_template_jinja(), {}};
  return {jinja, {text_of(tokenizer, tokenizer.special().bos), end_text(tokenizer)}};
}

}  // namespace moe
