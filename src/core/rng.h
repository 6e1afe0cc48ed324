// Counter-based random numbers: a draw is a pure function of (key, counter), so it does not depend
// on the order of work, on threads, or on what was drawn before, and recomputation draws the same.
// Philox 4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11).
#pragma once

#include <array>
#include <cstdint>

namespace moe {

// An empty key (value 0) means "no randomness here"; whoever takes a key checks it first.
struct RngKey {
  uint64_t value = 0;

  static RngKey from_seed(uint64_t seed);
  // A key for a named part of the work, e.g. key.fold(step).fold(layer). Never empty.
  RngKey fold(uint64_t part) const;
  bool empty() const { return value == 0; }
};

std::array<uint32_t, 4> philox(RngKey key, uint64_t counter);

// In [0, 1): 24 random bits, exact in f32.
float uniform(RngKey key, uint64_t counter);
// In [0, n), n >= 1, without modulo bias above 2^-64.
uint64_t uniform_index(RngKey key, uint64_t counter, uint64_t n);
// Standard normal by Box-Muller in double.
float normal(RngKey key, uint64_t counter);
// Standard normal cut at +-`cut` standard deviations, by redrawing.
float truncated_normal(RngKey key, uint64_t counter, float cut);

}  // namespace moe
