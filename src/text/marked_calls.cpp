#include "text/marked_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "text/call_text.h"

namespace moe {

using std::string_view;

// Where a mark is one of attributes (<parameter name="KEY">), `key` is what stands before the name
// and `key_end` the bracket.
struct MarkedCalls::Marks {
  ToolCallForm form;
  string_view name_end;          // behind the tool's name; empty: it ends with its line
  string_view key, key_end;      // around an argument's name
  string_view value, value_end;  // around its value
  string_view end;               // of the call
  string_view outer_end;         // of what stands around calls; ends one that has lost its own end
  bool framed;                   // the line ends beside a value are no part of it
};

const MarkedCalls::Marks& MarkedCalls::marks_of(ToolCallForm form) {
  using enum ToolCallForm;
  static constexpr Marks kTable[] = {
      {qwen3_coder, ">", "<parameter=", ">", "", "</parameter>", "</function>", "</tool_call>",
       true},
      {glm, "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", "",
       false},
      {hunyuan3, "<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
       "</tool_call>", "", false},
      {hunyuan3_open, "<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>",
       "<arg_value:opensource>", "</arg_value:opensource>", "</tool_call:opensource>", "", false},
      {minimax, ">", "<parameter name=", ">", "", "</parameter>", "</invoke>",
       "</minimax:tool_call>", false},
      {deepseek_v32, ">", "<｜DSML｜parameter name=", ">", "", "</｜DSML｜parameter>",
       "</｜DSML｜invoke>", "</｜DSML｜function_calls>", false},
  };
  const auto* found = std::find_if(std::begin(kTable), std::end(kTable),
                                   [&](const Marks& row) { return row.form == form; });
  if (found == std::end(kTable)) fail("calls of this form have no marks around their arguments");
  return *found;
}

namespace {

// A name as it stands in a mark, and the attributes behind it: KEY, or "KEY" string="true".
struct MarkedName {
  string_view name, rest;
};
MarkedName marked_name(string_view text) {
  text = trimmed(text);
  if (!text.starts_with('"') && !text.starts_with('\'')) return {text, {}};
  const size_t end = text.find(text[0], 1);
  if (end == string_view::npos) return {};
  return {text.substr(1, end - 1), text.substr(end + 1)};
}

string_view without_frame(string_view value) {
  if (!take_prefix(value, "\r\n")) take_prefix(value, "\n");
  if (value.ends_with('\n')) value.remove_suffix(value.ends_with("\r\n") ? 2 : 1);
  return value;
}

}  // namespace

MarkedCalls::MarkedCalls(ToolCallForm form, string_view text, const ToolArguments& arguments)
    : marks_(marks_of(form)), text_(text), arguments_(arguments), unclosed_(text.size()) {}

string_view MarkedCalls::end_of_call(ToolCallForm form) { return marks_of(form).end; }

bool MarkedCalls::take(string_view mark) {
  const size_t at = std::min(text_.find_first_not_of(kReplySpace, at_), text_.size());
  if (!text_.substr(at).starts_with(mark)) return false;
  at_ = at + mark.size();
  return true;
}

// No name holds a bracket or a line end, so that what has none is soon known.
std::optional<string_view> MarkedCalls::take_name() {
  const size_t end = text_.find_first_of("<>\n", at_);
  if (end == string_view::npos) return std::nullopt;
  const size_t begin = std::exchange(at_, end);
  return text_.substr(begin, end - begin);
}

bool MarkedCalls::at_end_of_call() const {
  const string_view rest = trimmed_left(text_.substr(at_));
  return !marks_.outer_end.empty() && rest.starts_with(marks_.outer_end);
}

size_t MarkedCalls::end_of_value() {
  if (at_ >= unclosed_) return string_view::npos;
  if (at_ >= found_from_ && at_ <= found_end_) return found_end_;
  const size_t end = find_end_of_value();
  if (end == string_view::npos) {
    unclosed_ = at_;
  } else {
    found_from_ = at_;
    found_end_ = end;
  }
  return end;
}

size_t MarkedCalls::find_end_of_value() const {
  for (size_t end = text_.find(marks_.value_end, at_); end != string_view::npos;
       end = text_.find(marks_.value_end, end + 1)) {
    const string_view behind = trimmed_left(text_.substr(end + marks_.value_end.size()));
    if (behind.starts_with(marks_.key) || behind.starts_with(marks_.end) ||
        (!marks_.outer_end.empty() && behind.starts_with(marks_.outer_end)))
      return end;
  }
  return string_view::npos;
}

bool MarkedCalls::take_argument(const std::string& tool, std::vector<Argument>& taken) {
  const std::optional<string_view> inside = take_name();
  if (!inside || !take(marks_.key_end)) return false;
  const MarkedName named = marked_name(*inside);
  std::string key(named.name);
  const bool again = std::any_of(taken.begin(), taken.end(),
                                 [&](const Argument& other) { return other.key == key; });
  if (key.empty() || again || taken.size() >= kJsonMostOrderedKeys) return false;
  if (!marks_.value.empty() && !take(marks_.value)) return false;
  const size_t end = end_of_value();
  if (end == string_view::npos) return false;
  string_view value = text_.substr(at_, end - at_);
  if (marks_.framed) value = without_frame(value);
  unsigned kinds = argument_kinds(arguments_, tool, key);
  // DeepSeek says with each value whether it is a text.
  if (named.rest.find("string=\"true\"") != string_view::npos) kinds = kTextArgument;
  if (named.rest.find("string=\"false\"") != string_view::npos) kinds &= ~kTextArgument;
  taken.push_back({std::move(key), value, kinds});
  at_ = end + marks_.value_end.size();
  return true;
}

std::optional<MarkedCalls::Found> MarkedCalls::at(size_t body) {
  at_ = body;
  const std::optional<string_view> inside = take_name();
  if (!inside || (!marks_.name_end.empty() && !take(marks_.name_end))) return std::nullopt;
  const std::string name(marked_name(*inside).name);
  std::vector<Argument> taken;
  while (take(marks_.key))
    if (!take_argument(name, taken)) return std::nullopt;
  if (!take(marks_.end) && !at_end_of_call()) return std::nullopt;
  // Only now: the values of a call that is none may be most of the reply.
  OrderedJson arguments = OrderedJson::object();
  for (const Argument& each : taken)
    arguments.emplace(each.key, argument_value(each.value, each.kinds));
  auto call = tool_call(name, one_line_json(arguments));
  if (!call) return std::nullopt;
  return Found{std::move(*call), at_};
}

}  // namespace moe
