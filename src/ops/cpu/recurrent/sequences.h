// What the ops that go through texts token after token have in common.
#pragma once

#include <algorithm>
#include <span>

#include "ops/cpu/spans.h"

namespace moe::ops::cpu {

inline void need_bounds(const char* op, std::span<const int64_t> bounds, const char* name,
                        const Tensor& rows) {
  need(bounds.size() >= 2 && bounds.front() == 0 && bounds.back() == rows.rows() &&
           std::is_sorted(bounds.begin(), bounds.end()),
       op, "bounds that rise from 0 to the number of rows", {{name, rows}});
}

// f(sequence, one of `parts`, thread's memory): they share nothing that is written.
template <class F>
void each_part(Run& run, int64_t parts, std::span<const int64_t> bounds, F&& f) {
  const int64_t jobs = parts * static_cast<int64_t>(bounds.size() - 1);
  parallel_for(run.threads, jobs, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t job = begin; job < end; ++job) {
      Arena& memory = run.thread_scratch[static_cast<size_t>(thread)];
      const ArenaScope scope(memory);
      f(static_cast<size_t>(job / parts), job % parts, memory);
    }
  });
}

// to [cols] = a row of x, f32 or bf16 (state_space.cpp).
void widen_row(float* to, const Tensor& x, int64_t row);

}  // namespace moe::ops::cpu
