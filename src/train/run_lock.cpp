#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace moe {
namespace {

// Over a network only a file that may be written to can be locked.
int open_to_lock(const std::string& path) {
  std::error_code unknown;
  const bool is_folder = std::filesystem::is_directory(path, unknown);
  return open(path.c_str(), (is_folder ? O_RDONLY : O_RDWR) | O_CLOEXEC);
}

std::array<std::string, 2> lockable(const std::string& folder) {
  return {folder, folder + "/metrics.jsonl"};
}

}  // namespace

// A run shares its lock among its processes; to have it for oneself for a moment is to see that no
// other run has it.
void RunLock::take(const std::string& folder) {
  for (const std::string& path : lockable(folder))
    if (!hold(path, {LOCK_EX, LOCK_SH}) && path == folder)
      fail("cannot open the folder {}: {}; choose another @out", folder, std::strerror(errno));
}

void RunLock::join(const std::string& folder) {
  for (const std::string& path : lockable(folder)) hold(path, {LOCK_SH});
}

bool RunLock::hold(const std::string& path, std::initializer_list<int> kinds) {
  if (held_.contains(path)) return true;
  const int fd = open_to_lock(path);
  if (fd < 0) return false;
  for (int kind : kinds) {
    if (flock(fd, kind | LOCK_NB) == 0 || errno != EWOULDBLOCK) continue;
    close(fd);
    fail("{} is being written by another training run; wait for it or choose another @out", path);
  }
  held_[path] = fd;
  return true;
}

RunLock::~RunLock() {
  for (const auto& [path, fd] : held_) close(fd);
}

}  // namespace moe
