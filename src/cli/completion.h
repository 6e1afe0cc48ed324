// Shell completion from the command tree.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace moe::cli {

// For bash, zsh or fish; usage error with the nearest name for others.
std::string completion_script(const CommandInfo& root, const std::string& shell);

}  // namespace moe::cli
