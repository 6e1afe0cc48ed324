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

const SolarMark* solar_mark_at(string_view text) {
  for (const SolarMark& each : kSolarMarks)
    if (text.starts_with(each.text)) return &each;
  return nullptr;
}

bool may_become_solar_mark(string_view text) {
  for (const SolarMark& each : kSolarMarks)
    if (each.text.starts_with(text)) return true;
  return false;
}

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
  size_t from = 0;  // of the text that no mark has ended
  for (size_t at = text.find('<'); at != string_view::npos; at = text.find('<', at)) {
    const SolarMark* mark = solar_mark_at(text.substr(at));
    if (mark == nullptr) {
      ++at;
      continue;
    }
    take_part(part, text.substr(from, at - from), true, reply);
    part = mark->opens;
    from = at += mark->text.size();
  }
  string_view rest = text.substr(from);
  if (!whole)
    if (const size_t at = rest.rfind('<');
        at != string_view::npos && may_become_solar_mark(rest.substr(at)))
      rest = rest.substr(0, at);
  take_part(part, rest, whole, reply);
  return reply;
}

}  // namespace moe
