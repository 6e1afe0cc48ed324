// What is certain of a reply under way, as it is found where the reply is given at once: reading it
// piece by piece has to come to the same.
#pragma once

#include <string>
#include <string_view>

#include "text/thoughts.h"

namespace moe::test {

inline ParsedReply certain_of(const ReplySyntax& syntax, std::string_view text) {
  ReplyReader reader(syntax);
  const ReplyReader::Certain certain = reader.read(text);
  return {.content = std::string(certain.content), .thought = std::string(certain.thought)};
}
inline ParsedReply certain_of(ToolCallForm form, std::string_view text) {
  return certain_of(ReplySyntax{.calls = form}, text);
}

}  // namespace moe::test
