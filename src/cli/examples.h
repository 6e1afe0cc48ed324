// Lines that show a verb at work, for the end of its help.
#pragma once

#include <string_view>

namespace moe::cli {

// Each line begins with two blanks and "moe VERB"; empty for verbs that need none. FILE is a text,
// DIR a folder; MODEL what the help of the command says.
std::string_view examples_of(std::string_view verb);

}  // namespace moe::cli
