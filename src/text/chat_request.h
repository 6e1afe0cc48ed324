// What a client of OpenAI's form asks for: messages as JSON objects, tools, and what else the
// template knows. Its texts and the order of its keys are kept, as templates write both.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/json.h"
#include "text/jinja/jinja.h"

namespace moe {

struct ChatRequest {
  jinja::Value messages;   // a list of dicts; a content is a text or None
  jinja::Value tools;      // a list of dicts, else None
  jinja::Variables extra;  // further variables of the template, such as enable_thinking
  bool ask = true;         // add_generation_prompt
  bool goes_on = false;    // continue_final_message: the reply goes on with the last one's content
};

// Of an object's "messages", "tools", "chat_template_kwargs", "add_generation_prompt" and
// "continue_final_message"; other keys are not looked at. Usage errors name the field:
// messages[2].content. A content that is a list of texts becomes one text with a line end between
// each two.
ChatRequest chat_request(const OrderedJson& body);
// The same of a text, which is parsed within bounds; `where` opens the messages of its parser.
ChatRequest parse_chat_request(const std::string& text, const std::string& where);

// A text of the last message, which chat_request() has seen to: "role" or "content". Empty where it
// is None.
std::string of_last_message(const ChatRequest&, const char* key);
// The messages with `text` behind the last one's content. Usage error: it has none, or has calls
// behind it.
jinja::Value with_last_content(const ChatRequest&, std::string_view text);

// Of the option @chat_template_kwargs: a JSON object's entries as variables of a template; empty:
// none. Usage errors: what is no object, a name that the engine sets itself.
jinja::Variables parse_template_variables(const std::string& json);
inline constexpr const char* kTemplateKwargsHelp =
    "variables of the model's chat template as a JSON object, such as {\"enable_thinking\": false}";

// A usage error where a text or a key in the request holds one of `marks`.
void refuse_marks(const ChatRequest&, std::span<const std::string> marks);

// What ids of calls a model's template takes, and the model knows.
enum class CallIds {
  as_given,
  nine_letters,  // of nine letters and digits: Mistral's
  of_functions,  // functions.NAME:NUMBER, counted through the dialogue: Kimi's, which name no call
                 // otherwise
};

// How a template takes an assistant's message that calls tools.
struct CallStyle {
  bool arguments_as_text = false;  // else a dict, where they are an object
  bool empty_content = false;      // content "" where there is none, else None
  bool thinking = false;           // a thought is read as "thinking", not "reasoning_content"
  CallIds ids = CallIds::as_given;
};
// The messages as a template of this style takes them.
jinja::Value styled(const jinja::Value& messages, const CallStyle&);

}  // namespace moe
