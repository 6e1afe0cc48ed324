// Calls of tools in what a model wrote. Each family of models has a form of its own, which its chat
// template tells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe {

struct ToolCall {
  std::string name;
  std::string arguments;  // an object, as JSON text
};

struct ParsedReply {
  std::string content;  // thoughts, such as <think> ... </think>, are left in it
  std::vector<ToolCall> calls;
};

enum class ToolCallForm {
  none,      // no form that is known here: a reply is content throughout
  hermes,    // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen, Hermes, Granite 4
  llama3,    // {"name": ..., "parameters": {...}} as the whole reply
  mistral,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}
  deepseek,  // between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>
  granite3,  // <|tool_call|>[{"name": ..., "arguments": {...}}]
  nemotron,  // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kimi,      // between <|tool_call_begin|> and <|tool_call_end|>
};

// The form in which a model with this chat template writes its calls.
ToolCallForm tool_call_form(std::string_view jinja);

// Takes the calls out of a whole reply. What is no call stays content, as it stands; where calls
// were taken out, white space beside them goes too. Calls inside a thought that opens the reply are
// none. Never fails.
ParsedReply parse_reply(ToolCallForm form, std::string_view text);

// A reply that has to be a call is `begin`, an object {"name": NAME, ARGUMENTS: {...}}, and `end`.
struct ForcedCall {
  const char* begin;
  const char* arguments;
  const char* end;
};
// Null of a form whose calls are no such objects.
const ForcedCall* forced_call(ToolCallForm form);

// How many bytes of a reply under way are content whatever follows: parse_reply's content of the
// whole reply begins with them.
size_t content_prefix(ToolCallForm form, std::string_view text);

}  // namespace moe
