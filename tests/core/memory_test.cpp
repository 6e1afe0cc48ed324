// Free memory read from made-up /proc and /sys, and sizes as people write them.
#include "core/memory.h"

#include <unistd.h>

#include <filesystem>

#include "support/files.h"

namespace moe::test::memory_test {
namespace {

void put_deep(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  put(path, text);
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(AvailableMemory, IsWhatTheSystemHasLeft) {
  const TempFolder root;
  EXPECT_EQ(available_memory(root / "nowhere"), INT64_MAX);
  put_deep(root / "proc/meminfo",
           "MemTotal:       2000 kB\nMemFree:     10 kB\nMemAvailable:   1024 kB\n");
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
  put_deep(root / "sys/fs/cgroup/jobs/memory.stat",
           "anon 5\ninactive_file " + std::to_string(4 * kMiB) + "\n");
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

// In pages, as /proc/self/statm counts: address space, resident, resident pages of files, text,
// libraries, data.
void put_statm(const std::string& path, int64_t size, int64_t resident, int64_t files,
               int64_t data) {
  put_deep(path, std::to_string(size) + " " + std::to_string(resident) + " " +
                     std::to_string(files) + " 1 0 " + std::to_string(data) + " 0\n");
}

TEST(AvailableMemory, TheLimitsOfTheProcessCount) {
  const TempFolder root;
  const int64_t page = sysconf(_SC_PAGESIZE), mib = kMiB / page;
  put_deep(root / "proc/meminfo", "MemAvailable:   102400 kB\n");
  put_statm(root / "proc/self/statm", 20 * mib, 9 * mib, 3 * mib, 12 * mib);
  const auto put_limits = [&](const std::string& data, const std::string& space) {
    put_deep(root / "proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max cpu time              unlimited            unlimited            seconds   \n"
             "Max data size             " +
                 data +
                 "            unlimited            bytes     \n"
                 "Max address space         " +
                 space + "           unlimited            bytes     \n");
  };
  put_limits("unlimited", "unlimited");
  EXPECT_EQ(available_memory(root / ""), 100 * kMiB);
  put_limits("unlimited", std::to_string(50 * kMiB));
  EXPECT_EQ(available_memory(root / ""), 30 * kMiB) << "ulimit -v";
  put_limits(std::to_string(20 * kMiB), std::to_string(50 * kMiB));
  EXPECT_EQ(available_memory(root / ""), 8 * kMiB) << "ulimit -d";
  put_limits(std::to_string(kMiB), "unlimited");
  EXPECT_EQ(available_memory(root / ""), 0) << "more is held than a limit set since allows";
  EXPECT_EQ(taken_memory(root / ""), 6 * kMiB) << "pages of files do not count";
  EXPECT_GT(resident_memory(root / ""), taken_memory(root / ""));
  EXPECT_EQ(taken_memory(root / "nowhere"), 0);
  EXPECT_EQ(resident_memory(root / "nowhere"), 0);
}

TEST(TakenMemory, IsWhatThisProcessHolds) {
  const int64_t before = taken_memory();
  EXPECT_GT(before, 0);
  const std::vector<char> held(static_cast<size_t>(32 * kMiB), 'x');
  EXPECT_GE(taken_memory(), before + 31 * kMiB);
}

TEST(MemoryNeed, AddsUpByName) {
  MemoryNeed need, other;
  need.add("weights", 100 * kMiB);
  need.add("cache", 0);
  other.add("packed", 20 * kMiB);
  other.add("weights", kMiB);
  need.add(other);
  ASSERT_EQ(need.parts.size(), 2u);
  EXPECT_EQ(need.total(), 121 * kMiB);
  EXPECT_EQ(describe(need, 14 * kMiB),
            "135 MiB estimated: taken already 14.0 MiB, weights 101 MiB, packed 20.0 MiB");
}

TEST(CheckMemory, RefusesWhatDoesNotFitAndSaysWhatToLower) {
  MemoryNeed need;
  need.add("activations", int64_t{1} << 60);
  check_memory({}, {}, "");
  EXPECT_FAILS(check_memory(need, {}, "lower --batch"), "activations 1048576 TiB), ");
  EXPECT_FAILS(check_memory(need, {}, "lower --batch"),
               " are free (memory SIZE says otherwise); lower --batch");
  EXPECT_FAILS(check_memory(need, {.all = int64_t{1} << 40, .packed = {}}, "lower --batch"),
               " are left of memory; lower --batch");
  check_memory(need, {.all = int64_t{1} << 61, .packed = {}}, "");
  EXPECT_THROW(check_memory(need, {}, ""), OutOfMemory);
}

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("4G", "x"), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5g", "x"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512MiB", "x"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("100KB", "x"), 102400);
  EXPECT_EQ(parse_bytes("0", "x"), 0);
  for (const char* bad : {"", "G", "4X", "4GG", "-1G", "4 G", "1e30", "nan", "inf", "4G4"})
    EXPECT_FAILS(parse_bytes(bad, "x"), "x is");
}

}  // namespace
}  // namespace moe::test::memory_test
