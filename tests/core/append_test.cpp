// Appending keeps what was there: other lines, links, permissions; and a line that does not fit
// leaves nothing of itself.
#include "core/append.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "support/files.h"

namespace moe::test::append_test {
namespace {

TEST(AppendLine, ComesAfterAWholeLine) {
  const TempFolder folder;
  const std::string path = folder / "a";
  append_line(path, "one\n");
  append_line(path, "two\n");
  EXPECT_EQ(slurp(path), "one\ntwo\n");
  put(path, "no newline");
  append_line(path, "three\n");
  EXPECT_EQ(slurp(path), "no newline\nthree\n");
}

TEST(AppendLine, LeavesLinksAndPermissions) {
  const TempFolder folder;
  const std::string path = folder / "a", link = folder / "link";
  put(path, "one\n");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::filesystem::create_symlink(path, link);
  append_line(link, "two\n");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(slurp(path), "one\ntwo\n");
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(AppendLine, TwoAtOnceLoseNothing) {
  const TempFolder folder;
  const std::string path = folder / "a";
  const pid_t child = fork();
  for (int i = 0; i < 100; ++i) append_line(path, child == 0 ? "child\n" : "parent\n");
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const std::string text = slurp(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200);
  EXPECT_EQ(text.size(), 100 * (std::string("child\n").size() + std::string("parent\n").size()));
}

TEST(AppendLine, WhatDoesNotFitLeavesNothing) {
  const TempFolder folder;
  const std::string path = folder / "a";
  put(path, "one\n");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_FAILS(append_line(path, std::string(2000, 'x') + "\n"),
               "File too large; nothing was changed");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(slurp(path), "one\n");
}

TEST(AppendLine, RefusesWhatIsNoFile) {
  const TempFolder folder;
  EXPECT_FAILS(append_line(folder / "none/a", "x\n"),
               "none/a: No such file or directory; nothing was changed");
  EXPECT_FAILS(append_line(folder / "", "x\n"), "nothing was changed");
  EXPECT_FAILS(append_line("/dev/null", "x\n"), "no regular file");
}

}  // namespace
}  // namespace moe::test::append_test
