// A message is <|start|>ROLE<|channel|>CHANNEL<|message|>TEXT and what ends it. The first begins
// without the role, which the prompt has. Whom a message is for, " to=NAME", stands behind the role
// or the channel, and what it holds, "json", behind the channel or <|constrain|>.
#include "text/harmony.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

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

// Where no message has begun: whether a first word that begins so is of no header, however it goes
// on.
bool is_plain(string_view begin) {
  const string_view word = begin.substr(0, kTo.size());
  return !word.empty() && !kTo.starts_with(word.substr(0, word.find_first_of(kHeaderBlanks)));
}

void append(std::string& to, bool& new_part, string_view text) {
  if (text.empty()) return;
  if (new_part && !to.empty()) to += '\n';
  new_part = false;
  to += text;
}

class HarmonyReader : public ChannelReader {
 public:
  void add(string_view piece) override {
    marks_.add(
        piece, [&](string_view text) { take(text); },
        [&](const MarkText& mark) {
          take(mark.mark);
          new_text_ = true;
        });
  }
  // The last message has no mark that ends it.
  void end() override {
    marks_.end([&](string_view text) { take(text); });
    end_message(Place::role);
  }
  int64_t looked() const override { return marks_.looked() + header_.looked(); }

 private:
  enum class Place {
    role,       // where a header may begin, or plain text
    started,    // behind <|start|>: a header begins
    channel,    // behind <|channel|>
    constrain,  // behind <|constrain|>
    body,       // behind <|message|>
    plain       // in text that no header opened
  };

  // A piece of what stands between two marks.
  void take(string_view text) {
    const bool first = std::exchange(new_text_, false);
    switch (place_) {
      case Place::role:
        keep(role_, text, first);
        if (first) header_ = GrowingTrim(kHeaderBlanks);
        if (!is_plain(string_view(role_).substr(header_.begin(role_)))) return;
        place_ = Place::plain;
        append(reply_.content, new_content_, role_);
        return;
      case Place::started: keep(role_, text, first); return;
      case Place::channel: keep(channel_, text, first); return;
      case Place::constrain: return;
      case Place::plain: append(reply_.content, new_content_, text); return;
      case Place::body:
        // What is for a tool is a call, or not, once it is whole.
        if (calls_.empty()) show(text);
        else keep(body_, text, first);
        return;
    }
  }
  static void keep(std::string& to, string_view text, bool first) {
    if (first) to.clear();
    to += text;
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

  void show(string_view text) {
    if (thinks_) append(reply_.thought, new_thought_, text);
    else append(reply_.content, new_content_, text);
  }

  void end_message(Place next) {
    if (place_ == Place::body && !calls_.empty()) {
      if (auto call = tool_call(calls_, body_)) reply_.calls.push_back(std::move(*call));
      else show(body_);
    }
    place_ = next;
    for (std::string* each : {&role_, &channel_, &body_, &calls_}) each->clear();
    new_content_ = true;
  }

  MarkReader<MarkText, std::size(kMarks)> marks_{kMarks};
  Place place_ = Place::role;
  std::string role_, channel_, body_, calls_;  // of the message under way; calls_: the tool's name
  GrowingTrim header_{kHeaderBlanks};          // of role_, where no message has begun
  bool new_text_ = true;                       // a mark has ended what stood before
  bool thinks_ = false, new_thought_ = true, new_content_ = true;
};

}  // namespace

std::unique_ptr<ChannelReader> harmony_reader() { return std::make_unique<HarmonyReader>(); }

}  // namespace moe
