// Thoughts that a reply has between tags, <think> ... </think>: which tags a model writes, which
// its chat template tells, and a reply taken apart into thought, content and calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
// Those of a thought that the beginning of a reply opens and does not close; null: it has none.
const ThoughtTags* leaves_thought_open(std::string_view begun);

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

// How far the looking for a thought has come.
struct ThoughtSearch {
  explicit ThoughtSearch(const ReplySyntax&);

  GrowingTrim begin{kReplySpace};
  GrowingSearch end;
};
// Where what follows the thought of a reply under way begins; 0: it has none; nothing: it goes on,
// or may begin yet. Each time with what was given before, and more.
std::optional<size_t> after_thought(const ReplySyntax&, std::string_view text, ThoughtSearch&);

// Of a reply that grows what is certain whatever follows: thought and content of the whole reply
// begin with it. It keeps what can no longer change, so that reading a reply piece by piece takes a
// time linear in its length.
class ReplyReader {
 public:
  explicit ReplyReader(const ReplySyntax&);

  // Views of the text that was given, or of this, until it is read on.
  struct Certain {
    std::string_view thought, content;
  };
  // `text`: the reply so far, which begins with what it was before.
  Certain read(std::string_view text);
  // Bytes, each as often as it was looked at.
  int64_t looked() const;

 private:
  Certain read_rest(std::string_view text, size_t from);

  ReplySyntax syntax_;
  std::unique_ptr<ChannelReader> channels_;  // null: a form without
  size_t given_ = 0;                         // bytes that it was given
  ThoughtSearch search_;
  GrowingTrim thought_{kReplySpace}, rest_{kReplySpace};
  ContentReader content_;
};
// The bytes of a whole reply to where its thought has ended, tags among them; 0: it has none.
size_t thought_bytes(const ReplySyntax&, std::string_view text);

}  // namespace moe
