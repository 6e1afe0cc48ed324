// Thoughts that a reply has between tags, <think> ... </think>: which tags a model writes, which
// its chat template tells, and a reply taken apart into thought, content and calls.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/tool_calls.h"

namespace moe {

struct ThoughtTags {
  std::string_view open, close;
};
// Those that stand in a chat template, or in what it wrote; null: none do.
const ThoughtTags* thought_tags(std::string_view text);
// Those that the prompt opened, as some templates do: a reply to it begins inside a thought. Null:
// it does not.
const ThoughtTags* opens_thought(std::string_view prompt);

// How the replies to a prompt are read.
struct ReplySyntax {
  ToolCallForm calls = ToolCallForm::none;   // of those that are taken out of the content
  const ThoughtTags* tags = nullptr;         // around a thought that begins the reply; may be null
  bool apart = true;                         // else it stays in the content, and so do the tags
  bool in_thought = false;                   // the prompt opened it, by these tags
  const ToolArguments* arguments = nullptr;  // of the request's tools; may be null

  // Whether a reply is anything but its text as it stands.
  bool parses() const { return calls != ToolCallForm::none || tags != nullptr; }
};

// Of a whole reply. White space around a thought goes, and so does that between it and the content:
// templates write both where they write a thought. Calls inside a thought are none. A thought that
// nothing ends is all there is. Never fails.
ParsedReply parse_reply(const ReplySyntax&, std::string_view text);
// Of a reply under way what is certain whatever follows: thought and content of the whole reply
// begin with these.
ParsedReply parse_reply_so_far(const ReplySyntax&, std::string_view text);
// The bytes of a whole reply to where its thought has ended, tags among them; 0: it has none.
size_t thought_bytes(const ReplySyntax&, std::string_view text);

}  // namespace moe
