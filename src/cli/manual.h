// Manual pages from the command tree.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace moe::cli {

// roff, for man -l. The whole command's page tells every verb; a verb's page only its own.
std::string manual_page(const CommandInfo& command, bool whole);

}  // namespace moe::cli
