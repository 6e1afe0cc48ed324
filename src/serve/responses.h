// OpenAI's Responses API: its requests as chat completions, and its replies. Nothing is kept from
// one request to the next. Fields and events are those of the types in openai/openai-python
// (src/openai/types/responses).
#pragma once

#include <memory>
#include <string_view>

#include "core/json.h"
#include "serve/chat_body.h"
#include "serve/reply_style.h"

namespace moe::serve {

// Throws (usage, or an ApiError) what cannot be said as a chat completion, by its name.
ChatBody responses_as_chat(const OrderedJson& request);
// A response repeats what the request asked for.
std::unique_ptr<ReplyStyle> responses_style(const OrderedJson& request);

// What POST /v1/responses asks for.
ParsedRequest read_responses(std::string_view body, const Served&);

}  // namespace moe::serve
