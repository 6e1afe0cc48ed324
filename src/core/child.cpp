#include "core/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.h"

namespace moe {
namespace {

constexpr useconds_t kPause = 50'000;  // microseconds between two looks
constexpr int kPatience = 40;          // of them, until a program that was asked to end is made to

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> out;
  for (const auto& [name, value] : more) out.push_back(name + "=" + value);
  const size_t own = out.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (size_t i = 0; i < own; ++i) replaced = replaced || text.substr(0, text.find('=') + 1) == out[i].substr(0, out[i].find('=') + 1);
    if (!replaced) out.push_back(text);
  }
  return out;
}

// A process group of its own, so that Ctrl-C at the terminal comes to us alone, and so that it can be ended with all it started.
class Group {
 public:
  explicit Group(pid_t leader) : leader_(leader) {}
  ~Group() {
    if (leader_ < 0) return;
    kill(-leader_, SIGTERM);
    for (int looks = 0; looks < kPatience; ++looks) {
      if (waitpid(leader_, nullptr, WNOHANG) != 0) return;
      usleep(kPause);
    }
    kill(-leader_, SIGKILL);
    waitpid(leader_, nullptr, 0);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void has_ended() { leader_ = -1; }

 private:
  pid_t leader_;
};

}  // namespace

int run_child(const std::vector<std::string>& words, const std::vector<std::pair<std::string, std::string>>& more, const std::string& log,
              const std::function<void()>& meanwhile) {
  std::vector<std::string> argument_words = words, environment_words = environment_with(more);
  const std::vector<char*> arguments = pointers(argument_words), environment = pointers(environment_words);
  posix_spawn_file_actions_t streams;
  posix_spawn_file_actions_init(&streams);
  posix_spawn_file_actions_addopen(&streams, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&streams, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&streams, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  const int error = posix_spawnp(&child, arguments[0], &streams, &how, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&streams);
  posix_spawnattr_destroy(&how);
  if (error == ENOENT) return kNotThere;
  if (error != 0) fail("cannot run {}: {}", words[0], std::strerror(error));
  Group group(child);
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      group.has_ended();
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (ended < 0 && errno != EINTR) {
      group.has_ended();
      fail("{} was lost: {}", words[0], std::strerror(errno));
    }
    meanwhile();
    usleep(kPause);
  }
}

}  // namespace moe
