// A chat completion's newer fields in the words that chat templates know. Names and values are
// those of the types in openai/openai-python (src/openai/types/chat).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/chat_request.h"
#include "text/request_field.h"

namespace moe::serve {

// What a template calls the role: few know "developer", which has the place of "system", and some
// would pass over what it says.
std::string template_role(const std::string& role);
// Types of the parts of a content that are texts.
const std::vector<std::string>& text_part_types();

// Sets a variable of the chat template in a chat completion; what it says itself stands before it.
void set_template_variable(OrderedJson& completion, const char* name, const OrderedJson& value);
// Whether the template is to have the model think, under the names that templates know.
void set_thinking(OrderedJson& completion, bool wanted);
// {"type": "enabled", "budget_tokens": N}, "disabled", "adaptive" or "auto", as Anthropic's API has
// it, and those of DeepSeek and GLM: whether the template has the model think, which the latter two
// leave to it. Of a budget the template decides too, as nothing here ends a thought. Usage errors.
void take_thinking(OrderedJson& completion, const RequestField& thinking);
// How hard the model is to think, which a template writes down if it knows how. At "none" it is not
// to think at all, where the template has a switch.
void set_effort(OrderedJson& completion, const std::string& effort);

// What the body of a chat completion has for the model's template: its messages, tools and
// variables, documents, reasoning_effort, thinking and enable_thinking among them. `where` opens
// the messages of its parser. Usage errors, and an ApiError, name the field that is wrong.
ChatRequest read_chat_request(std::string_view body, const std::string& where);

}  // namespace moe::serve
