// A file mapped into memory, read-only. The kernel brings pages in when they are touched and may
// drop them again, so a large model costs no start-up time and no anonymous memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace moe {

// Owns the mapping; every view into it dies with it. Shortening the file while it is mapped is the
// one thing that cannot be survived, which is why everything this library writes replaces files by
// renaming (core/file.h) and never rewrites them in place.
class MappedFile {
 public:
  MappedFile() = default;
  // Regular files only; an empty one is legal.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace moe
