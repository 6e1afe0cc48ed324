// Calls whose arguments each stand in marks of their own, as bare text: Qwen3-Coder, GLM, Hunyuan
// 3, MiniMax, DeepSeek V3.2.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_arguments.h"
#include "text/tool_calls.h"

namespace moe {

// Reads the calls in one reply. What it has found out once, it does not look for again, so that
// the time is linear in the text however often a call seems to begin.
class MarkedCalls {
 public:
  struct Found {
    ToolCall call;
    size_t end;  // behind the call, in the reply
  };

  MarkedCalls(ToolCallForm form, std::string_view text, const ToolArguments& arguments);

  // The call whose opening mark ends at `body`; nothing where it is malformed or not whole. The
  // mark that ends a value counts only where another argument or the end of the call follows, as a
  // value may hold it: a program that writes such calls, say.
  std::optional<Found> at(size_t body);
  // The mark that ends a call of the form.
  static std::string_view end_of_call(ToolCallForm form);

 private:
  struct Marks;
  struct Argument {
    std::string key;
    std::string_view value;
    unsigned kinds;
  };
  static const Marks& marks_of(ToolCallForm form);

  bool take(std::string_view mark);
  std::optional<std::string_view> take_name();
  bool take_argument(const std::string& tool, std::vector<Argument>& taken);
  size_t end_of_value();
  size_t find_end_of_value() const;
  bool at_end_of_call() const;

  const Marks& marks_;
  std::string_view text_;
  const ToolArguments& arguments_;
  size_t at_ = 0;
  // The end that was found last, and from where: the same one from anywhere between. Behind
  // unclosed_ no value has an end.
  size_t found_from_ = 0, found_end_ = 0, unclosed_;
};

}  // namespace moe
