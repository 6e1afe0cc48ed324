// Formats: proc(5) of /proc/meminfo, /proc/self/cgroup, limits and statm; the kernel's
// cgroup-v2.rst (memory.max, memory.current, memory.stat) and, for version 1, memory.rst
// (memory.limit_in_bytes, memory.usage_in_bytes).
#include "core/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include "core/nearest.h"
#include "core/words.h"

namespace moe {
namespace {

// The number behind `key` in a file of lines "key number"; the first number of the file where `key`
// is empty. "max" and what is no number: nothing.
std::optional<int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (!key.empty() && (!(words >> name) || name != key)) continue;
    if (words >> value && value >= 0) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

// What a group's own limit leaves; the file pages that it could drop count as free.
std::optional<int64_t> left_in(const std::string& folder, const char* limit_file,
                               const char* usage_file, const char* droppable) {
  const auto limit = number_in(folder + limit_file, "");
  const auto usage = number_in(folder + usage_file, "");
  if (!limit || !usage) return std::nullopt;
  return std::max<int64_t>(
      0, *limit - std::max<int64_t>(
                      0, *usage - number_in(folder + "/memory.stat", droppable).value_or(0)));
}

// The path of this process's group in the hierarchy whose controllers are `controllers` (version 2:
// none).
std::optional<std::string> group_of(const std::string& root, const std::string& controllers) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers &&
        line.substr(second + 1).starts_with('/'))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

// The soft limit in the line of /proc/self/limits that begins with `name`.
std::optional<int64_t> own_limit(const std::string& root, std::string_view name) {
  std::ifstream in(root + "/proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    if (int64_t value = 0; words >> value) return value;
    return std::nullopt;
  }
  return std::nullopt;
}

// Field `index` of /proc/self/statm, which counts pages: 0 address space, 1 resident, 2 resident
// pages of files, 5 data and stack.
std::optional<int64_t> own_pages(const std::string& root, int index) {
  std::ifstream in(root + "/proc/self/statm");
  int64_t pages = 0;
  for (int i = 0; i <= index; ++i)
    if (!(in >> pages)) return std::nullopt;
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

int64_t taken_memory(const std::string& root) {
  return std::max<int64_t>(0, own_pages(root, 1).value_or(0) - own_pages(root, 2).value_or(0));
}

int64_t resident_memory(const std::string& root) { return own_pages(root, 1).value_or(0); }

int64_t available_memory(const std::string& root) {
  int64_t least = INT64_MAX;
  const auto limited = [&](std::optional<int64_t> bytes) {
    least = std::min(least, bytes.value_or(INT64_MAX));
  };
  if (const auto kib = number_in(root + "/proc/meminfo", "MemAvailable:")) limited(*kib * 1024);
  // A limit of any group above counts too. Inside a container the group's own path may not be
  // visible, but the top then is the group.
  const auto each_above = [](std::string group, auto&& f) {
    for (;; group.resize(group.rfind('/'))) {
      f(group == "/" ? "" : group);
      if (group.empty() || group == "/") return;
    }
  };
  if (const auto group = group_of(root, ""))
    each_above(*group, [&](const std::string& g) {
      limited(
          left_in(root + "/sys/fs/cgroup" + g, "/memory.max", "/memory.current", "inactive_file"));
    });
  if (const auto group = group_of(root, "memory"))
    each_above(*group, [&](const std::string& g) {
      limited(left_in(root + "/sys/fs/cgroup/memory" + g, "/memory.limit_in_bytes",
                      "/memory.usage_in_bytes", "total_inactive_file"));
    });
  const auto own = [&](std::string_view name, int index) {
    const auto limit = own_limit(root, name), used = own_pages(root, index);
    if (limit && used) limited(std::max<int64_t>(0, *limit - *used));
  };
  own("Max address space", 0);
  own("Max data size", 5);
  return least;
}

void MemoryNeed::add(std::string_view name, int64_t bytes) {
  if (bytes <= 0) return;
  for (Part& part : parts)
    if (part.name == name) {
      part.bytes += bytes;
      return;
    }
  parts.push_back({std::string(name), bytes});
}

void MemoryNeed::add(const MemoryNeed& other) {
  for (const Part& part : other.parts) add(part.name, part.bytes);
}

int64_t MemoryNeed::total() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.bytes;
  return sum;
}

std::string describe(const MemoryNeed& need, int64_t taken) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::string text =
      fmt::format("{} estimated: taken already {}", size(taken + need.total()), size(taken));
  for (const MemoryNeed::Part& part : need.parts)
    text += fmt::format(", {} {}", part.name, size(part.bytes));
  return text;
}

int64_t MemoryLimits::left() const {
  return all ? std::max<int64_t>(0, *all - taken_memory()) : available_memory();
}

void check_memory(const MemoryNeed& need, const MemoryLimits& limits, const std::string& advice) {
  const int64_t left = limits.left();
  if (need.total() <= left) return;
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::string parts;
  for (const MemoryNeed::Part& part : need.parts)
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part.name, size(part.bytes));
  throw OutOfMemory(
      message("this needs {} more of memory ({}), {} {}; {}", size(need.total()), parts, size(left),
              marked(limits.all ? "are left of @memory" : "are free (@memory SIZE says otherwise)"),
              advice));
}

void check_memory_of(const std::string& name, const std::function<void()>& check) {
  try {
    check();
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(fmt::format("{}: {}", name, e.marked()));
  }
}

int64_t parse_bytes(std::string_view text, std::string_view field_name) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(at, static_cast<size_t>(end - at));
  double factor = 1;
  constexpr std::string_view kUnits = "KMGT";
  if (!unit.empty()) {
    const size_t power = kUnits.find(static_cast<char>(unit[0] & ~0x20));
    const std::string_view rest = unit.substr(1);
    factor = power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB")
                 ? 0
                 : std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (error != std::errc() || factor == 0 || !(number >= 0) || number * factor > 9e18)
    fail_usage("{} is \"{}\"; give a number of bytes, or one with K, M, G or T behind it, as in 4G",
               field(field_name), printable(text, 40));
  return static_cast<int64_t>(number * factor);
}

}  // namespace moe
