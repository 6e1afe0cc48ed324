// Small mathematics that several stages and the layer share; included by .cpp files only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tensor/each_token.h"

namespace moe {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang before 17 deduces no aggregates

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace moe
