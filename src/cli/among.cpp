#include "cli/among.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <thread>

#include "cli/flags.h"
#include "cli/screen.h"
#include "core/nearest.h"
#include "core/words.h"

namespace moe::cli {
namespace {

constexpr std::chrono::seconds kLastWords(2);

// While it lives nothing reaches standard output or error.
class Silence {
 public:
  Silence() : out_(dup(STDOUT_FILENO)), err_(dup(STDERR_FILENO)) {
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    close(nothing);
  }
  ~Silence() {
    std::fflush(stdout);
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    close(out_);
    close(err_);
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int out_, err_;
};

int exit_code(const Error& e) { return e.kind() == Error::Kind::usage ? 2 : 1; }

// Goes on with those that are left; false where that fails. Another one may be lost meanwhile.
bool heal(comm::World& world, const Usable& usable) {
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    try {
      world.heal(usable);
      break;
    } catch (const comm::LostError& e) {
      tell_failure(e, world.name());
      if (tries == kTries) return false;
    } catch (const Error& e) {
      tell_failure(e, world.name());
      return false;
    }
  }
  if (world.is_spare()) tell("moe: {} stands by\n", world.name());
  else if (world.group().is_first())
    tell("moe: going on in {}\n", counted(world.group().size, "process"));
  return true;
}

}  // namespace

int tell_failure(const std::exception& e, const std::string& who) {
  const std::string before = who.empty() ? "moe: " : "moe: " + who + ": ";
  if (const auto* error = dynamic_cast<const Error*>(&e)) {
    tell("{}{}\n", before, one_line(in_flags(error->marked())));
    return exit_code(*error);
  }
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) {
    tell(
        "{}out of memory; use a smaller model or shorter texts, and in training a smaller --batch "
        "or --recompute\n",
        before);
    return 1;
  }
  if (std::ferror(stdout) == 0)  // else main says it
    tell("{}{}\n", before, one_line(e.what()));
  return 1;
}

void share_memory(MemoryLimits& limits, const comm::World& world) {
  const int64_t free = available_memory();
  if (world.on_this_machine() == 1 || limits.all || free == INT64_MAX) return;
  limits.all = taken_memory() + free / world.on_this_machine();
}

int run_among(const std::function<int(const comm::World&)>& work, const Usable& usable) {
  std::optional<comm::World> joined;
  try {
    joined.emplace();
  } catch (const Error& e) {
    if (comm::World::is_first_of_launch()) throw;
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the first exit code ends them all
    return exit_code(e);
  }
  comm::World& world = *joined;
  if (world.group().size == 1) return work(world);
  // A process that is ended because another one failed has nothing to add.
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  // Writing to a process that is gone shall fail, not end this one.
  std::signal(SIGPIPE, SIG_IGN);
  std::optional<Silence> silence;
  for (;;) {
    silence.reset();
    if (!world.group().is_first()) silence.emplace();
    try {
      if (!world.is_spare()) return work(world);
      world.wait_as_spare();
      return 0;
    } catch (const comm::SharedError& e) {
      // Said before all leave: the first exit code ends whoever is still there.
      return world.group().is_first() ? tell_failure(e) : exit_code(e);
    } catch (const comm::LostError& e) {
      silence.reset();
      const int code = tell_failure(e, world.name());
      if (usable && world.can_heal() && heal(world, usable)) continue;
      std::this_thread::sleep_for(kLastWords);  // others miss the same process, and may say so
      world.abandon(code);
    } catch (const std::exception& e) {
      silence.reset();
      world.abandon(tell_failure(e, world.name()));
    }
  }
}

}  // namespace moe::cli
