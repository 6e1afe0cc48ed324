// How much memory this process may still take, and what a piece of work will take of it: refused
// before it starts where that is more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace moe {

// Memory that was refused, by the system or before it was asked for. Nothing that is computed is
// wrong, there is only no room to compute it in.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// Bytes: what the system has left without swapping (MemAvailable), or what the limits of the
// control groups and of the process (ulimit -v, ulimit -d) leave, where that is less. Pages of
// mapped files count as free, as the kernel drops them when it has to. INT64_MAX where the system
// does not say. `root`: where /proc and /sys lie, for tests.
int64_t available_memory(const std::string& root = "");
// Bytes that this process holds and that are no file's pages: they stay until it gives them back. 0
// where the system does not say.
int64_t taken_memory(const std::string& root = "");
// With the pages of files that it has touched, its own program's among them.
int64_t resident_memory(const std::string& root = "");

// What a piece of work takes at its fullest moment, beside what the process holds already.
struct MemoryNeed {
  struct Part {
    std::string name;
    int64_t bytes = 0;
  };
  std::vector<Part> parts;  // as they were added

  // Parts of one name are one part; one without bytes is left out.
  void add(std::string_view name, int64_t bytes);
  void add(const MemoryNeed& other);
  int64_t total() const;
};
// "312 MiB estimated: taken 14 MiB, weights 102 MiB, ...", what is held already being the first
// part. `taken`: taken_memory().
std::string describe(const MemoryNeed&, int64_t taken);

// What a run may use.
struct MemoryLimits {
  std::optional<int64_t> all;  // of the whole process; absent: what it holds and what is available
  std::optional<int64_t> packed;  // of copies that products keep of weights in files
                                  // (ops/memory.h); absent: half of what is left
  // Bytes beside what the process holds already.
  int64_t left() const;
  int64_t for_copies() const { return packed.value_or(left() / 2); }
};

// Throws OutOfMemory where the need is more than what is left, with its parts; `advice` says what
// to lower.
void check_memory(const MemoryNeed&, const MemoryLimits&, const std::string& advice);
// Checks one of several: what does not fit is said with its name in front.
void check_memory_of(const std::string& name, const std::function<void()>& check);

// "4G", "512M", "1.5G", "1000000": a number of bytes, or of KiB, MiB, GiB, TiB behind it. Fails
// (usage), naming the field.
int64_t parse_bytes(std::string_view text, std::string_view field_name);

}  // namespace moe
