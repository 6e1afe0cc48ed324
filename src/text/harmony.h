// The form in which gpt-oss writes a reply: messages in channels, of which one holds thoughts, one
// calls of tools, one the answer (openai/harmony, docs/format.md).
#pragma once

#include <string_view>

#include "text/tool_calls.h"

namespace moe {

// What is in a reply behind "<|start|>assistant", the mark that ended it gone. Of one under way
// (`whole` false) what is certain whatever follows, without calls that are not whole. Text outside
// of messages is content. Never fails.
ParsedReply parse_harmony(std::string_view text, bool whole);

}  // namespace moe
