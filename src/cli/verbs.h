// The verbs of the command line: each adds its options to a subcommand and returns what runs when
// it was chosen.
#pragma once

#include <CLI/App.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moe::cli {

// Returns the exit code; throws Error.
using Action = std::function<int()>;

struct Verb {
  const char* name;
  const char* group;  // the heading it stands under in `moe --help`
  const char* summary;
  Action (*add)(CLI::App& app);
};
const std::vector<Verb>& verbs();

// The command with all its verbs. What their options write to lives as long as the actions do.
struct Command {
  std::unique_ptr<CLI::App> app;
  std::vector<std::pair<CLI::App*, Action>> actions;
};
Command make_command();
// Fails (usage) where the first word behind the command is no verb, or there is none, and on flags
// of other programs that would be taken apart. Asked before a line is parsed, since a --help in it
// would win.
void check_verb(CLI::App& app, int argc, const char* const* argv);

Action add_train(CLI::App& app);
Action add_tokenize(CLI::App& app);
Action add_generate(CLI::App& app);
Action add_chat(CLI::App& app);
Action add_serve(CLI::App& app);
Action add_score(CLI::App& app);
Action add_quiz(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_convert(CLI::App& app);
Action add_carve(CLI::App& app);
Action add_upcycle(CLI::App& app);
Action add_merge(CLI::App& app);
Action add_prune(CLI::App& app);
Action add_inspect(CLI::App& app);
Action add_plan(CLI::App& app);
Action add_recipes(CLI::App& app);
Action add_route(CLI::App& app);
Action add_bench(CLI::App& app);
Action add_league(CLI::App& app);
Action add_get(CLI::App& app);
Action add_help(CLI::App& app);
Action add_completion(CLI::App& app);
Action add_man(CLI::App& app);

// Set by Ctrl-C (SIGINT) and SIGTERM once watched; a second Ctrl-C ends the process at once.
std::atomic<bool>& watch_interrupts();
// Until then they end the command where it stands, with one line: whoever writes files watches
// first.
void end_on_interrupts();
// exit code of what was asked to stop and did, as shells have it (128 + SIGINT)
constexpr int kInterrupted = 130;

}  // namespace moe::cli
