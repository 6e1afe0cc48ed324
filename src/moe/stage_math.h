// Small mathematics that several stages and the layer share; included by .cpp files only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/threads.h"
#include "tensor/run.h"

namespace moe {

constexpr int64_t kGrain = 64;  // tokens per thread below which a second thread does not pay
constexpr float kRenormFloor = 1e-20f;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang before 17 deduces no aggregates

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class F>
void each_token(Run& run, int64_t tokens, F&& f) {
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) f(n);
  });
}

}  // namespace moe
