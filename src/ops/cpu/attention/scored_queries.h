// Queries that score the keys before them, some at a time, and what is chosen by the scores; shared
// by those that choose keys and those that choose blocks of them.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/threads.h"
#include "ops/memory.h"
#include "ops/ops.h"
#include "tensor/run.h"

namespace moe::ops::cpu {

// Some queries and where their blocks of 64 keys stand among those of all of them.
struct ScoredQueries {
  int64_t first;                               // row
  std::vector<int64_t> sequence, block = {0};  // of each query, and of the one behind the last

  int64_t count() const { return std::ssize(sequence); }
  int64_t blocks() const { return block.back(); }
};

// f(some) of all `rows` queries, in turns of at most kScoresAtOnce numbers, `each` of a block of 64
// keys, but of one query at least.
template <class F>
void for_queries(int64_t rows, std::span<const int64_t> bounds, std::span<const int32_t> positions,
                 int64_t each, F&& f) {
  for (int64_t n = 0, s = 0; n < rows;) {
    ScoredQueries some{n, {}};
    for (; n < rows; ++n) {
      while (n >= bounds[static_cast<size_t>(s) + 1]) ++s;
      const int64_t blocks = positions[static_cast<size_t>(n)] / kKeyBlock + 1;
      if (some.count() > 0 && (some.blocks() + blocks) * each > kScoresAtOnce) break;
      some.sequence.push_back(s);
      some.block.push_back(some.blocks() + blocks);
    }
    f(some);
  }
}

// f(row, sequence, at, begin, end, scratch) of each query's blocks [begin, end) that a thread
// takes, the first of which is block `at` of all; `work`: multiply-adds of a block.
template <class F>
void score_queries(Run& run, const ScoredQueries& some, int64_t work, F&& f) {
  constexpr int64_t kGrain = int64_t{1} << 16;  // below which a thread costs more than it brings
  parallel_for(run.threads, some.blocks(), std::max<int64_t>(1, kGrain / work),
               [&](int64_t begin, int64_t end, int thread) {
                 auto query = std::upper_bound(some.block.begin(), some.block.end(), begin) - 1;
                 for (int64_t at = begin; at < end; ++query) {
                   const auto i = static_cast<size_t>(query - some.block.begin());
                   const int64_t last = std::min(end, some.block[i + 1]);
                   f(some.first + static_cast<int64_t>(i), some.sequence[i], at, at - some.block[i],
                     last - some.block[i], run.thread_scratch[static_cast<size_t>(thread)]);
                   at = last;
                 }
               });
}

// The first row of which f(row, first block, blocks, scratch) is false; -1: none.
template <class F>
int64_t first_broken(Run& run, const ScoredQueries& some, F&& f) {
  const int64_t behind = some.first + some.count();
  std::vector<int64_t> broken(static_cast<size_t>(run.threads), behind);
  parallel_for(run.threads, some.count(), 1, [&](int64_t begin, int64_t end, int thread) {
    const auto of_thread = static_cast<size_t>(thread);
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      if (f(some.first + i, some.block[at], some.block[at + 1] - some.block[at],
            run.thread_scratch[of_thread]))
        continue;
      broken[of_thread] = std::min(broken[of_thread], some.first + i);
    }
  });
  const int64_t n = *std::min_element(broken.begin(), broken.end());
  return n < behind ? n : -1;
}

}  // namespace moe::ops::cpu
