// Small mathematics that several stages share; included by the stages' .cpp files only.
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

// y = softmax(x) over n entries; x may be y.
inline void softmax(float* y, const float* x, int64_t n) {
  const float top = *std::max_element(x, x + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

// dx = y * (dy - <dy, y>), the adjoint of softmax; dx may be dy.
inline void softmax_backward(float* dx, const float* dy, const float* y, int64_t n) {
  float dot = 0;
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * y[i];
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dot);
}

template <class F>
void each_token(Run& run, int64_t tokens, F&& f) {
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) f(n);
  });
}

}  // namespace moe
