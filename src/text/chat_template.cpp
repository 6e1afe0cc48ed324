#include "text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include "core/error.h"
#include "core/nearest.h"
#include "text/call_text.h"
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

// </x> behind a question where no <x> was written: the template has the model open a thought with
// it, which parts no messages.
void erase_unopened(std::vector<std::string>& marks, std::string_view text) {
  std::erase_if(marks, [&](std::string mark) {
    if (!mark.starts_with("</")) return false;
    return text.find(mark.erase(1, 1)) == std::string_view::npos;
  });
}

jinja::Value messages_value(std::span<const Message> messages) {
  jinja::List list;
  for (const Message& message : messages) {
    jinja::Dict made{{{"role", message.role}, {"content", message.content}}};
    if (!message.thought.empty()) made.entries.emplace_back("reasoning_content", message.thought);
    list.emplace_back(std::move(made));
  }
  return list;
}

constexpr const char* kKnownThought = "Athoughta";

// A question, a call with what came of it, and the tool. Mistral's templates want ids of nine
// letters.
ChatRequest known_call(const CallStyle& style, const char* thought_key = nullptr) {
  using jinja::Dict, jinja::List, jinja::Value;
  const Dict arguments{{{"aneedle", "avalue"}}};
  const Value given =
      style.arguments_as_text ? Value(R"({"aneedle": "avalue"})") : Value(arguments);
  const Dict call{{{"id", "callabcde"},
                   {"type", "function"},
                   {"function", Dict{{{"name", "atoola"}, {"arguments", given}}}}}};
  const Dict parameters{
      {{"type", "object"}, {"properties", Dict{{{"aparameter", Dict{{{"type", "string"}}}}}}}}};
  const Dict function{
      {{"name", "atoola"}, {"description", "Atasking"}, {"parameters", parameters}}};
  Dict calling{{{"role", "assistant"},
                {"content", style.empty_content ? Value("") : Value()},
                {"tool_calls", List{call}}}};
  if (thought_key != nullptr) calling.entries.emplace_back(thought_key, kKnownThought);
  ChatRequest request;
  request.tools = List{Dict{{{"type", "function"}, {"function", function}}}};
  request.messages = List{Dict{{{"role", "user"}, {"content", "Aquestiona"}}}, std::move(calling),
                          Dict{{{"role", "tool"},
                                {"name", "atoola"},
                                {"tool_call_id", "callabcde"},
                                {"content", "Aresulta"}}}};
  request.ask = false;
  return request;
}

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

// Stands behind the content that a reply goes on with while the template is run. Templates that
// trim contents take the blank.
constexpr std::string_view kGoesOn = "Amessagethatgoeson ";

// Leaves the prompt up to where kGoesOn stands, as transformers' apply_chat_template does.
void end_with_content(std::string& prompt, std::string_view content) {
  const size_t end = prompt.rfind(trimmed(kGoesOn));
  if (end == std::string::npos || prompt.rfind(trimmed(content), end) == std::string::npos)
    fail_usage(
        "continue_final_message: the template does not write the last message as it stands, so "
        "there is nothing to go on with");
  const bool trims = prompt.compare(end, kGoesOn.size(), kGoesOn) != 0;
  prompt.resize(end);
  if (trims) prompt.resize(trimmed_right(prompt).size());
}

std::string text_of(const Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? tokenizer.piece(*id) : "";
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, ChatTokens tokens, std::string_view with_tools)
    : template_(jinja),
      tokens_(std::move(tokens)),
      calls_(tool_call_form(with_tools.empty() ? jinja : with_tools)),
      thoughts_(thought_tags(jinja)) {
  if (!with_tools.empty()) with_tools_.emplace(with_tools);
  const std::vector<Message> talk = {
      {"user", "Aquestiona"}, {"assistant", "Aanswera"}, {"user", "Aseconda"}};
  ChatRequest known;
  known.messages = messages_value(talk);
  known.ask = false;
  std::string text;
  try {
    text = run(known, 0).text;
  } catch (const Error&) {
    known.tools = known_call({}).tools;  // some are made for tools only
    try {
      text = run(known, 0).text;
    } catch (const Error&) {
    }
    if (text.empty()) throw;
  }
  const size_t question = text.find(talk[0].content), answer = text.find(talk[1].content),
               second = text.find(talk[2].content);
  if (second == std::string::npos || answer > second || question > answer)
    fail("the chat template does not write the messages it is given");
  if (thoughts_ == nullptr) thoughts_ = written_tags(known);
  const auto between = [&](size_t from, size_t message, size_t to) {
    const size_t begin = from + talk[message].content.size();
    return std::string_view(text).substr(begin, to - begin);
  };
  const std::string_view asks = between(question, 0, answer), ends = between(answer, 1, second);
  ends_ = marks_ = marks_in(ends);
  std::vector<std::string> before_reply = marks_in(asks);
  erase_unopened(before_reply, text);
  for (const std::string& mark : before_reply) add(marks_, mark);
  if (before_reply.empty()) {
    const size_t last = asks.find_last_not_of(' ');  // words, such as "\n\nAssistant:"
    if (asks.find_first_not_of(" \n") != std::string_view::npos)
      add(marks_, std::string(asks.substr(0, last + 1)));
  }
  if (thoughts_ != nullptr)  // a reply does not end with its thought
    std::erase_if(marks_, [&](const std::string& mark) {
      return mark == thoughts_->open || mark == thoughts_->close;
    });
  for (const std::string* token : {&tokens_.bos, &tokens_.eos})
    if (!token->empty() && text.find(*token) != std::string::npos) add(marks_, *token);
  if (const ReplyChannels* channels = reply_channels(calls_)) {
    ends_ = channels->stops;
    for (const std::string& stop : ends_) add(marks_, stop);
  }
  add(ends_, tokens_.eos);
  stops_ = ends_;
  // A reply that ran on into another mark could not be sent back.
  if (reply_channels(calls_) == nullptr)
    for (const std::string& mark : marks_) add(stops_, mark);
  style_ = call_style();
  if (calls_ == ToolCallForm::mistral) style_.ids = CallIds::nine_letters;
  if (calls_ == ToolCallForm::kimi) style_.ids = CallIds::of_functions;
  style_.thinking = !writes_thought("reasoning_content") && writes_thought("thinking");
}

// Some templates make the tags of parts.
const ThoughtTags* ChatTemplate::written_tags(ChatRequest known) const {
  known.ask = true;
  try {
    return thought_tags(run(known, 0).text);
  } catch (const Error&) {
    return nullptr;
  }
}

// What stands in the prompt is surer than what the template names.
ReplySyntax ChatTemplate::reply_syntax(bool with_calls, const ThoughtTags* opened) const {
  if (reply_channels(calls_) != nullptr) return {.calls = calls_};
  return {.calls = with_calls ? calls_ : ToolCallForm::none,
          .tags = opened != nullptr ? opened : thoughts_,
          .in_thought = opened != nullptr};
}

bool ChatTemplate::writes_thought(const char* key) const {
  try {
    return run(known_call(style_, key), 0).text.find(kKnownThought) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

// Takes the way in which a call comes out whole: a template may join the arguments to a text, or
// write what Python makes of a dict, or "None". Some write no calls; those must stand None, or not.
CallStyle ChatTemplate::call_style() const {
  struct Trial {
    bool written = false, whole = false;
    size_t nones = 0;
  };
  const auto trial = [&](bool as_text, bool empty) -> Trial {
    try {
      const std::string text = run(known_call({as_text, empty}), 0).text;
      const auto holds = [&](const char* part) { return text.find(part) != std::string::npos; };
      const bool whole =
          holds("aneedle") && holds("avalue") && !holds("'aneedle'") && !holds("\\\"aneedle");
      return {true, whole, count_of(text, "None")};
    } catch (const Error&) {
      return {};
    }
  };
  const Trial none = trial(false, false), empty = trial(false, true);
  const CallStyle fallback{false, empty.written && !none.written};
  if (none.whole && (!empty.whole || none.nones <= empty.nones)) return {false, false};
  if (empty.whole) return {false, true};
  const Trial text_none = trial(true, false), text_empty = trial(true, true);
  if (text_none.whole && (!text_empty.whole || text_none.nones <= text_empty.nones))
    return {true, false};
  return text_empty.whole ? CallStyle{true, true} : fallback;
}

jinja::Rendered ChatTemplate::run(std::span<const Message> messages, bool ask,
                                  std::time_t now) const {
  ChatRequest request;
  request.messages = styled(messages_value(messages), style_);
  request.ask = ask;
  return run(request, now);
}

jinja::Rendered ChatTemplate::run(const ChatRequest& request, std::time_t now) const {
  jinja::Variables variables = {{"messages", request.messages},
                                {"tools", request.tools},
                                {"documents", {}},
                                {"add_generation_prompt", request.ask}};
  if (!tokens_.bos.empty()) variables.emplace_back("bos_token", tokens_.bos);
  if (!tokens_.eos.empty()) variables.emplace_back("eos_token", tokens_.eos);
  variables.insert(variables.end(), request.extra.begin(), request.extra.end());
  for (const auto& variable : variables_)
    if (std::none_of(request.extra.begin(), request.extra.end(),
                     [&](const auto& given) { return given.first == variable.first; }))
      variables.push_back(variable);
  const bool other = with_tools_ && request.tools.truth();
  return (other ? *with_tools_ : template_).render(variables, {.now = now});
}

std::string ChatTemplate::render(const ChatRequest& request) const {
  refuse_marks(request, marks_);
  ChatRequest taken = request;
  try {
    if (request.goes_on) taken.messages = with_last_content(request, kGoesOn);
    taken.messages = styled(taken.messages, style_);
    std::string text = run(taken, std::time(nullptr)).text;
    if (request.goes_on) end_with_content(text, of_last_message(request, "content"));
    return text;
  } catch (const Error& e) {
    fail_usage("{}", e.what());
  }
}

void ChatTemplate::check(std::span<const Message> messages) const {
  if (messages.empty()) fail_usage("a dialogue needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content, thought] = messages[i];
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

void ChatTemplate::set_variables(jinja::Variables variables) {
  ChatRequest request;
  request.extra = std::move(variables);
  refuse_marks(request, marks_);
  variables_ = std::move(request.extra);
}

std::string ChatTemplate::prompt(std::span<const Message> messages) const {
  check(messages);
  return run(messages, true, std::time(nullptr)).text;
}

ChatTemplate chat_template(const Tokenizer& tokenizer) {
  const std::string jinja = chat_template_of(tokenizer);
  if (jinja.empty()) return {chat_template_jinja(), {}};
  return {jinja,
          {text_of(tokenizer, tokenizer.special().bos), end_text(tokenizer)},
          chat_template_of(tokenizer, "tool_use")};
}

}  // namespace moe
