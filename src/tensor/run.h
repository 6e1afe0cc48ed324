// What every op is given first: threads, randomness, memory, and a hook for looking in.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "core/rng.h"
#include "tensor/arena.h"

namespace moe {

struct Run {
  explicit Run(int thread_count, DType compute_dtype = DType::f32)
      : threads(thread_count), compute(compute_dtype), thread_scratch(static_cast<size_t>(thread_count)) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  int threads;
  DType compute;  // dtype of activations that feed products: f32 or bf16
  RngKey key;     // empty: no randomness (evaluation)
  // Called with (name, layer, tensor) at named points of the forward; empty in production.
  std::function<void(std::string_view, int, const Tensor&)> trace;

  Arena saved;                        // what backward needs; released block by block, last in first out
  Arena scratch;                      // within one op or one module's backward; every user rewinds it before returning
  std::vector<Arena> thread_scratch;  // [threads] inside parallel regions, by thread number
};

}  // namespace moe
