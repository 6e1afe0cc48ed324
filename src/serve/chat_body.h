// A request of another API written down as the chat completion that asks for the same: one reader
// (request.h) then checks its values, and one path answers it. What that reader refuses is said in
// the words of the request that came.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "serve/api_error.h"
#include "serve/chat_fields.h"
#include "serve/request.h"
#include "text/request_field.h"

namespace moe::serve {

class ChatBody {
 public:
  // What fields of a chat completion are called in the request, where they are called otherwise.
  using Names = std::vector<std::pair<std::string, std::string>>;

  // Takes over the fields that mean the same in all the APIs.
  ChatBody(const OrderedJson& request, Names names);

  // What the messages are made of, in order. What one role says side by side is one message, but
  // for results of tools. `from`: the field of the request that says it.
  void add_text(const std::string& role, const std::string& text, const std::string& from);
  void add_thought(const std::string& text, const std::string& from);
  // Arguments: an object or its text.
  void add_call(const std::string& id, const std::string& name, const OrderedJson& arguments,
                const std::string& from);
  void add_result(const std::string& id, const std::vector<std::string>& texts,
                  const std::string& from);
  // `tool` has a name, perhaps a description, and under the key `schema` that of its arguments.
  void add_tool(const RequestField& tool, const char* schema);
  // Of a tool that has to be called.
  void choose_tool(const std::string& name);
  void set(const char* key, OrderedJson value) { body_[key] = std::move(value); }
  // For the chat template, as serve/chat_fields.h has it.
  void set_variable(const char* name, const OrderedJson& value) {
    set_template_variable(body_, name, value);
  }
  void think_as(const RequestField& thinking) { take_thinking(body_, thinking); }
  void think_so_hard(const std::string& effort) { set_effort(body_, effort); }

  // The body of the chat completion.
  std::string text() const;
  // As read_chat() and chat_prompt(); whatever they refuse is thrown as an ApiError.
  ParsedRequest read(const Served&) const;
  std::string prompt(const Served&) const;

 private:
  struct Said {
    std::string role, from;
    std::vector<std::string> texts;
    std::string thought, answers;  // the latter: the id of the call that a result belongs to
    OrderedJson calls = OrderedJson::array();
  };
  Said& said_by(const std::string& role, const std::string& from);
  ApiError in_own_words(ApiError) const;
  template <class Read>
  auto reading(Read&& read) const;

  OrderedJson body_ = OrderedJson::object();
  Names names_;
  std::vector<Said> messages_;
};

// A text, or the texts of a list of parts of one of these types.
std::vector<std::string> texts_of(const RequestField& content,
                                  const std::vector<std::string>& types);

}  // namespace moe::serve
