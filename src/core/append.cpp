// A kill between two writes can leave half a line; a full disk cannot.
#include "core/append.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace moe {
namespace {

struct OpenFile {
  int fd;
  explicit OpenFile(int opened) : fd(opened) {}
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
};

}  // namespace

void append_all(int fd, std::string_view text, const std::string& path, std::string_view way_out) {
  struct stat before {};
  if (fstat(fd, &before) != 0) fail("cannot read {}: {}", path, std::strerror(errno));
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error = errno;
      // half a line is worse than none
      [[maybe_unused]] const int whole_again = ftruncate(fd, before.st_size);
      fail("cannot write {}: {}; {}", path, std::strerror(error), way_out);
    }
    done += static_cast<size_t>(wrote);
  }
}

void append_line(const std::string& path, std::string_view line) {
  const OpenFile file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  struct stat info {};
  if (file.fd < 0 || flock(file.fd, LOCK_EX) != 0 || fstat(file.fd, &info) != 0)
    fail(
        "cannot write {}: {}; nothing was changed: choose a file in a folder that is there and may "
        "be written to",
        path, std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    fail("cannot write {}: it is no regular file; nothing was changed: choose another name", path);
  char last = '\n';
  if (info.st_size > 0 && pread(file.fd, &last, 1, info.st_size - 1) != 1)
    fail("cannot read {}: {}; nothing was changed", path, std::strerror(errno));
  const std::string text = fmt::format("{}{}", last == '\n' ? "" : "\n", line);
  append_all(file.fd, text, path,
             "nothing was changed: free some space or choose a folder on another disk");
  if (fsync(file.fd) != 0)
    fail("cannot save {} to disk: {}; check the disk", path, std::strerror(errno));
}

}  // namespace moe
