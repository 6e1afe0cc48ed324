// The verbs and flags of the command as plain values, read from the same CLI::App that prints
// --help.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "options/command_info.h"

namespace moe::cli {

// `app` and all below it; `path` is what it is called with. A flag means the same in every verb:
// values attached to it in one are its values in all.
CommandInfo describe(CLI::App& app, const std::string& path);

// Attaches to an option the values that it can have. Checks nothing: whoever reads the option does,
// and says more.
CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& values);

}  // namespace moe::cli
