// Dialogues as text, by a template (text/chat_template.h): ChatML where nothing else is asked for,
// which most open chat models know
// (<|im_start|>ROLE\nCONTENT<|im_end|>\n).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/document.h"
#include "text/tokenizer.h"

namespace moe {

struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

inline constexpr const char* kMessageBegin = "<|im_start|>";
inline constexpr const char* kMessageEnd = "<|im_end|>";  // where generation of a reply stops

// Usage errors: no message, an unknown role (nearest offered), a system message that is not the
// first or that the template cannot say, content that holds what parts messages.
void check_messages(std::span<const Message>, const ChatTemplate& = chatml());
// The whole dialogue; trained are the assistant's contents, each with what ends it.
Document chat_document(std::span<const Message>, const ChatTemplate& = chatml());
// The dialogue so far and the opening of the assistant's next message.
std::string chat_prompt(std::span<const Message>, const ChatTemplate& = chatml());
// ChatML in Jinja, for tokenizer_config.json: transformers' apply_chat_template gives chat_prompt's
// bytes.
std::string chat_template_jinja();

// A model's folder says by its tokenizer_config.json that it was trained on dialogues.
enum class Dialogues {
  none,    // no template
  chatml,  // this one, perhaps with more to it
  other,   // one with other marks
};
Dialogues dialogues_of(const Tokenizer&);
// The template's text, empty where there is none; of several that one named "default".
std::string chat_template_of(const Tokenizer&);
// What the config calls eos_token, else the text of the tokenizer's eos; empty where there is none.
std::string end_text(const Tokenizer&);
// Writes the template into the tokenizer's config, or takes any out.
void mark_dialogues(Tokenizer&, bool trained = true);

}  // namespace moe
