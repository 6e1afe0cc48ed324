#include "train/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <optional>

#include "support/files.h"

namespace moe::test::run_lock_test {
namespace {

TEST(RunLock, OneRunAFolder) {
  const TempFolder folder;
  std::optional<RunLock> first(std::in_place);
  first->take(folder.path());
  first->take(folder.path());
  RunLock second;
  EXPECT_FAILS(second.take(folder.path()), "another training run");
  first.reset();
  EXPECT_NO_THROW(second.take(folder.path()));
  EXPECT_FAILS(RunLock().take(folder / "none"), "none");
  EXPECT_TRUE(folder.entries().empty()) << "it leaves nothing behind";
}

// As when the process that took it is lost, or stopped and never lets go.
TEST(RunLock, StaysWithTheProcessesOfTheRun) {
  const TempFolder folder;
  std::optional<RunLock> first(std::in_place), second(std::in_place), third(std::in_place);
  first->take(folder.path());
  second->join(folder.path());
  third->join(folder.path());
  EXPECT_NO_THROW(second->take(folder.path())) << "it goes on in the first one's place";
  first.reset();
  second.reset();
  EXPECT_FAILS(RunLock().take(folder.path()), "another training run");
  third.reset();
  EXPECT_NO_THROW(RunLock().take(folder.path()));
  EXPECT_NO_THROW(RunLock().join(folder / "none")) << "it may be on another machine";
}

// Where the lock of a folder is not seen from another machine, that of a file may be.
TEST(RunLock, HoldsTheMetricsToo) {
  const TempFolder folder;
  put(folder / "metrics.jsonl", "");
  std::optional<RunLock> first(std::in_place);
  first->take(folder.path());
  const int fd = open((folder / "metrics.jsonl").c_str(), O_RDWR);
  EXPECT_NE(flock(fd, LOCK_EX | LOCK_NB), 0);
  first.reset();
  EXPECT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_FAILS(RunLock().take(folder.path()), "metrics.jsonl is being written by another");
  close(fd);
}

}  // namespace
}  // namespace moe::test::run_lock_test
