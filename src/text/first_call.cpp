#include "text/first_call.h"

#include <algorithm>
#include <utility>

#include "text/call_text.h"

namespace moe {

using std::string_view;

CallEnds::CallEnds(ToolCallForm form) : bounds_(call_bounds(form)), begin_(bounds_.begin) {
  for (const string_view mark : bounds_.ends) marks_.push_back({mark, GrowingSearch(mark)});
}

std::optional<CallEnds::End> CallEnds::next(string_view text) {
  return bounds_.listed ? next_bracket(text) : next_mark(text);
}

std::optional<CallEnds::End> CallEnds::next_mark(string_view text) {
  Mark* first = nullptr;
  size_t end = 0;
  for (Mark& each : marks_) {
    const size_t behind = each.search.in(text, each.from) + each.text.size();
    if (!each.search.found() || (first != nullptr && behind >= end)) continue;
    first = &each;
    end = behind;
  }
  if (first == nullptr) return std::nullopt;
  first->from = end;
  first->search = GrowingSearch(first->text);
  return End{end};
}

// Behind the mark that opens calls stands a list of them, or one without brackets around it.
std::optional<CallEnds::End> CallEnds::next_bracket(string_view text) {
  const size_t mark = begin_.in(text);
  if (!begin_.found()) return std::nullopt;
  for (at_ = std::max(at_, mark + bounds_.begin.size()); at_ < text.size();)
    if (closes_a_call(text[at_++]))
      return End{at_, (calls_depth_ > 0 ? "]" : "") + std::string(bounds_.close)};
  return std::nullopt;
}

// Texts have quotes as in JSON or as in Python, whose second kind JSON has only within the first.
bool CallEnds::closes_a_call(char c) {
  if (quote_ != 0) {
    const bool escaped = std::exchange(escaped_, c == '\\' && !escaped_);
    if (c == quote_ && !escaped) quote_ = 0;
    return false;
  }
  if (!begun_ && kReplySpace.find(c) == string_view::npos) {
    begun_ = true;
    calls_depth_ = c == '[' ? 1 : 0;
  }
  if (c == '"' || c == '\'') quote_ = c;
  if (c == '(' || c == '[' || c == '{') ++depth_;
  if (depth_ == 0 || (c != ')' && c != ']' && c != '}')) return false;
  return --depth_ == calls_depth_;
}

FirstCall::FirstCall(const ReplySyntax& syntax)
    : syntax_(syntax), thought_(syntax), ends_(syntax.calls) {}

bool FirstCall::add(string_view piece) {
  if (reply_) return true;
  text_ += piece;
  const std::optional<size_t> from = after_thought(syntax_, text_, thought_);
  if (!from) return false;
  while (const auto end = ends_.next(string_view(text_).substr(*from))) {
    const auto size = static_cast<int64_t>(*from + end->size);
    if (looked_ + size > kMostReadings * size) continue;
    looked_ += size;
    ParsedReply reply =
        parse_reply(syntax_, text_.substr(0, static_cast<size_t>(size)) + end->closing);
    if (reply.calls.empty()) continue;
    reply.calls.resize(1);
    reply_ = std::move(reply);
    return true;
  }
  return false;
}

}  // namespace moe
