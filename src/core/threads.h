// Static partitions over OpenMP's pool, which oneDNN shares. The split depends on (n, threads)
// alone, so the same command sums in the same order.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>
#include <mutex>

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

// Runs pieces of work that may throw inside a parallel region, which no exception may leave; the
// first one is thrown again outside. What it is made of is compiled once: this header is also read
// where code for one instruction set is made.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  template <class F>
  void operator()(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      keep();
    }
  }
  void rethrow() const;

 private:
  void keep() noexcept;

  std::mutex mutex_;
  std::exception_ptr first_;
};

// Calls f(begin, end, part) once for each of the parts that are not empty, a thread each; where
// OpenMP gives fewer (inside a parallel region, or by OMP_THREAD_LIMIT or OMP_DYNAMIC) a thread
// does several, one after another. What `f` throws first is thrown again. Work below `grain` items
// a thread uses fewer threads.
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
  Guard guard;
#pragma omp parallel num_threads(parts)
  guard([&] {
    for (int part = omp_get_thread_num(); part < parts; part += omp_get_num_threads())
      if (const Span span = partition(n, part, parts); span.begin < span.end)
        f(span.begin, span.end, part);
  });
  guard.rethrow();
}

}  // namespace moe
