// Atomic writing: the target is the old file or the new one, nothing is left behind, and a failure
// says what to do.
#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "support/files.h"

namespace moe::test::file_test {
namespace {

using Names = std::vector<std::string>;

TEST(ReadText, WholeFileUpToTheLimit) {
  TempFolder folder;
  put(folder / "a", std::string(50'000, 'q'));
  EXPECT_EQ(read_text(folder / "a"), std::string(50'000, 'q'));
  EXPECT_EQ(read_text(folder / "a", 50'000).size(), 50'000u);
  EXPECT_FAILS(read_text(folder / "a", 49'999), "longer than the 49999 bytes");
  EXPECT_FAILS(read_text(folder / "no"), "No such file");
  EXPECT_FAILS(read_text(folder.path()), "Is a directory");
}

TEST(AtomicFile, TakesPartsInAnyOrder) {
  TempFolder folder;
  AtomicFile file(folder / "t", 12);
  file.write("ab");
  file.write_at(8, "last", 4);
  file.write_at(4, "mid", 3);
  file.write("cd");
  file.commit();
  EXPECT_EQ(slurp(folder / "t"), std::string("abcdmid\0last", 12));
  EXPECT_FAILS(file.write_at(0, "x", 1), "already closed");
}

TEST(AtomicFile, ReplacesOnCommitOnly) {
  TempFolder folder;
  put(folder / "t", "old");
  {
    AtomicFile file(folder / "t", 8);
    file.write("new ");
    file.write("text");
    EXPECT_EQ(file.written(), 8u);
    EXPECT_EQ(slurp(folder / "t"), "old");
    EXPECT_EQ(folder.entries().size(), 2u);
    file.commit();
    EXPECT_EQ(slurp(folder / "t"), "new text");
    EXPECT_FAILS(file.write("more"), "closed");
  }
  EXPECT_EQ(folder.entries(), Names{"t"});
  EXPECT_EQ(slurp(folder / "t"), "new text");
}

TEST(AtomicFile, LeavesDevicesPipesAndOpenFilesAlone) {
  TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/full", (folder / "full").c_str()), 0);
  ASSERT_EQ(symlink("/proc/self/fd/1", (folder / "stdout").c_str()), 0);
  const Names before = folder.entries();
  for (const char* name : {"pipe", "full", "stdout"})
    EXPECT_FAILS(AtomicFile(folder / name).write("x"), "choose the name of a file") << name;
  EXPECT_EQ(folder.entries(), before);
  struct stat info {};
  ASSERT_EQ(lstat((folder / "pipe").c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
  put(folder / "file", "old");
  ASSERT_EQ(symlink("file", (folder / "link").c_str()), 0);
  write_atomically(folder / "link", "new");
  EXPECT_EQ(slurp(folder / "link"), "new");
}

TEST(AtomicFile, AbandonedLeavesNothing) {
  TempFolder folder;
  put(folder / "t", "old");
  { AtomicFile(folder / "t", 100).write("half"); }
  EXPECT_EQ(folder.entries(), Names{"t"});
  EXPECT_EQ(slurp(folder / "t"), "old");
}

TEST(AtomicFile, KeepsTheUsualPermissionsAndSize) {
  TempFolder folder;
  const mode_t before = umask(022);
  // Reserved space beyond what was written must not show.
  AtomicFile file(folder / "t", 1 << 20);
  file.write("abc");
  file.commit();
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat((folder / "t").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
  EXPECT_EQ(info.st_size, 3);
}

TEST(AtomicFile, RemovesWhatAKilledProcessLeft) {
  TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(folder / "t", 1000);
    file.write("half of it");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(folder.entries().size(), 1u) << "the child was to leave a temporary file";
  put(folder / ".t.tmp-notours", "kept");
  put(folder / ".u.tmp-0123456789abcdef", "of another target");
  write_atomically(folder / "t", "whole");
  EXPECT_EQ(folder.entries(), (Names{".t.tmp-notours", ".u.tmp-0123456789abcdef", "t"}));
  EXPECT_EQ(slurp(folder / "t"), "whole");
}

TEST(AtomicFile, LeavesALivingWriterAlone) {
  TempFolder folder;
  AtomicFile first(folder / "t");
  first.write("first");
  write_atomically(folder / "t", "second");
  EXPECT_EQ(slurp(folder / "t"), "second");
  first.commit();
  EXPECT_EQ(slurp(folder / "t"), "first");
  EXPECT_EQ(folder.entries(), Names{"t"});
}

TEST(AtomicFile, SaysWhyItCannotWrite) {
  TempFolder folder;
  EXPECT_FAILS(write_atomically(folder / "no/t", "x"), "No such file or directory");
  EXPECT_FAILS(write_atomically(folder / "no/t", "x"), "create its folder");
  EXPECT_FAILS(write_atomically(folder.path(), "x"), "Is a directory");
  EXPECT_FAILS(write_atomically(folder / std::string(300, 'n'), "x"), "shorter name");
  EXPECT_TRUE(folder.entries().empty());
}

// What has nothing to do with space says nothing of bytes.
TEST(AtomicFile, NamesTheReason) {
  constexpr uid_t kNobody = 65534;
  const TempFolder folder;
  const auto said = [](const std::string& path) {
    return message_of([&] { AtomicFile file(path, 100); });
  };
  const std::string missing = said(folder / "none/t");
  // Root may write anywhere, but not as another user of files, which a thread can be for a moment.
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  const int owner = setfsuid(kNobody);
  const std::string denied = said(folder / "t");
  setfsuid(static_cast<uid_t>(owner));
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  for (const std::string& message : {missing, denied})
    EXPECT_EQ(message.find("bytes"), std::string::npos) << message;
  EXPECT_NE(missing.find("No such file or directory; nothing was changed: create its folder first"),
            std::string::npos)
      << missing;
  EXPECT_NE(denied.find("choose a folder that may be written to"), std::string::npos) << denied;
}

// More than the disk has is refused before anything is written.
TEST(AtomicFile, FullDiskIsFoundFirst) {
  TempFolder folder;
  put(folder / "t", "old");
  struct statvfs disk {};
  ASSERT_EQ(statvfs(folder.path().c_str(), &disk), 0);
  const uint64_t needed = disk.f_blocks * disk.f_frsize + (uint64_t{1} << 30);
  const std::string message = message_of([&] { AtomicFile(folder / "t", needed); });
  EXPECT_NE(message.find(folder / "t"), std::string::npos) << message;
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(needed) + " bytes are needed"), std::string::npos)
      << message;
  EXPECT_NE(message.find("free some space"), std::string::npos) << message;
  EXPECT_EQ(folder.entries(), Names{"t"});
  EXPECT_EQ(slurp(folder / "t"), "old");
}

// A write that fails half-way, here by a limit on the size of files, takes the temporary file with
// it.
TEST(AtomicFile, FailureHalfWayRemovesTheTemporary) {
  TempFolder folder;
  put(folder / "t", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  bool abandoned = false;
  try {
    AtomicFile file(folder / "t");
    file.write(std::string(1 << 15, 'x'));
    file.write(std::string(1 << 20, 'x'));
    file.commit();
  } catch (const Error& e) {
    message = e.what();
    abandoned = true;
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(abandoned);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string((1 << 15) + (1 << 20)) + " bytes are needed"),
            std::string::npos)
      << message;
  EXPECT_EQ(folder.entries(), Names{"t"});
  EXPECT_EQ(slurp(folder / "t"), "old");
}

// At whatever moment the writer is killed, the target is whole.
TEST(AtomicFile, KilledAtAnyMomentTheTargetIsWhole) {
  TempFolder folder;
  const std::string a(3 << 20, 'a'), b(2 << 20, 'b');
  put(folder / "t", a);
  for (int trial = 0; trial < 20; ++trial) {
    const pid_t child = fork();
    if (child == 0) {
      for (bool odd = false;; odd = !odd) write_atomically(folder / "t", odd ? a : b);
    }
    usleep(static_cast<useconds_t>(500 + 700 * trial));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    const std::string now = slurp(folder / "t");
    ASSERT_TRUE(now == a || now == b) << "torn after " << trial << ": " << now.size() << " bytes";
  }
  write_atomically(folder / "t", "end");
  EXPECT_EQ(folder.entries(), Names{"t"});
}

}  // namespace
}  // namespace moe::test::file_test
