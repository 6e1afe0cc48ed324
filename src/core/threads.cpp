#include "core/threads.h"

#include <sched.h>

namespace moe {

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return omp_get_num_procs();
  return CPU_COUNT(&set);
}

int64_t& joins_of_this_thread() {
  thread_local int64_t joins = 0;
  return joins;
}

Guard::Guard() = default;
Guard::~Guard() = default;

void Guard::keep() noexcept {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = std::current_exception();
}

void Guard::rethrow() const {
  if (first_) std::rethrow_exception(first_);
}

}  // namespace moe
