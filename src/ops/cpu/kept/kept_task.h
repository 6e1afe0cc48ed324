// What the kernels of kept_neurons.cpp are given, and how a list of kept neurons is cut: into
// stretches whose number hangs on K alone. The sums of two neighbouring stretches are added, those
// of two neighbouring pairs likewise, and so on, as a tournament is played. So the bits are the
// same however threads share the stretches, and a thread that has a run of them keeps few sums:
// those whose partner is another thread's.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace moe::ops {

// Rows of a matrix that are read together, and neurons that are computed together.
constexpr int kKeptRows = 4, kKeptGroup = 32;
// Bytes of a line of the cache.
constexpr int64_t kKeptLine = 64;
// Tokens that are walked together, so that they share what they read.
constexpr int64_t kKeptTokens = 32;

// Row i is neuron i's. rows null: there is none.
struct KeptMatrix {
  const char* rows = nullptr;  // [F,D]
  int64_t stride = 0;          // bytes
  DType dtype = DType::f32;
};

struct KeptTask {
  KeptMatrix gate, up, down;
  Act act;
  int64_t tokens, width, kept;  // N <= kKeptTokens, D, K
  const float* x;               // [N,D]
  int64_t x_stride;             // floats
  const int32_t* list;          // [N,K]
  int64_t list_stride;          // numbers
  int64_t stretches;            // a power of two
  int64_t ahead;                // so many neurons before they are needed their rows are fetched

  // Where stretch s begins in a list.
  int64_t edge(int64_t s) const {
    const int64_t groups = (kept + kKeptRows - 1) / kKeptRows,
                  at = groups * s / stretches * kKeptRows;
    return at < kept ? at : kept;
  }
};

// Some stretches whose sums have been added up; `first` is a multiple of `size`.
struct KeptNode {
  int64_t first, size;
  // Whether its partner lies before it, among the stretches from `begin` on; and both as one.
  bool joins(int64_t begin) const { return (first & size) != 0 && first - size >= begin; }
  KeptNode joined() const { return {first - size, 2 * size}; }
};

// What one thread does: stretches [begin, end). sums [depth,N,D] are the nodes it has not joined
// yet, oldest first; the last one is being added up.
struct KeptPart {
  int64_t begin, end;
  float* sums;
  float* decoded;  // [kKeptRows,D]: rows of types that no kernel reads
};

}  // namespace moe::ops
