// Where paths of a run lead.
#include "jobs/run_options.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/files.h"

namespace moe::run_options_test {
namespace {

using namespace test;

namespace fs = std::filesystem;

std::string place(const std::string& path) { return place_of(path).string(); }

TEST(PlaceOf, SeesThroughLinksAndDots) {
  const TempFolder folder;
  put(folder / "there/file.txt", "text");
  fs::create_directory_symlink(folder / "there", folder / "link");
  EXPECT_EQ(place(folder / "link/../link/./file.txt"), place(folder / "there/file.txt"));
  EXPECT_EQ(place(folder / "link/none"), place(folder / "there/none"));
  EXPECT_NE(place(folder / "link"), place(folder / "none"));
  EXPECT_EQ(place(""), "");
}

// Or two of them would be the same place.
TEST(PlaceOf, LinksInACircleAreTheirOwn) {
  const TempFolder folder;
  fs::create_symlink(folder / "a", folder / "b");
  fs::create_symlink(folder / "b", folder / "a");
  EXPECT_NE(place(folder / "a"), "");
  EXPECT_NE(place(folder / "a"), place(folder / "b"));
}

}  // namespace
}  // namespace moe::run_options_test
