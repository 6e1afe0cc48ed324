// Memory that is refused: a test counts down to the allocation that fails. It replaces this
// program's operators new and delete, so one file of a test program includes it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace moe::test {

// Of this thread: how many more allocations succeed before one fails; below 0: none fails.
inline thread_local int64_t allocations_left = -1;

inline void* allocate_or_refuse(size_t bytes) noexcept {
  if (allocations_left >= 0 && allocations_left-- == 0) return nullptr;
  return std::malloc(bytes > 0 ? bytes : 1);
}

}  // namespace moe::test

// Those that throw and those that do not (std::stable_sort takes its buffer from these): all are
// malloc, as each delete is free. None is inlined: a compiler that sees the free of a delete beside
// a call of new takes them for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* p = moe::test::allocate_or_refuse(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return moe::test::allocate_or_refuse(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
