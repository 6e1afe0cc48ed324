#include "options/command_info.h"

namespace moe {
namespace {

void collect(const CommandInfo& command, std::vector<const CommandInfo*>& all) {
  all.push_back(&command);
  for (const CommandInfo& verb : command.verbs) collect(verb, all);
}

}  // namespace

std::vector<const CommandInfo*> all_commands(const CommandInfo& root) {
  std::vector<const CommandInfo*> all;
  collect(root, all);
  return all;
}

}  // namespace moe
