// The command `moe`: finds the verb, runs it, and turns what it throws into one line and an exit
// code (0 done, 1 failed, 2 wrong usage).
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/among.h"
#include "cli/elsewhere.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/nearest.h"

namespace {

// CLI11's own words where a flag has too many values or none.
std::string count_words(const CLI::ArgumentMismatch& error) {
  const std::string words = error.what(), flag = words.substr(0, words.find(':'));
  return words.ends_with("missing") ? fmt::format("{} needs a value", flag)
                                    : fmt::format("{} is given more than once", flag);
}

// CLI11 reports the parts of a line it could not place; the nearest known name, or the way to the
// help, makes that useful.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string command = "moe";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  std::vector<std::string> verbs, known;
  for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(sub->get_name());
  for (const CLI::Option* option : at->get_options())
    if (option != at->get_help_ptr()) known.push_back(option->get_name());
  const std::vector<std::string> extras = app.remaining(true);
  if (!verbs.empty()) {
    const std::string words =
        fmt::format("{} is followed by one of {}", command, fmt::join(verbs, ", "));
    return extras.empty() ? words
                          : fmt::format("'{}' has no meaning after {}{}", extras.front(), command,
                                        extras.front().starts_with('-')
                                            ? moe::cli::suggested_flag(extras.front(), known)
                                            : moe::suggestion(extras.front(), verbs));
  }
  const std::string help = fmt::format("; see {} --help", command);
  if (!extras.empty())
    return fmt::format("'{}' has no meaning here{}{}", extras.front(),
                       extras.front().starts_with('-')
                           ? moe::cli::suggested_flag(extras.front(), known)
                           : moe::cli::suggested_for_word(at->get_name()),
                       help);
  if (const auto* const count = dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    return count_words(*count) + help;
  return error.what() + help;
}

// A thread of libgomp that waits for another spins for milliseconds. Where another program wants
// the core, the one waited for then gets none, and a step takes three times as long; a short spin
// costs little on a quiet machine (docs/performance.md). libgomp reads its environment before main,
// so the command starts itself again.
void start_again_with_short_spin(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "3000", 1);
  execv("/proc/self/exe", argv);  // returns only if it failed, and then everything works as before
}

// A file opened while a standard stream is closed would take its number, and get what is meant for
// the screen.
void open_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) == -1) open("/dev/null", O_RDWR);
}

int run_command(int argc, char** argv) {
  const moe::cli::Command command = moe::cli::make_command();
  CLI::App& app = *command.app;
  moe::cli::end_on_interrupts();
  try {
    moe::cli::check_verb(app, argc, argv);
    app.parse(argc, argv);
    for (const auto& [sub, run] : command.actions)
      if (sub->parsed()) return run();
    return 2;
  } catch (const CLI::Success& done) {
    std::ostringstream text;
    const int code = app.exit(done, text);
    moe::cli::print_help(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    moe::cli::tell("moe: {}\n", moe::one_line(explain(app, error)));
    return 2;
  } catch (const std::exception& error) {
    return moe::cli::tell_failure(error);
  }
}

// What did not reach standard output, such as a full disk, is a failure of the command, whatever it
// did.
int with_output_written(int code) {
  const bool lost_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !lost_before) return code;
  moe::cli::tell(
      "moe: standard output could not be written{}; what is there is not all of it: look at the "
      "disk or program it goes to, and run the command again\n",
      lost_before ? "" : fmt::format(": {}", std::strerror(errno)));
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  start_again_with_short_spin(argv);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error of write(), said in one line
  return with_output_written(run_command(argc, argv));
}
