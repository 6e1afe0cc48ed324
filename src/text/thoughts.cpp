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
ThoughtPlace place_of_thought(const ReplySyntax& syntax, string_view text, bool whole,
                              ThoughtSearch& search) {
  using enum ThoughtPlace::State;
  const string_view open_tag = syntax.tags->open, close_tag = syntax.tags->close;
  const size_t first = search.begin.begin(text);
  const string_view shown = text.substr(first);
  const bool opened = shown.starts_with(open_tag);
  if (!opened && !whole && open_tag.starts_with(shown)) return {.state = undecided};
  if (!opened && !syntax.in_thought) return {};
  const size_t begin = opened ? first + open_tag.size() : 0;
  const size_t end = search.end.in(text, begin);
  if (!search.end.found()) return {open, begin, whole ? text.size() : end, text.size()};
  return {closed, begin, end, end + close_tag.size()};
}

ThoughtPlace place_of_thought(const ReplySyntax& syntax, string_view text) {
  ThoughtSearch search(syntax);
  return place_of_thought(syntax, text, true, search);
}

// Channels have thoughts of their own, and no tags.
bool has_tags(const ReplySyntax& syntax) {
  return syntax.tags != nullptr && reply_channels(syntax.calls) == nullptr;
}

}  // namespace

ThoughtSearch::ThoughtSearch(const ReplySyntax& syntax)
    : end(has_tags(syntax) ? syntax.tags->close : string_view()) {}

std::optional<size_t> after_thought(const ReplySyntax& syntax, string_view text,
                                    ThoughtSearch& search) {
  using enum ThoughtPlace::State;
  if (!has_tags(syntax)) return 0;
  const ThoughtPlace at = place_of_thought(syntax, text, false, search);
  if (at.state == undecided || at.state == open) return std::nullopt;
  return at.behind;
}

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

const ThoughtTags* leaves_thought_open(string_view begun) {
  for (const ThoughtTags& row : kThoughtTags)
    if (const size_t at = begun.rfind(row.open);
        at != string_view::npos && begun.find(row.close, at) == string_view::npos)
      return &row;
  return nullptr;
}

ParsedReply parse_reply(const ReplySyntax& syntax, string_view text) {
  static const ToolArguments kNone;
  const ToolArguments& arguments = syntax.arguments == nullptr ? kNone : *syntax.arguments;
  const auto read_rest = [&](string_view rest) {
    return parse_reply(syntax.calls, rest, arguments);
  };
  if (!has_tags(syntax)) return read_rest(text);
  const ThoughtPlace at = place_of_thought(syntax, text);
  if (at.state == ThoughtPlace::State::none) return read_rest(text);
  const bool closed = at.state == ThoughtPlace::State::closed;
  if (!syntax.apart) {
    ParsedReply reply = closed ? read_rest(text.substr(at.behind)) : ParsedReply();
    reply.content.insert(0, text.substr(0, at.behind));
    return reply;
  }
  ParsedReply reply = closed ? read_rest(trimmed_left(text.substr(at.behind))) : ParsedReply();
  reply.thought = trimmed(text.substr(at.begin, at.end - at.begin));
  return reply;
}

size_t thought_bytes(const ReplySyntax& syntax, string_view text) {
  return has_tags(syntax) ? place_of_thought(syntax, text).behind : 0;
}

ReplyReader::ReplyReader(const ReplySyntax& syntax)
    : syntax_(syntax), search_(syntax), content_(syntax.calls) {
  if (const ReplyChannels* channels = reply_channels(syntax.calls)) channels_ = channels->reader();
}

// The content from there on; what stands before is content too unless thoughts are apart.
ReplyReader::Certain ReplyReader::read_rest(string_view text, size_t from) {
  const size_t size = content_.certain(text.substr(from));
  return {.content = syntax_.apart ? text.substr(from, size) : text.substr(0, from + size)};
}

ReplyReader::Certain ReplyReader::read(string_view text) {
  if (channels_ != nullptr) {
    channels_->add(text.substr(given_));
    given_ = text.size();
    return {channels_->reply().thought, channels_->reply().content};
  }
  if (!has_tags(syntax_)) return read_rest(text, 0);
  const ThoughtPlace at = place_of_thought(syntax_, text, false, search_);
  if (at.state == ThoughtPlace::State::none) return read_rest(text, 0);
  if (at.state == ThoughtPlace::State::undecided) return {};
  const bool closed = at.state == ThoughtPlace::State::closed;
  if (!syntax_.apart)
    return closed ? read_rest(text, at.behind) : Certain{.content = text.substr(0, at.behind)};
  Certain certain = closed ? read_rest(text, rest_.begin(text, at.behind)) : Certain();
  const size_t begin = thought_.begin(text.substr(0, at.end), at.begin),
               end = thought_.end(text, at.end);
  if (end > begin) certain.thought = text.substr(begin, end - begin);
  return certain;
}

int64_t ReplyReader::looked() const {
  return (channels_ == nullptr ? 0 : channels_->looked()) + search_.begin.looked() +
         search_.end.looked() + thought_.looked() + rest_.looked() + content_.looked();
}

}  // namespace moe
