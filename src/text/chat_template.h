// How a model writes dialogues: the Jinja template that came with it, run (text/jinja/). What parts
// messages, and what ends a reply, is read off what it writes around known messages.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_request.h"
#include "text/document.h"
#include "text/jinja/jinja.h"
#include "text/thoughts.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace moe {

struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  std::string thought = {};  // of an assistant; the template decides whether it is written
};

// What the template calls bos_token and eos_token; undefined there where empty.
struct ChatTokens {
  std::string bos, eos;
};

class ChatTemplate {
 public:
  // Fails, naming the template's line, where it is none, uses what is not known here, or does not
  // write the messages it is given.
  // `with_tools`: another template, for requests that have tools; empty where there is none.
  ChatTemplate(std::string_view jinja, ChatTokens tokens, std::string_view with_tools = "");

  // The dialogue so far and the opening of the assistant's next message. Usage errors: no message,
  // an unknown role (nearest offered), a system message that is not the first, a content that holds
  // a mark, what the template itself refuses.
  std::string prompt(std::span<const Message>) const;
  void check(std::span<const Message>) const;
  // A request, as transformers' apply_chat_template writes it. Usage errors: a text that holds a
  // mark, what the template itself refuses or has no use for.
  std::string render(const ChatRequest&) const;
  // The whole dialogue to train on. Trained are what {% generation %} encloses, in a template that
  // has it; else each reply, from where prompt() ends to behind what ends it. Fails where the two
  // do not go together: a reply would be learned behind what a model never reads. strftime_now
  // gives the same day always, so that a dialogue has the same bytes on every day.
  Document document(std::span<const Message>) const;

  // Further variables of every prompt, such as enable_thinking, which a request's own stand before.
  // Usage error: a text in them holds a mark.
  void set_variables(jinja::Variables variables);

  // What parts messages, so that it may not stand inside one.
  const std::vector<std::string>& marks() const { return marks_; }
  // A model that writes one has ended its reply.
  const std::vector<std::string>& stops() const { return stops_; }
  // How a model with this template writes its calls.
  ToolCallForm calls() const { return calls_; }
  // How replies of such a model are read; their calls only `with_calls`, or where they are in
  // channels, which holds no text that is not parsed. `opened`: a thought that the prompt opened.
  ReplySyntax reply_syntax(bool with_calls, const ThoughtTags* opened = nullptr) const;

 private:
  jinja::Rendered run(const ChatRequest&, std::time_t now) const;
  jinja::Rendered run(std::span<const Message>, bool ask, std::time_t now) const;
  CallStyle call_style() const;
  bool writes_thought(const char* key) const;
  const ThoughtTags* written_tags(ChatRequest known) const;

  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  ChatTokens tokens_;
  jinja::Variables variables_;
  CallStyle style_;
  ToolCallForm calls_;
  const ThoughtTags* thoughts_;  // null: none are told
  std::vector<std::string> marks_, stops_;
  std::vector<std::string> ends_;  // those of them that the template writes behind a reply
};

// Of the tokenizer's config; ChatML where there is none. Fails as ChatTemplate does.
ChatTemplate chat_template(const Tokenizer& tokenizer);

}  // namespace moe
