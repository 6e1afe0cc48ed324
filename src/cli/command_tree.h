// The verbs and flags of the command as plain values, read from the same CLI::App that prints --help: the one source of shell completion and man pages.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace moe::cli {

struct OptionInfo {
  enum class Takes { nothing, number, text };  // text: perhaps the name of a file
  std::vector<std::string> names;              // "-p", "--prompt"; of a positional just "MODEL"
  Takes takes = Takes::nothing;
  bool many = false;  // takes several words
  bool required = false;
  std::string type;     // as --help calls the value: "INT"; empty for a flag
  std::string initial;  // value when absent, where help shows one
  std::string group, help;
  std::vector<std::string> values;  // all it can be; empty: not a fixed choice
};

struct CommandInfo {
  std::string path;  // "moe train"
  std::string name, summary;
  std::vector<OptionInfo> flags, positionals;
  std::vector<CommandInfo> verbs;
};

// `app` and all below it; `path` is what it is called with. A flag means the same in every verb: values attached to it in one are its values in all.
CommandInfo describe(CLI::App& app, const std::string& path);
// Itself and all below it, parents first.
std::vector<const CommandInfo*> all_commands(const CommandInfo& root);

// Attaches to an option the values that it can have. Checks nothing: whoever reads the option does, and says more.
CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& values);

}  // namespace moe::cli
