// How the numbers of a block become the integers that it stores, once its scales are chosen.
#pragma once

#include <array>
#include <cstdint>

namespace moe {

// What a block's numbers may become: number i, of group g = i / group, step[g] q - below[g] with q
// in 0..top, or step[g] levels[q].
struct BlockGrid {
  int numbers, group, top;
  const float *step, *below;                       // [numbers / group]
  const std::array<int8_t, 16>* levels = nullptr;  // ascending; below is then not read
  float value(int i, int q) const;
  // The q whose value is nearest to x, or nearly so.
  int nearest(int i, float x) const;
};

// Chooses the integers of a block in place of the nearest ones.
class BlockRounding {
 public:
  virtual ~BlockRounding() = default;
  // q [numbers]; x [numbers]
  virtual void round(int* q, const float* x, const BlockGrid&) = 0;
};

}  // namespace moe
