// Another program, run without a shell.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace moe {

constexpr int kNotThere = 127;  // run_child: there is no such program

// Runs words[0], looked for in PATH, with the environment and `more` variables of it; standard input is empty, what it prints goes to the file `log`. Asks
// `meanwhile` every now and then, which may throw: the program and what it started are then ended first. Returns the exit code, 128 + the signal that ended it,
// or kNotThere.
int run_child(const std::vector<std::string>& words, const std::vector<std::pair<std::string, std::string>>& more, const std::string& log,
              const std::function<void()>& meanwhile);

}  // namespace moe
