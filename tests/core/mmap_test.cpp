// MappedFile: what it shows, what it refuses, and that moving it keeps views alive.
#include "core/mmap.h"

#include <sys/stat.h>

#include "support/files.h"

namespace moe::test::mmap_test {
namespace {

TEST(Mmap, ShowsTheBytesOfTheFile) {
  TempFolder folder;
  const std::string content = "eins\0zwei" + std::string(100'000, 'x');
  put(folder / "a", content);
  const MappedFile file(folder / "a");
  EXPECT_EQ(file.size(), content.size());
  EXPECT_EQ(file.text(), content);
  EXPECT_EQ(file.bytes().size(), content.size());
}

TEST(Mmap, EmptyFileIsLegal) {
  TempFolder folder;
  put(folder / "empty", "");
  const MappedFile file(folder / "empty");
  EXPECT_EQ(file.size(), 0u);
  EXPECT_EQ(file.text(), "");
}

TEST(Mmap, RefusesWhatIsNoFile) {
  TempFolder folder;
  EXPECT_FAILS(MappedFile(folder / "missing"), "missing: No such file");
  EXPECT_FAILS(MappedFile{folder.path()}, "is a folder");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_FAILS(MappedFile(folder / "pipe"), "pipe");
}

TEST(Mmap, MovingKeepsViews) {
  TempFolder folder;
  put(folder / "a", "abc");
  put(folder / "b", "defg");
  MappedFile first(folder / "a");
  const std::string_view view = first.text();
  MappedFile second(std::move(first));
  EXPECT_EQ(view, "abc");
  EXPECT_EQ(second.text().data(), view.data());
  second = MappedFile(folder / "b");
  EXPECT_EQ(second.text(), "defg");
}

}  // namespace
}  // namespace moe::test::mmap_test
