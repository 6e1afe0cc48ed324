// A preference pair: two replies to one prompt, of which one was chosen and the other rejected, as
// an object of JSON Lines in the forms that TRL takes. Values are untrusted.
//
//   {"prompt": "...", "chosen": "...", "rejected": "..."}   texts as they stand, by no template
//   {"prompt": [message, ...], "chosen": [message, ...], "rejected": [message, ...]}
//   without "prompt", or with one that is a string beside lists: whole texts or dialogues, whose
//   common beginning is the prompt
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "text/chat.h"
#include "text/document.h"

namespace moe {

// Whether an object is meant as one: it has "chosen" or "rejected". Fails, naming the object's
// place and the field, where it has only one of them, or a document stands beside them.
bool is_pair(const JsonReader& object);
// Of an object that is one: the chosen text, with the rejected one in it; trained are the replies
// behind the prompt. Fails likewise for a field of another form, replies that are the same,
// dialogues that answer no common prompt.
Document pair_of(const JsonReader& object, const DialogueWriter& write);

// A list of {"role": "...", "content": "..."}.
std::vector<Message> messages_of(const JsonReader& object, const char* field);

}  // namespace moe
