// Static partitions over OpenMP's pool, which oneDNN shares. The split depends on (n, threads)
// alone, so the same command sums in the same order.
#pragma once

#include <omp.h>

#include <cstdint>

namespace moe {

// Cores this process may run on.
int available_threads();

struct Span {
  int64_t begin;
  int64_t end;
};

// The share of [0, n) that `part` of `parts` owns.
constexpr Span partition(int64_t n, int part, int parts) {
  return {n * part / parts, n * (part + 1) / parts};
}

// How often the calling thread has begun work together with others and waited for all of them.
int64_t& joins_of_this_thread();

// Calls f(begin, end, thread) once on each thread with a non-empty share. `f` must not throw. Work
// below `grain` items a thread uses fewer threads.
template <class F>
void parallel_for(int threads, int64_t n, int64_t grain, F&& f) {
  const int64_t useful = grain > 0 ? (n + grain - 1) / grain : n;
  const int parts = static_cast<int>(useful < threads ? (useful < 1 ? 1 : useful) : threads);
  if (n <= 0) return;
  if (parts == 1) {
    f(int64_t{0}, n, 0);
    return;
  }
  ++joins_of_this_thread();
#pragma omp parallel num_threads(parts)
  {
    const int thread = omp_get_thread_num();
    const Span span = partition(n, thread, parts);
    if (span.begin < span.end) f(span.begin, span.end, thread);
  }
}

}  // namespace moe
