// A chat completion's newer fields in the words that chat templates know. Names and values are
// those of the types in openai/openai-python (src/openai/types/chat).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/chat_request.h"

namespace moe::serve {

// What a template calls the role: few know "developer", which has the place of "system", and some
// would pass over what it says.
std::string template_role(const std::string& role);
// Types of the parts of a content that are texts.
const std::vector<std::string>& text_part_types();

// What the body of a chat completion has for the model's template: its messages, tools and
// variables. `where` opens the messages of its parser.
ChatRequest read_chat_request(std::string_view body, const std::string& where);

}  // namespace moe::serve
