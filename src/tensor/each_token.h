// A loop over tokens on the threads of a run.
#pragma once

#include <cstdint>

#include "core/threads.h"
#include "tensor/run.h"

namespace moe {

constexpr int64_t kGrain = 64;  // tokens per thread below which a second thread does not pay

template <class F>
void each_token(Run& run, int64_t tokens, F&& f) {
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) f(n);
  });
}

}  // namespace moe
