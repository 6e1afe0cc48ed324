// The arena: alignment, chunks that never move, rewinding, and the pattern that debug builds leave
// behind.
#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "support/files.h"

namespace moe::arena_test {
namespace {

TEST(Arena, AllocationsAreAlignedAndDistinct) {
  Arena arena;
  char* last = nullptr;
  for (const size_t bytes : {0, 1, 63, 64, 65, 1000}) {
    char* p = static_cast<char*>(arena.alloc_bytes(bytes));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    EXPECT_GE(p, last);
    std::memset(p, 1, bytes);
    last = p + std::max<size_t>(bytes, 1);
  }
}

TEST(Arena, TensorsHaveTheirShape) {
  Arena arena;
  const Tensor t = arena.alloc_zeroed(DType::bf16, {3, 5});  // [3,5]
  EXPECT_EQ(t.bytes(), 30);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 5; ++c) EXPECT_EQ(t.row<bf16>(r)[c].bits, 0);
}

TEST(Arena, GrowsWithoutMovingWhatItGave) {
  Arena arena;
  const Tensor first = arena.alloc(DType::f32, {1000});
  first.as<float>()[999] = 42;
  for (int i = 0; i < 20; ++i) arena.alloc_zeroed(DType::f32, {1 << 20});
  EXPECT_EQ(first.as<float>()[999], 42.0f);
  EXPECT_GE(arena.capacity(), size_t{20} * (4 << 20));
}

TEST(Arena, RewindGivesTheSameMemoryAgain) {
  Arena arena;
  arena.alloc_bytes(100);
  const Arena::Mark mark = arena.mark();
  void* first = arena.alloc_bytes(1 << 20);
  arena.alloc_bytes(64 << 20);
  const size_t capacity = arena.capacity();
  arena.rewind(mark);
  EXPECT_EQ(arena.alloc_bytes(1 << 20), first);
  arena.alloc_bytes(64 << 20);
  EXPECT_EQ(arena.capacity(), capacity) << "chunks are kept";
}

// Large pieces skip what is left of the chunks before them.
TEST(Arena, EmptyAgainItHoldsHardlyMoreThanWasInUse) {
  Arena arena;
  const auto step = [&] {
    ArenaScope scope(arena);
    for (const size_t megabytes : {3, 2, 5, 9, 17, 33}) arena.alloc_bytes(megabytes << 20);
    return arena.capacity();
  };
  const size_t first = step();
  EXPECT_GT(first, arena.peak() + arena.peak() / 4);
  const size_t second = step();
  EXPECT_LT(second, arena.peak() + arena.peak() / 4);
  EXPECT_EQ(step(), second);
  // Within what it holds, it takes nothing new.
  ArenaScope scope(arena);
  arena.alloc_bytes(arena.peak());
  EXPECT_EQ(arena.capacity(), second);
}

TEST(Arena, ScopesNest) {
  Arena arena;
  void* outer = nullptr;
  {
    ArenaScope scope(arena);
    outer = arena.alloc_bytes(10);
    void* inner = nullptr;
    {
      ArenaScope nested(arena);
      inner = arena.alloc_bytes(10);
    }
    EXPECT_EQ(arena.alloc_bytes(10), inner);
  }
  EXPECT_EQ(arena.alloc_bytes(10), outer);
}

TEST(Arena, DebugBuildsPoisonWhatWasRewound) {
  Arena arena;
  const Arena::Mark mark = arena.mark();
  const Tensor t = arena.alloc_zeroed(DType::f32, {16});  // [16]
  arena.rewind(mark);
#ifdef NDEBUG
  EXPECT_EQ(t.as<float>()[3], 0.0f) << "release builds spend no time on it";
#else
  EXPECT_TRUE(std::isnan(t.as<float>()[3]));
#endif
}

// Sanitizers end the process instead.
#ifndef MOE_SANITIZED
TEST(Arena, SaysWhatToDoWithoutMemory) {
  Arena arena;
  EXPECT_FAILS(arena.alloc_bytes(size_t{1} << 60),
               "1099511627776 MiB more were needed, 0 MiB are in use; use shorter texts");
  EXPECT_NE(arena.alloc_bytes(64), nullptr);
}
#endif

}  // namespace
}  // namespace moe::arena_test
