// A message is <|begin|>ROLE, a mark that says what it holds, the text, and what ends it. The first
// begins without the role, which the prompt has. Calls are <|tool_call:begin|>ID<|tool_call:name|>
// NAME<|tool_call:args|>{...}<|tool_call:end|>, one behind the other.
#include "text/solar.h"

#include <string>

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

// `ended`: a mark follows, or nothing more can.
void take_part(SolarPart part, string_view text, bool ended, ParsedReply& reply) {
  switch (part) {
    case SolarPart::role: return;
    case SolarPart::none:
      if (!trimmed(text).empty()) append_part(reply.content, text);
      return;
    case SolarPart::content: append_part(reply.content, text); return;
    case SolarPart::thought: append_part(reply.thought, text); return;
    case SolarPart::calls:
      if (ended) take_calls(text, reply);
      return;
  }
}

}  // namespace

ParsedReply parse_solar(string_view text, bool whole) {
  ParsedReply reply;
  SolarPart part = SolarPart::none;
  take_by_marks(
      text, kSolarMarks, whole,
      [&](string_view inside, bool ended) { take_part(part, inside, ended, reply); },
      [&](const SolarMark& mark) { part = mark.opens; });
  return reply;
}

}  // namespace moe
