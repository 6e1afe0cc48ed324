// Manual pages of a command.
#pragma once

#include <string>
#include <string_view>

#include "options/command_info.h"

namespace moe {

// roff (man(7)), for man -l. The whole command's page tells every verb; a verb's page only its own.
std::string manual_page(const CommandInfo& command, bool whole, std::string_view version);

}  // namespace moe
