#include "tensor/quant_rounding.h"

#include "tensor/quant_parts.h"

namespace moe {

float BlockGrid::value(int i, int q) const {
  const int g = i / group;
  if (levels != nullptr) return step[g] * static_cast<float>((*levels)[static_cast<size_t>(q)]);
  return step[g] * static_cast<float>(q) - below[g];
}

int BlockGrid::nearest(int i, float x) const {
  const int g = i / group;
  if (levels == nullptr)
    return static_cast<int>(
        clamped(nearest_even((x + below[g]) / step[g]), 0, static_cast<float>(top)));
  const float level = x * finite_ratio(1, step[g]);
  int q = 0;
  while (q < top && 2 * level >= static_cast<float>((*levels)[static_cast<size_t>(q)]) +
                                     static_cast<float>((*levels)[static_cast<size_t>(q + 1)]))
    ++q;
  return q;
}

}  // namespace moe
