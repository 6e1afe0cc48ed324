// The form in which Solar Open writes a reply: messages of which one holds thoughts, one content,
// one calls of tools.
#pragma once

#include <string_view>

#include "text/tool_calls.h"

namespace moe {

// What is in a reply behind "<|begin|>assistant", the mark that ended it gone. Of one under way
// (`whole` false) what is certain whatever follows. Text outside of messages is content. Never
// fails.
ParsedReply parse_solar(std::string_view text, bool whole);

}  // namespace moe
