#include "train/run_lock.h"

#include <gtest/gtest.h>

#include <optional>

#include "support/files.h"

namespace moe::test {
namespace {

TEST(RunLock, OneRunAFolder) {
  const TempFolder folder;
  std::optional<RunLock> first;
  first.emplace(folder.path());
  EXPECT_FAILS(RunLock(folder.path()), "another training run");
  first.reset();
  EXPECT_NO_THROW(RunLock(folder.path()));
  EXPECT_FAILS(RunLock(folder / "none"), "none");
  EXPECT_TRUE(folder.entries().empty()) << "it leaves nothing behind";
}

}  // namespace
}  // namespace moe::test
