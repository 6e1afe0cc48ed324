// What plain loops need of one number.
#pragma once

#include <cmath>

#include "tensor/dtype.h"

namespace moe::ops::cpu {

// float or double
template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

// log(1 + e^x); beyond 20 that is x in f32 (as torch.nn.functional.softplus has it)
inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// to = x, in the type of `to`
inline void put(float& to, float x) { to = x; }
inline void put(bf16& to, float x) { to = to_bf16(x); }

}  // namespace moe::ops::cpu
