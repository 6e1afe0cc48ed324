// What is in a reply: content, thoughts, calls of tools. Each family of models has a form of its
// own, which its chat template tells.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_text.h"
#include "text/growing_search.h"
#include "text/tool_arguments.h"

namespace moe {

struct ToolCall {
  std::string name;
  std::string arguments;  // an object, as JSON text
};

struct ParsedReply {
  std::string content;
  std::string thought;  // in a channel, or between tags (text/thoughts.h)
  std::vector<ToolCall> calls;
};

enum class ToolCallForm {
  none,      // no form that is known here: a reply is content throughout
  hermes,    // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen, Hermes, Granite 4
  hunyuan,   // <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>
  llama3,    // {"name": ..., "parameters": {...}} as the whole reply
  mistral,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}
  deepseek,  // between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>
  granite3,  // <|tool_call|>[{"name": ..., "arguments": {...}}]
  nemotron,  // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kimi,      // between <|tool_call_begin|> and <|tool_call_end|>
  lfm2,      // <|tool_call_start|>[NAME(KEY="VALUE", ...)]<|tool_call_end|>, or a list in JSON
  olmo3,     // <function_calls>NAME(KEY="VALUE", ...)</function_calls>, one call a line
  gemma4,    // <|tool_call>call:NAME{KEY:<|"|>VALUE<|"|>, ...}<tool_call|>
  // Each argument in marks of its own, as bare text (text/marked_calls.h):
  qwen3_coder,    // <tool_call><function=NAME><parameter=KEY>...</function></tool_call>
  glm,            // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>...</tool_call>: 4.5 and later
  hunyuan3,       // as glm, with <tool_sep> behind the name and <tool_calls> around all
  hunyuan3_open,  // the same, every mark with :opensource in it
  minimax,        // <minimax:tool_call><invoke name="NAME"><parameter name="KEY">...
  deepseek_v32,   // the same with other marks
  solar,          // <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME...: text/solar.h
  harmony,  // <|channel|>commentary to=functions.NAME<|message|>{...}: gpt-oss; text/harmony.h
};

// The form in which a model with this chat template writes its calls.
ToolCallForm tool_call_form(std::string_view jinja);

// Takes the calls out of a whole reply. What is no call stays content, as it stands; where calls
// were taken out, white space beside them goes too. Calls inside a thought that opens the reply are
// none; the thought, <think> ... </think>, is left in the content (text/thoughts.h takes out those
// that the template tells of). Bare text becomes a value as `arguments` of the request's tools say.
// Never fails.
ParsedReply parse_reply(ToolCallForm form, std::string_view text,
                        const ToolArguments& arguments = {});

// How much of a reply that grows is content whatever follows, in a form without channels. Looks at
// each byte a bounded number of times.
class ContentReader {
 public:
  explicit ContentReader(ToolCallForm form);

  // Bytes of the reply so far, which begins with what it was before.
  size_t certain(std::string_view text);
  // Bytes, each as often as it was looked at.
  int64_t looked() const {
    return begin_.looked() + group_.looked() + thought_end_.looked() + trim_.looked();
  }

 private:
  bool known_, marked_;  // calls have a form, and marks
  GrowingSearch begin_, group_, thought_end_;
  GrowingTrim trim_{kReplySpace};
};

// Reads a reply in channels as it comes, in pieces of any size.
class ChannelReader {
 public:
  virtual ~ChannelReader() = default;
  virtual void add(std::string_view piece) = 0;
  // Nothing follows: what is under way is whole.
  virtual void end() = 0;
  // Bytes, each as often as it was looked at.
  virtual int64_t looked() const = 0;
  // What is certain of the reply; it only grows. Calls are those that are whole.
  const ParsedReply& reply() const { return reply_; }

 protected:
  ParsedReply reply_;
};

// A form may write thoughts, content and calls into channels, each a message of its own. A reply in
// such a form is parsed even where no tools are offered.
struct ReplyChannels {
  std::vector<std::string> stops;  // end a reply
  std::string message_end;         // ends a message behind which the reply goes on
  std::string content_begin;       // opens a reply that is content and nothing else
  std::string call_end;            // a call is whole there
  std::unique_ptr<ChannelReader> (*reader)();
};
// Null of a form without channels.
const ReplyChannels* reply_channels(ToolCallForm form);

// Where calls of a reply under way may be whole (text/first_call.h).
struct CallBounds {
  std::string_view begin = {};              // opens calls
  std::vector<std::string_view> ends = {};  // marks behind which one may be whole
  // One mark opens several, each of which ends with its own brackets; `close` ends them all.
  bool listed = false;
  std::string_view close = {};
};
// All is empty where a reply has one call at most, and is over with it.
CallBounds call_bounds(ToolCallForm form);

// A reply that has to be a call is written as JSON in every form, so that its arguments can be held
// to their schema: an object {"name": NAME, ARGUMENTS: {...}} behind `begin`, which the prompt ends
// with. Of a single tool it is the arguments alone where the form names the tool before them:
// behind `named`, the tool's name standing there for "NAME".
struct ForcedCall {
  const char* begin;  // null: only a single tool can be forced
  const char* arguments;
  const char* named = nullptr;
};
// Null of `none`.
const ForcedCall* forced_call(ToolCallForm form);
// The call that the object of such a reply is; `name` is empty where the object has it. What is no
// whole object is content.
ParsedReply parse_forced(std::string_view name, std::string_view object);

// What of `all` has not been given yet; `given` bytes of it then have.
std::string take_new(std::string_view all, size_t& given);

// A call, where the name is one word and the arguments are an object in JSON.
std::optional<ToolCall> tool_call(std::string_view name, std::string_view arguments);

}  // namespace moe
