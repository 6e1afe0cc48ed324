// Alone as ctest runs it, and once more as one of three under mpirun (comm/world@mpi).
#include "comm/world.h"

#include <unistd.h>

#include <cstdlib>

#include "comm/layout.h"
#include "support/group_check.h"

namespace moe::world_test {
namespace {

// MPI can be joined once in a process.
comm::World& world() {
  static comm::World it;
  return it;
}

TEST(World, KeepsTheWordOfAGroup) {
  const char* expected = std::getenv("MOE_TEST_PROCESSES");
  EXPECT_EQ(world().group().size, expected ? std::atoi(expected) : 1);
  test::expect_keeps_its_word(world().group());
}

TEST(World, SoDoItsParts) {
  if (world().group().size != 3) GTEST_SKIP() << "not one of three processes";
  const comm::Layout layout(world().group(), 3);
  test::expect_keeps_its_word(layout.experts());
  test::expect_keeps_its_word(layout.copies());
}

TEST(World, SharesTheCores) {
  EXPECT_GE(world().threads(), 1);
  double all = world().threads();
  world().group().sum(std::span(&all, 1));
  EXPECT_LE(all, std::max<double>(static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)),
                                  world().group().size));
}

TEST(World, NamesItself) {
  if (world().group().size == 1) EXPECT_EQ(world().name(), "");
  else EXPECT_TRUE(world().name().starts_with("process ")) << world().name();
}

}  // namespace
}  // namespace moe::world_test
