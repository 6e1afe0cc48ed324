// Anthropic's Messages API: its requests as chat completions, and its replies. Fields and events
// are those of the types in anthropics/anthropic-sdk-python (src/anthropic/types).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "serve/chat_body.h"
#include "serve/reply_style.h"

namespace moe::serve {

// Throws (usage) what cannot be said as a chat completion, by its name.
ChatBody messages_as_chat(const OrderedJson& request);
// `prompt_tokens`: what a stream says of its prompt before the usage is known.
std::unique_ptr<ReplyStyle> messages_style(int64_t prompt_tokens);

// What POST /v1/messages asks for.
ParsedRequest read_messages(std::string_view body, const Served&);
// Of POST /v1/messages/count_tokens, which may be longer than the model's texts.
int64_t count_messages(std::string_view body, const Served&);

}  // namespace moe::serve
