// The verbs of the command line: each adds its options to a subcommand and returns what runs when it was chosen.
#pragma once

#include <CLI/App.hpp>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace moe::cli {

// Returns the exit code; throws Error.
using Action = std::function<int()>;

struct Verb {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App& app);
};
const std::vector<Verb>& verbs();

Action add_train(CLI::App& app);
Action add_tokenize(CLI::App& app);
Action add_generate(CLI::App& app);
Action add_chat(CLI::App& app);
Action add_score(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_convert(CLI::App& app);
Action add_carve(CLI::App& app);
Action add_upcycle(CLI::App& app);
Action add_merge(CLI::App& app);
Action add_prune(CLI::App& app);
Action add_inspect(CLI::App& app);
Action add_recipes(CLI::App& app);
Action add_route(CLI::App& app);
Action add_bench(CLI::App& app);
Action add_completion(CLI::App& app);
Action add_man(CLI::App& app);

// Set by Ctrl-C (SIGINT) and SIGTERM once watched; a second Ctrl-C ends the process at once.
std::atomic<bool>& watch_interrupts();

}  // namespace moe::cli
