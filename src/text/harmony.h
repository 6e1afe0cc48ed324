// The form in which gpt-oss writes a reply: messages in channels, of which one holds thoughts, one
// calls of tools, one the answer (openai/harmony, docs/format.md).
#pragma once

#include <memory>

#include "text/tool_calls.h"

namespace moe {

// Of a reply behind "<|start|>assistant", the mark that ended it gone. Text outside of messages is
// content. Never fails.
std::unique_ptr<ChannelReader> harmony_reader();

}  // namespace moe
