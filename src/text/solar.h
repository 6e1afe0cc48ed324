// The form in which Solar Open writes a reply: messages of which one holds thoughts, one content,
// one calls of tools.
#pragma once

#include <memory>

#include "text/tool_calls.h"

namespace moe {

// Of a reply behind "<|begin|>assistant", the mark that ended it gone. Text outside of messages is
// content. Never fails.
std::unique_ptr<ChannelReader> solar_reader();

}  // namespace moe
