// Values as some families of models write them in calls: as Python's literals, or in Gemma's own
// way. Both are taken with JSON's words and numbers.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/tool_calls.h"

namespace moe {

// The value that `text` is, white space around it: 'text' or "text", 1, True or true, None or null,
// [...], (...) as a list, {'key': ...}. Templates write texts without escapes, so a quote ends one
// only where , ) ] } : or the end follows.
std::optional<OrderedJson> python_value(std::string_view text);

// name(key=value, ...), one or several, parted by commas or white space, perhaps all within [ ].
// Nothing where an argument has no name.
std::optional<std::vector<ToolCall>> python_calls(std::string_view text);

// {key:value, ...}, a text as <|"|>text<|"|>, objects and lists within.
std::optional<OrderedJson> gemma_object(std::string_view text);

}  // namespace moe
