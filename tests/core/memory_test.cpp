// Free memory read from made-up /proc and /sys, and sizes as people write them.
#include "core/memory.h"

#include <filesystem>

#include "support/files.h"

namespace moe::test {
namespace {

void put_deep(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  put(path, text);
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(AvailableMemory, IsWhatTheSystemHasLeft) {
  const TempFolder root;
  EXPECT_EQ(available_memory(root / "nowhere"), INT64_MAX);
  put_deep(root / "proc/meminfo", "MemTotal:       2000 kB\nMemFree:     10 kB\nMemAvailable:   1024 kB\n");
  EXPECT_EQ(available_memory(root / ""), kMiB);
  EXPECT_GT(available_memory(), 0) << "of this machine";
}

TEST(AvailableMemory, AGroupsLimitCounts) {
  const TempFolder root;
  put_deep(root / "proc/meminfo", "MemAvailable:   102400 kB\n");
  put_deep(root / "proc/self/cgroup", "0::/jobs/mine\n");
  put_deep(root / "sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  put_deep(root / "sys/fs/cgroup/jobs/mine/memory.current", "1000\n");
  EXPECT_EQ(available_memory(root / ""), 100 * kMiB) << "no limit";
  put_deep(root / "sys/fs/cgroup/jobs/memory.max", std::to_string(50 * kMiB));
  put_deep(root / "sys/fs/cgroup/jobs/memory.current", std::to_string(30 * kMiB));
  EXPECT_EQ(available_memory(root / ""), 20 * kMiB) << "of the group above";
  put_deep(root / "sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file " + std::to_string(4 * kMiB) + "\n");
  EXPECT_EQ(available_memory(root / ""), 24 * kMiB) << "file pages can be dropped";
  put_deep(root / "sys/fs/cgroup/jobs/memory.current", std::to_string(90 * kMiB));
  EXPECT_EQ(available_memory(root / ""), 0);
}

TEST(AvailableMemory, AGroupOfTheOlderKindCountsToo) {
  const TempFolder root;
  put_deep(root / "proc/meminfo", "MemAvailable:   102400 kB\n");
  put_deep(root / "proc/self/cgroup", "7:cpu:/x\n3:memory:/x\n");
  put_deep(root / "sys/fs/cgroup/memory/x/memory.limit_in_bytes", std::to_string(8 * kMiB));
  put_deep(root / "sys/fs/cgroup/memory/x/memory.usage_in_bytes", std::to_string(3 * kMiB));
  EXPECT_EQ(available_memory(root / ""), 5 * kMiB);
}

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("4G", "--x"), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5g", "--x"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512MiB", "--x"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("100KB", "--x"), 102400);
  EXPECT_EQ(parse_bytes("0", "--x"), 0);
  for (const char* bad : {"", "G", "4X", "4GG", "-1G", "4 G", "1e30", "nan", "inf", "4G4"}) EXPECT_FAILS(parse_bytes(bad, "--x"), "--x is");
}

}  // namespace
}  // namespace moe::test
