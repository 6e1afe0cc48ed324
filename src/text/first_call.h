// Where the first call of a reply under way is whole, for a request that wants no other: whoever
// writes the reply may stop there. What a call is, parse_reply decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/growing_search.h"
#include "text/thoughts.h"
#include "text/tool_calls.h"

namespace moe {

// The places of a text that grows where a call may be whole, from the first to the last.
class CallEnds {
 public:
  explicit CallEnds(ToolCallForm form);

  struct End {
    size_t size = 0;           // of the text up to there
    std::string closing = {};  // what would stand there if no call followed
  };
  // The next one; nothing: none has come. `text` begins with what it was before.
  std::optional<End> next(std::string_view text);

 private:
  struct Mark {
    std::string_view text;
    GrowingSearch search;
    size_t from = 0;
  };
  std::optional<End> next_mark(std::string_view text);
  std::optional<End> next_bracket(std::string_view text);
  bool closes_a_call(char c);

  CallBounds bounds_;
  std::vector<Mark> marks_;
  // Of a form whose calls end with their brackets:
  GrowingSearch begin_;
  size_t at_ = 0;  // what is read next
  int64_t depth_ = 0, calls_depth_ = 0;
  char quote_ = 0;  // that is open
  bool escaped_ = false, begun_ = false;
};

// The reply is read up to each place where its first call may be whole, but no byte more often than
// kMostReadings times, on average: where a reply has very many such places and no call, one is
// found later, or not before the end.
class FirstCall {
 public:
  static constexpr int64_t kMostReadings = 16;

  // The arguments of the syntax outlive this.
  explicit FirstCall(const ReplySyntax& syntax);

  // What follows of the reply. True: its first call is whole, and what comes then is passed over.
  bool add(std::string_view piece);
  // The reply up to there, with that call alone; nothing: it is not whole.
  const std::optional<ParsedReply>& reply() const { return reply_; }
  // Bytes that were read, each as often as it was.
  int64_t looked() const { return looked_; }

 private:
  ReplySyntax syntax_;
  ThoughtSearch thought_;
  CallEnds ends_;
  std::string text_;
  std::optional<ParsedReply> reply_;
  int64_t looked_ = 0;
};

}  // namespace moe
