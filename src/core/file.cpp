#include "core/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"

namespace moe {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Hidden, in the target's own folder (rename works within one file system only), and recognisable
// as belonging to this target.
std::string temporary_prefix(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return fmt::format(".{}.tmp-", name.substr(0, 200));  // 255 is the limit of a name
}

std::string random_suffix() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = static_cast<uint64_t>(getpid());
  return fmt::format("{:016x}", bits);
}

// A writer holds a lock on its temporary file for as long as it lives, whatever its process id and
// whichever container it runs in. One that can be locked therefore belongs to nobody.
void remove_leftovers(const std::string& folder, const std::string& prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder.c_str()), closedir);
  if (!entries) return;
  std::vector<std::string> found;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    const bool ours =
        name.starts_with(prefix) && name.size() == prefix.size() + 16 &&
        name.substr(prefix.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
    if (ours) found.push_back(folder + "/" + std::string(name));
  }
  for (const std::string& path : found) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(fd);
  }
}

// Whether there is something under this name that renaming would destroy and not replace: a device,
// a pipe, a socket, or a link of the kernel's to an open file (/dev/stdout).
bool is_special(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return true;
  char target[16] = {};
  return readlink(path.c_str(), target, sizeof target - 1) > 0 &&
         std::string_view(target).starts_with("/proc/");
}

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space or choose a folder on another disk";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f) or choose another file system";
    case EACCES:
    case EPERM:
    case EROFS: return "choose a folder that may be written to";
    case ENOENT:
    case ENOTDIR: return "create its folder first";
    case EISDIR: return "choose a name that is not taken by a folder";
    case ENAMETOOLONG: return "choose a shorter name";
    default: return "check the disk, or choose another folder";
  }
}

}  // namespace

std::string read_text(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  int error = fstat(fd, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISDIR(info.st_mode)) error = EISDIR;
  if (error == 0 && !S_ISREG(info.st_mode)) error = EINVAL;
  std::string text;
  bool too_long = false;
  if (error == 0) {
    // One byte more than it may have tells "full" from "too long", also for a file that grows
    // meanwhile or says it is empty (/proc).
    char buffer[1 << 14];
    ssize_t got = 0;
    while (!too_long &&
           ((got = read(fd, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR))) {
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
      too_long = text.size() > max_bytes;
    }
    if (got < 0) error = errno;
  }
  close(fd);
  if (error != 0) fail("cannot read {}: {}", path, std::strerror(error));
  if (too_long)
    fail("{} is longer than the {} bytes allowed for it ({} bytes)", path, max_bytes,
         std::max<int64_t>(info.st_size, 0));
  return text;
}

void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("cannot open the folder {}: {}", folder, std::strerror(errno));
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  // Some file systems cannot sync a folder and say so with EINVAL; their renames are as durable as
  // they get.
  if (error != 0 && error != EINVAL && error != ENOTSUP)
    fail("cannot save the folder {} to disk: {}", folder, std::strerror(error));
}

AtomicFile::AtomicFile(std::string path, uint64_t expected_bytes)
    : path_(std::move(path)), folder_(folder_of(path_)), expected_(expected_bytes) {
  struct stat info {};
  if (path_.empty() || path_.ends_with('/') ||
      (stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode)))
    fail_write(EISDIR, expected_);
  if (is_special(path_))
    fail(
        "cannot write {}: it is a device, a pipe or a link to one, and no file; nothing was "
        "changed: choose the name of a file",
        path_);
  const std::string prefix = temporary_prefix(path_);
  remove_leftovers(folder_, prefix);
  while (fd_ < 0) {
    temporary_ = folder_ + "/" + prefix + random_suffix();
    const int fd = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
      const int error = errno;
      temporary_.clear();
      if (error != EEXIST) fail_write(error, expected_);
      continue;
    }
    fd_ = fd;
    // Another writer of the same target may have taken the new file for a leftover before it was
    // locked; then it has no name any more.
    flock(fd_, LOCK_EX);
    if (fstat(fd_, &info) != 0 || info.st_nlink == 0) {
      close(fd_);
      fd_ = -1;
    }
  }
  if (expected_ == 0) return;
  struct statvfs disk {};
  // Asked first: reserving more than there is would fill the disk for a moment.
  if (fstatvfs(fd_, &disk) == 0 && disk.f_blocks > 0 && expected_ > disk.f_bfree * disk.f_frsize)
    fail_write(ENOSPC, expected_);
  if (expected_ <= static_cast<uint64_t>(INT64_MAX) &&
      fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(expected_)) != 0) {
    // others: this file system cannot reserve
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail_write(errno, expected_);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void AtomicFile::fail_write(int error, uint64_t needed) {
  // The free bytes are counted before the temporary file goes, as they were when the write failed.
  struct statvfs disk {};
  std::string space;
  const bool about_space = error == ENOSPC || error == EDQUOT || error == EFBIG;
  if (about_space && statvfs(folder_.c_str(), &disk) == 0)
    space =
        fmt::format(" ({} bytes are needed, {} are free)", needed, disk.f_bavail * disk.f_frsize);
  discard();
  fail("cannot write {}: {}{}; nothing was changed: {}", path_, std::strerror(error), space,
       advice(error));
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (fd_ < 0) fail("cannot write {}: the file is already closed", path_);
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    // Linux takes at most 2 GiB a call
    const ssize_t done = ::write(fd_, from, std::min<size_t>(bytes, size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_write(errno, std::max(expected_, written_ + bytes));
    from += done;
    bytes -= static_cast<size_t>(done);
    written_ += static_cast<uint64_t>(done);
  }
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  if (fd_ < 0) fail("cannot write {}: the file is already closed", path_);
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done =
        ::pwrite(fd_, from, std::min<size_t>(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_write(errno, std::max(expected_, offset + bytes));
    from += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

void AtomicFile::commit() {
  if (fd_ < 0) fail("cannot write {}: the file is already closed", path_);
  if (fsync(fd_) != 0) fail_write(errno, std::max(expected_, written_));
  if (rename(temporary_.c_str(), path_.c_str()) != 0)
    fail_write(errno, std::max(expected_, written_));
  temporary_.clear();
  close(fd_);
  fd_ = -1;
  sync_folder(folder_);
}

void write_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path, bytes.size());
  file.write(bytes);
  file.commit();
}

}  // namespace moe
