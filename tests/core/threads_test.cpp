// Static partitions: every item once, in one order, whatever the number of threads.
#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace moe::threads_test {
namespace {

TEST(Threads, PartitionCoversOnceAndEvenly) {
  for (const int64_t n : {0, 1, 2, 7, 64, 1001})
    for (const int parts : {1, 2, 3, 8, 13}) {
      int64_t at = 0;
      for (int part = 0; part < parts; ++part) {
        const Span span = partition(n, part, parts);
        EXPECT_EQ(span.begin, at);
        EXPECT_GE(span.end - span.begin, n / parts);
        EXPECT_LE(span.end - span.begin, n / parts + 1);
        at = span.end;
      }
      EXPECT_EQ(at, n);
    }
}

TEST(Threads, ParallelForVisitsEachItemOnce) {
  for (const int threads : {1, 2, 5})
    for (const int64_t n : {0, 1, 3, 1000})
      for (const int64_t grain : {0, 1, 400, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
        std::atomic<bool> outside = false;
        parallel_for(threads, n, grain, [&](int64_t begin, int64_t end, int thread) {
          if (thread < 0 || thread >= threads || begin >= end) outside = true;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        EXPECT_FALSE(outside);
        for (const auto& v : visits) EXPECT_EQ(v, 1);
      }
}

// Inside a parallel region OpenMP gives one thread.
TEST(Threads, FewerThreadsThanAskedForDoAllShares) {
  std::vector<std::atomic<int>> visits(100);
  std::vector<int> parts;
#pragma omp parallel num_threads(2)
#pragma omp single
  parallel_for(4, 100, 1, [&](int64_t begin, int64_t end, int part) {
    parts.push_back(part);
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  for (const auto& v : visits) EXPECT_EQ(v, 1);
  EXPECT_EQ(parts, std::vector<int>({0, 1, 2, 3}));
}

TEST(Threads, WhatIsThrownComesOut) {
  for (const int threads : {1, 4})
    EXPECT_THROW(parallel_for(threads, 100, 1,
                              [](int64_t, int64_t, int) { throw std::runtime_error("no"); }),
                 std::runtime_error);
}

TEST(Threads, SmallWorkStaysOnFewThreads) {
  std::atomic<int> calls = 0;
  parallel_for(4, 100, 1000, [&](int64_t, int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 1);
  calls = 0;
  parallel_for(4, 100, 50, [&](int64_t, int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(Threads, ThereIsAtLeastOne) { EXPECT_GE(available_threads(), 1); }

}  // namespace
}  // namespace moe::threads_test
