// A script that completes a command's verbs, flags and values, for bash, zsh or fish.
#pragma once

#include <string>
#include <vector>

#include "options/command_info.h"

namespace moe {

const std::vector<std::string>& completed_shells();
// Usage error with the nearest name for another shell.
std::string completion_script(const CommandInfo& root, const std::string& shell);

}  // namespace moe
