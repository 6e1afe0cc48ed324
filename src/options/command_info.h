// A command with its verbs and flags as plain values: what manual pages and shell completion are
// written from.
#pragma once

#include <string>
#include <vector>

namespace moe {

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

// Itself and all below it, parents first.
std::vector<const CommandInfo*> all_commands(const CommandInfo& root);

}  // namespace moe
