#include "comm/identity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace moe::comm {
namespace {

std::string target_of(const char* link) {
  std::error_code error;
  return std::filesystem::read_symlink(link, error).string();
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// In ticks since the machine's boot: field 22 of /proc/PID/stat (proc(5)).
std::string start_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  // Field 2 is the program's name in brackets, and may hold spaces and brackets itself.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number)
    if (!(fields >> field)) return "";
  return field;
}

}  // namespace

std::string identity_of(pid_t pid) {
  // A container may have been given the /proc of another namespace, whose numbers are others.
  if (target_of("/proc/self") != std::to_string(getpid())) return "";
  const std::string boot = boot_id(), numbers = target_of("/proc/self/ns/pid"),
                    start = start_of(pid);
  if (boot.empty() || numbers.empty() || start.empty()) return "";
  return fmt::format("{} {} {} {}", boot, numbers, pid, start);
}

bool end_process(const std::string& identity) {
  std::istringstream words(identity);
  std::string boot, numbers;
  pid_t pid = 0;
  if (!(words >> boot >> numbers >> pid) || pid <= 0 || identity_of(pid) != identity) return false;
  return kill(pid, SIGKILL) == 0;
}

}  // namespace moe::comm
