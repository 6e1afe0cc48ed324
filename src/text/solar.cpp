// A message is <|begin|>ROLE, a mark that says what it holds, the text, and what ends it. The first
// begins without the role, which the prompt has. Calls are <|tool_call:begin|>ID<|tool_call:name|>
// NAME<|tool_call:args|>{...}<|tool_call:end|>, one behind the other.
#include "text/solar.h"

#include <iterator>
#include <string>
#include <utility>

#include "text/call_text.h"

namespace moe {
namespace {

using std::string_view;

enum class SolarPart { none, role, thought, content, calls };
struct SolarMark {
  string_view text;
  SolarPart opens;
};
constexpr SolarMark kSolarMarks[] = {
    {"<|begin|>", SolarPart::role},      {"<|think|>", SolarPart::thought},
    {"<|content|>", SolarPart::content}, {"<|tool_calls|>", SolarPart::calls},
    {"<|end|>", SolarPart::none},        {"<|flush|>", SolarPart::none},
    {"<|calls|>", SolarPart::none},
};

void append_part(std::string& to, string_view text) {
  if (text.empty()) return;
  if (!to.empty()) to += '\n';
  to += text;
}

// What is no call is content.
void take_calls(string_view text, ParsedReply& reply) {
  while (!trimmed(text).empty()) {
    string_view rest = text;
    const auto before = take_until(rest, "<|tool_call:begin|>");
    const auto id = before ? take_until(rest, "<|tool_call:name|>") : std::nullopt;
    const auto name = id ? take_until(rest, "<|tool_call:args|>") : std::nullopt;
    const auto arguments = name ? take_until(rest, "<|tool_call:end|>") : std::nullopt;
    auto call = arguments ? tool_call(*name, *arguments) : std::nullopt;
    if (!call) return append_part(reply.content, text);
    append_part(reply.content, trimmed(*before));
    reply.calls.push_back(std::move(*call));
    text = rest;
  }
}

class SolarReader : public ChannelReader {
 public:
  void add(string_view piece) override {
    marks_.add(
        piece, [&](string_view text) { take(text); },
        [&](const SolarMark& mark) {
          end_text();
          part_ = mark.opens;
        });
  }
  void end() override {
    marks_.end([&](string_view text) { take(text); });
    end_text();
  }
  int64_t looked() const override { return marks_.looked(); }

 private:
  // A piece of what stands between two marks.
  void take(string_view text) {
    switch (part_) {
      case SolarPart::role: return;
      case SolarPart::none:
        // White space alone is nothing.
        kept_ += text;
        if (!begun_ && trimmed(text).empty()) return;
        show(reply_.content, kept_);
        kept_.clear();
        return;
      case SolarPart::content: show(reply_.content, text); return;
      case SolarPart::thought: show(reply_.thought, text); return;
      case SolarPart::calls: kept_ += text; return;
    }
  }
  void show(std::string& to, string_view text) {
    if (std::exchange(begun_, true)) to += text;
    else append_part(to, text);
  }
  void end_text() {
    if (part_ == SolarPart::calls) take_calls(kept_, reply_);
    kept_.clear();
    begun_ = false;
  }

  MarkReader<SolarMark, std::size(kSolarMarks)> marks_{kSolarMarks};
  SolarPart part_ = SolarPart::none;
  std::string kept_;    // what cannot be shown yet
  bool begun_ = false;  // something of this text was shown
};

}  // namespace

std::unique_ptr<ChannelReader> solar_reader() { return std::make_unique<SolarReader>(); }

}  // namespace moe
