// Of which kind the arguments of tools are, by the tools' schemas. Some forms of calls write an
// argument as bare text, so that only its schema tells whether 5 is a number.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/json.h"

namespace moe {

// Bits: a schema may allow several. 0 stands for what is not known.
enum ArgumentKind : unsigned {
  kTextArgument = 1,
  kNumberArgument = 2,
  kWholeArgument = 4,
  kBooleanArgument = 8,
  kNullArgument = 16,
  kObjectArgument = 32,
  kArrayArgument = 64
};

// By the tool's name and the argument's.
using ToolArguments =
    std::map<std::string, std::map<std::string, unsigned, std::less<>>, std::less<>>;

// Of the tools of a request, which are in form (text/chat_request.h). What a schema does not say,
// or says in a way that is not known here, is 0.
ToolArguments tool_arguments(const Json& tools);

unsigned argument_kinds(const ToolArguments&, std::string_view tool, std::string_view argument);

// The value that a bare text stands for: itself where it may only be text; else what it is in JSON,
// or as Python writes it, where that is of one of the kinds. What is neither stays text.
OrderedJson argument_value(std::string_view text, unsigned kinds);

}  // namespace moe
