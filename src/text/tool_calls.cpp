#include "text/tool_calls.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.h"
#include "text/call_text.h"
#include "text/harmony.h"
#include "text/literals.h"
#include "text/marked_calls.h"
#include "text/solar.h"

namespace moe {
namespace {

using Calls = std::optional<std::vector<ToolCall>>;
using std::string_view;

constexpr string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr string_view kPythonTag = "<|python_tag|>";
constexpr size_t kMostOpenings = 32;  // of calls, before one mark that closes them

// ---- what stands in a call ----------------------------------------------------------------------

// Some models write the object once more as a text.
std::optional<std::string> arguments_of(const OrderedJson& given) {
  if (given.is_object()) return given.dump();
  if (!given.is_string()) return std::nullopt;
  const auto& text = given.get_ref<const std::string&>();
  const auto inside = json_of(text);
  return inside && inside->is_object() ? std::optional(text) : std::nullopt;
}

Calls one_call(string_view name, string_view arguments) {
  auto call = tool_call(name, arguments);
  if (!call) return std::nullopt;
  return std::vector<ToolCall>{std::move(*call)};
}

std::optional<ToolCall> call_of(const OrderedJson& object, bool needs_arguments) {
  if (!object.is_object()) return std::nullopt;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->empty()) return std::nullopt;
  ToolCall call{name->get<std::string>(), "{}"};
  if (call.name.empty()) return std::nullopt;
  for (const char* key : {"arguments", "parameters"})
    if (const auto given = object.find(key); given != object.end() && !given->is_null()) {
      auto text = arguments_of(*given);
      if (!text) return std::nullopt;
      call.arguments = std::move(*text);
      return call;
    }
  return needs_arguments ? std::nullopt : std::optional(std::move(call));
}

// {"name": ..., "arguments": {...}}, or a list of such.
Calls json_calls(string_view body) {
  const auto json = json_of(trimmed(body));
  if (!json || (json->is_array() && json->empty())) return std::nullopt;
  std::vector<ToolCall> calls;
  for (const OrderedJson& each : json->is_array() ? *json : OrderedJson::array({*json})) {
    auto call = call_of(each, false);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  return calls;
}

Calls llama3_call(string_view body) {
  const auto json = json_of(body);
  auto call = json ? call_of(*json, true) : std::nullopt;
  if (!call) return std::nullopt;
  return std::vector<ToolCall>{std::move(*call)};
}

Calls mistral_calls(string_view body) {
  body = trimmed_left(body);
  if (body.starts_with('[') || body.starts_with('{')) return json_calls(body);
  auto name = take_until(body, "[ARGS]");
  if (!name) return std::nullopt;
  return one_call(name->substr(0, name->find("[CALL_ID]")), body);
}

// NAME<sep>{...}, or function<sep>NAME and the object as a block of code.
Calls deepseek_call(string_view body) {
  const auto first = take_until(body, "<｜tool▁sep｜>");
  if (!first) return std::nullopt;
  if (trimmed(*first) != "function") return one_call(*first, body);
  const auto name = take_until(body, "```json");
  body = trimmed_right(body);
  if (!name || !body.ends_with("```")) return std::nullopt;
  body.remove_suffix(3);
  return one_call(*name, body);
}

// functions.NAME:NUMBER, the mark and the object.
Calls kimi_call(string_view body) {
  auto name = take_until(body, "<|tool_call_argument_begin|>");
  if (!name) return std::nullopt;
  *name = trimmed(*name);
  take_prefix(*name, "functions.");
  return one_call(name->substr(0, name->rfind(':')), body);
}

// A list as Python writes it, or in JSON.
Calls lfm2_calls(string_view body) {
  Calls calls = json_calls(body);
  return calls ? std::move(calls) : python_calls(body);
}

// call:NAME and the object, in JSON or in Gemma's own way.
Calls gemma4_call(string_view body) {
  body = trimmed(body);
  if (!take_prefix(body, "call:")) return std::nullopt;
  const size_t open = body.find('{');
  if (open == string_view::npos) return std::nullopt;
  const string_view name = body.substr(0, open), object = body.substr(open);
  if (Calls calls = one_call(name, object)) return calls;
  const auto arguments = gemma_object(object);
  return arguments ? one_call(name, one_line_json(*arguments)) : std::nullopt;
}

// ---- families -----------------------------------------------------------------------------------

struct Family {
  ToolCallForm form;
  string_view told_by;      // stands in the template
  string_view begin, end;   // around a call; without an end it goes on to the next or the reply's
  string_view group, done;  // around all of them
  Calls (*read)(string_view body);  // null: each argument has marks (text/marked_calls.h)
  bool listed = false;              // behind one mark there may be several
};

// In the order in which templates are searched.
constexpr Family kFamilies[] = {
    {ToolCallForm::deepseek, "<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>",
     "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_call},
    {ToolCallForm::kimi, "<|tool_call_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>",
     "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_call},
    {ToolCallForm::mistral, "[TOOL_CALLS]", "[TOOL_CALLS]", "", "", "", mistral_calls, true},
    {ToolCallForm::granite3, "<|tool_call|>", "<|tool_call|>", "", "", "", json_calls, true},
    {ToolCallForm::nemotron, "<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>", "", "", json_calls, true},
    // A call is a message among others, so that the whole reply is read by ReplyChannels::parse.
    {ToolCallForm::solar, "<|tool_call:begin|>", "", "", "", "", nullptr},
    {ToolCallForm::harmony, "<|channel|>analysis<|message|>", "", "", "", "", nullptr},
    {ToolCallForm::gemma4, "<|tool_call>", "<|tool_call>", "<tool_call|>", "", "", gemma4_call},
    {ToolCallForm::lfm2, "<|tool_call_start|>", "<|tool_call_start|>", "<|tool_call_end|>", "", "",
     lfm2_calls, true},
    // LFM2's first template shows the tools and writes no calls.
    {ToolCallForm::lfm2, "<|tool_list_start|>", "", "", "", "", nullptr},
    {ToolCallForm::deepseek_v32, "｜DSML｜", "<｜DSML｜invoke name=", "",
     "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", nullptr},
    {ToolCallForm::minimax, "<minimax:tool_call>", "<invoke name=", "", "<minimax:tool_call>",
     "</minimax:tool_call>", nullptr},
    // The call's own mark may be missing: these models forget it now and then.
    {ToolCallForm::qwen3_coder, "<parameter=", "<function=", "", "<tool_call>", "</tool_call>",
     nullptr},
    {ToolCallForm::hunyuan3_open, ":opensource", "<tool_call:opensource>", "",
     "<tool_calls:opensource>", "</tool_calls:opensource>", nullptr},
    {ToolCallForm::hunyuan3, "<tool_sep>", "<tool_call>", "", "<tool_calls>", "</tool_calls>",
     nullptr},
    {ToolCallForm::glm, "<arg_key>", "<tool_call>", "", "", "", nullptr},
    // Others with marks of their own.
    {ToolCallForm::none, "<function=", "", "", "", "", nullptr},
    {ToolCallForm::none, "<invoke name=", "", "", "", "", nullptr},
    {ToolCallForm::olmo3, "<function_calls>", "<function_calls>", "</function_calls>", "", "",
     python_calls, true},
    {ToolCallForm::hermes, "<tool_call>", "<tool_call>", "</tool_call>", "", "", json_calls},
    {ToolCallForm::hunyuan, "<tool_calls>", "<tool_calls>", "</tool_calls>", "", "", json_calls,
     true},
    {ToolCallForm::llama3, R"({"name": function name, "parameters": )", "", "", "", "",
     llama3_call},
};

const Family* family_of(ToolCallForm form) {
  for (const Family& row : kFamilies)
    if (row.form == form && (row.read != nullptr || !row.begin.empty())) return &row;
  return nullptr;
}

// Behind a thought that opens the reply; nothing while it goes on.
std::optional<size_t> behind_thought(string_view text) {
  if (!trimmed_left(text).starts_with(kThinkOpen)) return 0;
  const size_t end = text.find(kThinkClose);
  if (end == string_view::npos) return std::nullopt;
  return end + kThinkClose.size();
}

// What stands around the calls, without the marks and white space beside them.
std::string around_calls(const Family& family, const std::vector<string_view>& around) {
  std::string content;
  for (size_t i = 0; i < around.size(); ++i) {
    string_view part = around[i];
    if (i > 0) {
      part = trimmed_left(part);
      if (take_prefix(part, family.done)) part = trimmed_left(part);
    }
    if (i + 1 < around.size()) {
      part = trimmed_right(part);
      if (!family.group.empty() && part.ends_with(family.group)) {
        part.remove_suffix(family.group.size());
        part = trimmed_right(part);
      }
    }
    if (part.empty()) continue;
    if (!content.empty()) content += '\n';
    content += part;
  }
  return content;
}

ParsedReply whole_reply(const Family& family, string_view text) {
  string_view body = trimmed(text);
  if (take_prefix(body, kPythonTag)) body = trimmed_left(body);
  if (Calls calls = family.read(body)) return {.calls = std::move(*calls)};
  return {.content = std::string(text)};
}

struct TakenCalls {
  std::vector<ToolCall> calls;
  size_t end;  // behind them
};

// Reads what stands behind the marks that may open a call, from the first to the last.
class CallTaker {
 public:
  CallTaker(const Family& family, string_view text, const ToolArguments& arguments)
      : family_(family), text_(text) {
    if (family.read == nullptr) marked_.emplace(family.form, text, arguments);
  }

  // Of the mark that ends at `body`; nothing where no call follows.
  std::optional<TakenCalls> take(size_t body) {
    if (marked_) {
      auto found = marked_->at(body);
      if (!found) return std::nullopt;
      return TakenCalls{{std::move(found->call)}, found->end};
    }
    const string_view closing = family_.end.empty() ? family_.begin : family_.end;
    if (end_ < body) {
      end_ = std::min(text_.find(closing, body), text_.size());
      openings_ = 0;
    }
    if (!worth_reading(body)) return std::nullopt;
    Calls calls = family_.read(text_.substr(body, end_ - body));
    if (!calls) return std::nullopt;
    const size_t behind =
        family_.end.empty() ? end_ : std::min(end_ + closing.size(), text_.size());
    return TakenCalls{std::move(*calls), behind};
  }

 private:
  // Each opening before one closing mark is read up to there. Of more than kMostOpenings, which
  // only a text has that is made for it, the last one alone, so that the time stays linear in the
  // text.
  bool worth_reading(size_t body) {
    if (++openings_ <= kMostOpenings) return true;
    if (openings_ == kMostOpenings + 1)
      last_ = text_.rfind(family_.begin, end_ - family_.begin.size()) + family_.begin.size();
    return body == last_;
  }

  const Family& family_;
  string_view text_;
  std::optional<MarkedCalls> marked_;
  size_t end_ = 0;       // where the mark stands that closes what was read last
  size_t openings_ = 0;  // marks before it that were read and opened no call
  size_t last_ = 0;      // where the last of them ends, once there are too many
};

// Of a form without marks: whether a reply that begins so may become a call.
bool may_be_call(string_view begin) {
  return begin.empty() || begin.starts_with('{') || begin.starts_with(kPythonTag) ||
         kPythonTag.starts_with(begin);
}

ParsedReply read_channels(const ReplyChannels& channels, string_view text) {
  const std::unique_ptr<ChannelReader> reader = channels.reader();
  reader->add(text);
  reader->end();
  return reader->reply();
}

}  // namespace

ToolCallForm tool_call_form(string_view jinja) {
  for (const Family& row : kFamilies)
    if (jinja.find(row.told_by) != string_view::npos) return row.form;
  return ToolCallForm::none;
}

std::string take_new(string_view all, size_t& given) {
  if (all.size() <= given) return "";
  return std::string(all.substr(std::exchange(given, all.size())));
}

std::optional<ToolCall> tool_call(string_view name, string_view arguments) {
  // A call in another form than the model's, {"name":"f"} between GLM's marks, is not one of a tool
  // that is called so.
  constexpr string_view kInNoName = " \t\r\n{}\"";
  const auto given = json_of(trimmed(arguments));
  name = trimmed(name);
  if (name.empty() || name.find_first_of(kInNoName) != string_view::npos || !given ||
      !given->is_object())
    return std::nullopt;
  return ToolCall{std::string(name), given->dump()};
}

ParsedReply parse_reply(ToolCallForm form, string_view text, const ToolArguments& arguments) {
  if (const ReplyChannels* channels = reply_channels(form)) return read_channels(*channels, text);
  const Family* family = family_of(form);
  const std::optional<size_t> from = behind_thought(text);
  if (family == nullptr || !from) return {.content = std::string(text)};
  if (family->begin.empty()) return whole_reply(*family, text);
  CallTaker taker(*family, text, arguments);
  std::vector<ToolCall> calls;
  std::vector<string_view> around;
  size_t done = 0;
  for (size_t at = text.find(family->begin, *from); at != string_view::npos;) {
    size_t next = at + family->begin.size();
    if (std::optional<TakenCalls> taken = taker.take(next)) {
      for (ToolCall& call : taken->calls) calls.push_back(std::move(call));
      around.push_back(text.substr(done, at - done));
      done = next = taken->end;
    }
    at = text.find(family->begin, next);
  }
  if (calls.empty()) return {.content = std::string(text)};
  around.push_back(text.substr(done));
  return {.content = around_calls(*family, around), .calls = std::move(calls)};
}

ContentReader::ContentReader(ToolCallForm form)
    : known_(family_of(form) != nullptr),
      marked_(known_ && !family_of(form)->begin.empty()),
      begin_(known_ ? family_of(form)->begin : ""),
      group_(known_ ? family_of(form)->group : ""),
      thought_end_(kThinkClose) {}

size_t ContentReader::certain(string_view text) {
  if (!known_) return text.size();
  const size_t begin = trim_.begin(text);
  if (!marked_) return may_be_call(text.substr(begin)) ? 0 : text.size();
  size_t from = 0;
  if (text.substr(begin).starts_with(kThinkOpen)) {
    from = thought_end_.in(text) + kThinkClose.size();
    if (!thought_end_.found()) return text.size();
  }
  // One after the other: each moves on.
  const size_t call = begin_.in(text, from), group = group_.in(text, from);
  return trim_.end(text, std::min(call, group));
}

const ReplyChannels* reply_channels(ToolCallForm form) {
  static const std::map<ToolCallForm, ReplyChannels> table = {
      {ToolCallForm::harmony,
       {{"<|return|>", "<|call|>"},
        "<|end|>",
        "<|channel|>final<|message|>",
        "<|end|>",
        harmony_reader}},
      {ToolCallForm::solar,
       {{"<|flush|>", "<|calls|>"}, "<|end|>", "<|content|>", "<|tool_call:end|>", solar_reader}},
  };
  const auto found = table.find(form);
  return found == table.end() ? nullptr : &found->second;
}

CallBounds call_bounds(ToolCallForm form) {
  if (const ReplyChannels* channels = reply_channels(form)) return {.ends = {channels->call_end}};
  const Family* family = family_of(form);
  if (family == nullptr || family->begin.empty()) return {};
  if (family->listed) return {.begin = family->begin, .listed = true, .close = family->end};
  if (family->read != nullptr) return {.begin = family->begin, .ends = {family->end}};
  // One that has lost its own mark ends with the one around all.
  return {.begin = family->begin, .ends = {MarkedCalls::end_of_call(form), family->done}};
}

const ForcedCall* forced_call(ToolCallForm form) {
  static constexpr const char* kKey = "arguments";
  static const std::map<ToolCallForm, ForcedCall> table = {
      {ToolCallForm::hermes, {"<tool_call>\n", kKey}},
      {ToolCallForm::hunyuan, {"<tool_calls>[", kKey}},
      {ToolCallForm::llama3, {"", "parameters"}},
      {ToolCallForm::mistral, {"[TOOL_CALLS] [", kKey}},
      {ToolCallForm::deepseek,
       {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", kKey,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>"}},
      {ToolCallForm::granite3, {"<|tool_call|>[", kKey}},
      {ToolCallForm::nemotron, {"<TOOLCALL>[", kKey}},
      {ToolCallForm::kimi,
       {"<|tool_calls_section_begin|><|tool_call_begin|>", kKey,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
        "<|tool_call_argument_begin|>"}},
      {ToolCallForm::lfm2, {"<|tool_call_start|>[", kKey}},
      {ToolCallForm::olmo3, {"<function_calls>", kKey}},
      {ToolCallForm::gemma4, {"<|tool_call>", kKey, "<|tool_call>call:NAME"}},
      {ToolCallForm::qwen3_coder, {"<tool_call>\n", kKey}},
      {ToolCallForm::glm, {"<tool_call>", kKey}},
      {ToolCallForm::hunyuan3, {"<tool_calls>\n<tool_call>", kKey}},
      {ToolCallForm::hunyuan3_open, {"<tool_calls:opensource>\n<tool_call:opensource>", kKey}},
      {ToolCallForm::minimax, {"<minimax:tool_call>\n", kKey}},
      {ToolCallForm::deepseek_v32, {"<｜DSML｜function_calls>\n", kKey}},
      {ToolCallForm::solar,
       {"<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>", kKey,
        "<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>NAME<|tool_call:args|>"}},
      {ToolCallForm::harmony,
       {nullptr, kKey, "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>"}},
  };
  const auto found = table.find(form);
  return found == table.end() ? nullptr : &found->second;
}

ParsedReply parse_forced(string_view name, string_view object) {
  Calls calls = name.empty() ? json_calls(object) : one_call(name, object);
  if (!calls || calls->size() != 1) return {.content = std::string(object)};
  return {.calls = std::move(*calls)};
}

}  // namespace moe
