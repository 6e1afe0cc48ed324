// A message is <|start|>ROLE<|channel|>CHANNEL<|message|>TEXT and what ends it. The first begins
// without the role, which the prompt has. Whom a message is for, " to=NAME", stands behind the role
// or the channel, and what it holds, "json", behind the channel or <|constrain|>.
#include "text/harmony.h"

#include <algorithm>
#include <string>

#include "text/call_text.h"

namespace moe {
namespace {

using std::string_view;

enum class Mark { start, channel, constrain, message, end, call, done };
struct MarkText {
  Mark mark;
  string_view text;
};
constexpr MarkText kMarks[] = {
    {Mark::start, "<|start|>"},     {Mark::channel, "<|channel|>"},
    {Mark::message, "<|message|>"}, {Mark::constrain, "<|constrain|>"},
    {Mark::end, "<|end|>"},         {Mark::call, "<|call|>"},
    {Mark::done, "<|return|>"},
};
constexpr string_view kHeaderBlanks = " \t\r\n";
constexpr string_view kTo = "to=", kFunctions = "functions.";

string_view next_word(string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kHeaderBlanks), text.size()));
  const string_view word = text.substr(0, text.find_first_of(kHeaderBlanks));
  text.remove_prefix(word.size());
  return word;
}

string_view recipient_in(string_view field) {
  for (string_view word = next_word(field); !word.empty(); word = next_word(field))
    if (word.starts_with(kTo)) return word.substr(kTo.size());
  return {};
}

// Where no message has begun: whether this is text of no header, however it goes on.
bool is_plain(string_view text) {
  const string_view word = next_word(text);
  return !word.empty() && !word.starts_with(kTo) && !kTo.starts_with(word);
}

void append(std::string& to, bool& new_part, string_view text) {
  if (text.empty()) return;
  if (new_part && !to.empty()) to += '\n';
  new_part = false;
  to += text;
}

class Reader {
 public:
  void take(string_view text) {
    if (place_ == Place::role && is_plain(text)) place_ = Place::plain;
    switch (place_) {
      case Place::role:
      case Place::started: role_ = text; return;
      case Place::channel: channel_ = text; return;
      case Place::constrain: return;
      case Place::plain: append(reply_.content, new_content_, text); return;
      case Place::body:
        body_ = text;
        show();
        return;
    }
  }

  void take(Mark mark) {
    switch (mark) {
      case Mark::channel:
        if (place_ != Place::role && place_ != Place::started) end_message(Place::role);
        place_ = Place::channel;
        return;
      case Mark::constrain:
        if (place_ == Place::channel) place_ = Place::constrain;
        return;
      case Mark::message: begin_body(); return;
      case Mark::start: end_message(Place::started); return;
      case Mark::end:
      case Mark::call:
      case Mark::done: end_message(Place::role); return;
    }
  }

  // The last message has no mark that ends it.
  ParsedReply whole() {
    end_message(Place::role);
    return std::move(reply_);
  }
  ParsedReply so_far() { return std::move(reply_); }

 private:
  enum class Place {
    role,       // where a header may begin, or plain text
    started,    // behind <|start|>: a header begins
    channel,    // behind <|channel|>
    constrain,  // behind <|constrain|>
    body,       // behind <|message|>
    plain       // in text that no header opened
  };

  void begin_body() {
    if (place_ == Place::body || place_ == Place::plain) end_message(Place::role);
    string_view field = channel_;
    const string_view channel = next_word(field);
    string_view to = recipient_in(field);
    if (to.empty()) to = recipient_in(role_);
    thinks_ = channel == "analysis";
    calls_ = to.starts_with(kFunctions) ? to.substr(kFunctions.size()) : string_view();
    place_ = Place::body;
    new_thought_ = new_content_ = true;
  }

  // What is for a tool is a call, or not, once it is whole.
  void show() {
    if (!calls_.empty()) return;
    if (thinks_) append(reply_.thought, new_thought_, body_);
    else append(reply_.content, new_content_, body_);
    body_ = {};
  }

  void end_message(Place next) {
    if (place_ == Place::body && !calls_.empty()) {
      if (auto call = tool_call(calls_, body_)) {
        reply_.calls.push_back(std::move(*call));
      } else {
        calls_ = {};
        show();
      }
    }
    place_ = next;
    role_ = channel_ = body_ = calls_ = {};
    new_content_ = true;
  }

  ParsedReply reply_;
  Place place_ = Place::role;
  string_view role_, channel_, body_, calls_;  // of the message under way; calls_: the tool's name
  bool thinks_ = false, new_thought_ = true, new_content_ = true;
};

}  // namespace

ParsedReply parse_harmony(string_view text, bool whole) {
  Reader reader;
  take_by_marks(
      text, kMarks, whole, [&](string_view inside, bool) { reader.take(inside); },
      [&](const MarkText& mark) { reader.take(mark.mark); });
  return whole ? reader.whole() : reader.so_far();
}

}  // namespace moe
