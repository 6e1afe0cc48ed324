// Dialogues to train on, in ChatML, which most open chat models know
// (<|im_start|>ROLE\nCONTENT<|im_end|>\n), and what a tokenizer's config says of dialogues.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/document.h"
#include "text/tokenizer.h"

namespace moe {

inline constexpr const char* kMessageBegin = "<|im_start|>";
inline constexpr const char* kMessageEnd = "<|im_end|>";  // where generation of a reply stops

// What `moe train` writes for a model that has no template, and what stands in for one.
const ChatTemplate& chatml();
// The whole dialogue in ChatML; trained are the assistant's contents, each with what ends it. Usage
// errors: as ChatTemplate::check().
Document chat_document(std::span<const Message>);
// How the dialogues of a model with this tokenizer are written to train on: by its own template,
// which is read when the first comes, else in ChatML. The tokenizer outlives the writer.
using DialogueWriter = std::function<Document(std::span<const Message>)>;
DialogueWriter dialogue_writer(const Tokenizer& tokenizer);
// The same of preference pairs, which are refused where the model has no template.
DialogueWriter pair_writer(const Tokenizer& tokenizer);
// ChatML in Jinja, for tokenizer_config.json: transformers' apply_chat_template gives the
// same bytes.
std::string chat_template_jinja();

// A model's folder says by its tokenizer_config.json that it was trained on dialogues.
enum class Dialogues {
  none,    // no template
  chatml,  // this one, perhaps with more to it
  other,   // one with other marks
};
Dialogues dialogues_of(const Tokenizer&);
// The templates by their names; a single one is "default". Nothing where the config has none.
std::optional<std::map<std::string, std::string>> chat_templates_of(const Tokenizer&);
// The template's text, empty where there is none; of several that one of this name. A single one is
// "default".
std::string chat_template_of(const Tokenizer&, const std::string& name = "default");
// What the config calls eos_token, else the text of the tokenizer's eos; empty where there is none.
std::string end_text(const Tokenizer&);
// Writes the template into the tokenizer's config, or takes any out.
void mark_dialogues(Tokenizer&, bool trained = true);

}  // namespace moe
