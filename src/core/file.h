// Reading small files whole, and writing any file so that a crash, a kill or a full disk leaves
// either the old file or the new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moe {

// The whole file; fails when it is missing, no regular file, or longer than `max_bytes`.
std::string read_text(const std::string& path, size_t max_bytes = size_t{64} << 20);

// Writes to a hidden name in the target's folder; commit() fsyncs, renames over the target and
// fsyncs the folder. Without commit() the destructor removes what was written. What killed
// processes left of the same target is removed first. Every failure throws and says the path, the
// system's reason, where it is about space the bytes needed and free, and what to do.
class AtomicFile {
 public:
  // `expected_bytes`, where known, is reserved at once, so that a full disk is found before the
  // work and not after it.
  explicit AtomicFile(std::string path, uint64_t expected_bytes = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Into a file whose parts come in another order than they lie; what nobody writes reads as zeros.
  // Does not move where write() goes on.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  uint64_t written() const { return written_; }
  void commit();

 private:
  [[noreturn]] void fail_write(int error, uint64_t needed);
  void discard() noexcept;

  std::string path_;
  std::string folder_;
  std::string temporary_;
  uint64_t expected_ = 0;
  uint64_t written_ = 0;
  int fd_ = -1;
};

void write_atomically(const std::string& path, std::string_view bytes);

// Makes renames and new names inside `folder` survive a power cut.
void sync_folder(const std::string& folder);

}  // namespace moe
