#include "text/thoughts.h"

#include <algorithm>
#include <string>

#include "text/call_text.h"

namespace moe {
namespace {

using std::string_view;

// In the order in which templates are searched.
constexpr ThoughtTags kThoughtTags[] = {
    {"<think>", "</think>"},                        // Qwen, DeepSeek, GLM and most others
    {"<think:opensource>", "</think:opensource>"},  // Hy3
    {"[THINK]", "[/THINK]"},                        // Magistral, Ministral 3
    {"<|channel>thought", "<channel|>"},            // Gemma 4
};

// `text` without what may become `tag` at its end.
string_view without_part_of(string_view text, string_view tag) {
  for (size_t size = std::min(tag.size() - 1, text.size()); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return text.substr(0, text.size() - size);
  return text;
}

// Where a reply has its thought.
struct ThoughtPlace {
  enum class State {
    none,
    undecided,  // what is there may become the opening tag
    open,       // nothing has ended it
    closed
  };
  State state = State::none;
  size_t begin = 0, end = 0;  // of its text
  size_t behind = 0;          // the closing tag
};

// A model may write the tag once more that the prompt opened.
ThoughtPlace place_of_thought(const ReplySyntax& syntax, string_view text, bool whole) {
  using enum ThoughtPlace::State;
  const auto& [open_tag, close_tag] = *syntax.tags;
  const string_view shown = trimmed_left(text);
  const bool opened = shown.starts_with(open_tag);
  if (!opened && !whole && open_tag.starts_with(shown)) return {.state = undecided};
  if (!opened && !syntax.in_thought) return {};
  const size_t begin = opened ? text.size() - shown.size() + open_tag.size() : 0;
  const size_t end = text.find(close_tag, begin);
  if (end == string_view::npos) return {open, begin, text.size(), text.size()};
  return {closed, begin, end, end + close_tag.size()};
}

ParsedReply read_reply(const ReplySyntax& syntax, string_view text, bool whole) {
  static const ToolArguments kNone;
  const ToolArguments& arguments = syntax.arguments == nullptr ? kNone : *syntax.arguments;
  const auto read_rest = [&](string_view rest) {
    return whole ? parse_reply(syntax.calls, rest, arguments)
                 : parse_reply_so_far(syntax.calls, rest);
  };
  if (syntax.tags == nullptr) return read_rest(text);
  const ThoughtPlace at = place_of_thought(syntax, text, whole);
  if (at.state == ThoughtPlace::State::none) return read_rest(text);
  if (at.state == ThoughtPlace::State::undecided) return {};
  const bool closed = at.state == ThoughtPlace::State::closed;
  if (!syntax.apart) {
    ParsedReply reply = closed ? read_rest(text.substr(at.behind)) : ParsedReply();
    reply.content.insert(0, text.substr(0, at.behind));
    return reply;
  }
  ParsedReply reply = closed ? read_rest(trimmed_left(text.substr(at.behind))) : ParsedReply();
  string_view thought = text.substr(at.begin, at.end - at.begin);
  if (!closed && !whole) thought = without_part_of(thought, syntax.tags->close);
  reply.thought = trimmed(thought);
  return reply;
}

}  // namespace

const ThoughtTags* thought_tags(string_view text) {
  for (const ThoughtTags& row : kThoughtTags)
    if (text.find(row.open) != string_view::npos || text.find(row.close) != string_view::npos)
      return &row;
  return nullptr;
}

const ThoughtTags* opens_thought(string_view prompt) {
  for (const ThoughtTags& row : kThoughtTags)
    if (trimmed_right(prompt).ends_with(row.open)) return &row;
  return nullptr;
}

ParsedReply parse_reply(const ReplySyntax& syntax, string_view text) {
  return read_reply(syntax, text, true);
}

ParsedReply parse_reply_so_far(const ReplySyntax& syntax, string_view text) {
  return read_reply(syntax, text, false);
}

size_t thought_bytes(const ReplySyntax& syntax, string_view text) {
  return syntax.tags == nullptr ? 0 : place_of_thought(syntax, text, true).behind;
}

}  // namespace moe
