// Formats: proc(5) of /proc/meminfo and /proc/self/cgroup; the kernel's cgroup-v2.rst (memory.max, memory.current, memory.stat) and, for version 1,
// memory.rst (memory.limit_in_bytes, memory.usage_in_bytes).
#include "core/memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

// The number behind `key` in a file of lines "key number"; the first number of the file where `key` is empty. "max" and what is no number: nothing.
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
std::optional<int64_t> left_in(const std::string& folder, const char* limit_file, const char* usage_file, const char* droppable) {
  const auto limit = number_in(folder + limit_file, "");
  const auto usage = number_in(folder + usage_file, "");
  if (!limit || !usage) return std::nullopt;
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - number_in(folder + "/memory.stat", droppable).value_or(0)));
}

// The path of this process's group in the hierarchy whose controllers are `controllers` (version 2: none).
std::optional<std::string> group_of(const std::string& root, const std::string& controllers) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers && line.substr(second + 1).starts_with('/')) return line.substr(second + 1);
  }
  return std::nullopt;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  int64_t least = INT64_MAX;
  const auto limited = [&](std::optional<int64_t> bytes) { least = std::min(least, bytes.value_or(INT64_MAX)); };
  if (const auto kib = number_in(root + "/proc/meminfo", "MemAvailable:")) limited(*kib * 1024);
  // A limit of any group above counts too. Inside a container the group's own path may not be visible, but the top then is the group.
  const auto each_above = [](std::string group, auto&& f) {
    for (;; group.resize(group.rfind('/'))) {
      f(group == "/" ? "" : group);
      if (group.empty() || group == "/") return;
    }
  };
  if (const auto group = group_of(root, ""))
    each_above(*group, [&](const std::string& g) { limited(left_in(root + "/sys/fs/cgroup" + g, "/memory.max", "/memory.current", "inactive_file")); });
  if (const auto group = group_of(root, "memory"))
    each_above(*group, [&](const std::string& g) {
      limited(left_in(root + "/sys/fs/cgroup/memory" + g, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"));
    });
  return least;
}

int64_t parse_bytes(std::string_view text, const char* flag) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(at, static_cast<size_t>(end - at));
  double factor = 1;
  constexpr std::string_view kUnits = "KMGT";
  if (!unit.empty()) {
    const size_t power = kUnits.find(static_cast<char>(unit[0] & ~0x20));
    const std::string_view rest = unit.substr(1);
    factor = power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB") ? 0 : std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (error != std::errc() || factor == 0 || !(number >= 0) || number * factor > 9e18)
    fail_usage("{} is \"{}\"; give a number of bytes, or one with K, M, G or T behind it, as in 4G", flag, printable(text, 40));
  return static_cast<int64_t>(number * factor);
}

}  // namespace moe
