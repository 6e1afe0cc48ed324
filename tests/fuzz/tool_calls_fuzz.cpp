// Replies with calls of tools and thoughts: every form takes any text, and what is shown of a reply
// under way stays its content. The first byte chooses the form, the second how much is there
// already.
#include "text/tool_calls.h"

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "fuzz/fuzz.h"
#include "support/certain_reply.h"
#include "text/first_call.h"
#include "text/thoughts.h"

namespace moe::fuzz {
namespace {

// It is the same in whatever pieces the reply comes.
void check_first_call(const ReplySyntax& syntax, std::string_view text) {
  FirstCall at_once(syntax), by_bytes(syntax);
  at_once.add(text);
  for (const char& byte : text) by_bytes.add({&byte, 1});
  demand(at_once.looked() == by_bytes.looked());
  demand(at_once.reply().has_value() == by_bytes.reply().has_value());
  if (!at_once.reply()) return;
  const ParsedReply &one = *at_once.reply(), &other = *by_bytes.reply();
  demand(one.calls.size() == 1 && other.calls.size() == 1);
  demand(one.content == other.content && one.thought == other.thought);
  demand(one.calls[0].name == other.calls[0].name);
  demand(one.calls[0].arguments == other.calls[0].arguments);
}

void check_thoughts(ToolCallForm form, std::string_view text, std::string_view part) {
  const ThoughtTags* tags = thought_tags("<think>");
  for (const bool in_thought : {false, true})
    for (const bool apart : {false, true}) {
      const ReplySyntax syntax{form, tags, apart, in_thought};
      const ParsedReply parsed = parse_reply(syntax, text), so_far = test::certain_of(syntax, part);
      demand(parsed.content.starts_with(so_far.content));
      demand(parsed.thought.starts_with(so_far.thought));
      demand(thought_bytes(syntax, text) <= text.size());
      check_first_call(syntax, text);
    }
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe;
  if (size < 2) return 0;
  constexpr int kForms = static_cast<int>(ToolCallForm::harmony) + 1;
  const auto form = static_cast<ToolCallForm>(data[0] % kForms);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  // of arguments a to z each of another kind
  ToolArguments arguments;
  for (unsigned i = 0; i < 26; ++i)
    arguments["f"][std::string(1, static_cast<char>('a' + i))] = i * 5;
  const ParsedReply parsed = parse_reply(form, text, arguments);
  fuzz::demand(reply_channels(form) != nullptr || !parsed.calls.empty() || parsed.content == text);
  fuzz::demand(parsed.content.size() + parsed.thought.size() <= text.size());
  fuzz::demand(form != ToolCallForm::none || parsed.calls.empty());
  for (const ToolCall& call : parsed.calls) {
    fuzz::demand(!call.name.empty());
    fuzz::demand(parse_json(call.arguments, "arguments").is_object());
  }
  for (const std::string_view part : {text.substr(0, text.size() * data[1] / 256), text}) {
    const ParsedReply so_far = test::certain_of(form, part);
    fuzz::demand(parsed.content.starts_with(so_far.content));
    fuzz::demand(parsed.thought.starts_with(so_far.thought));
    fuzz::check_thoughts(form, text, part);
  }
  (void)tool_call_form(text);
  return 0;
}
