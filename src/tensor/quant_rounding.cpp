#include "tensor/quant_rounding.h"

#include "tensor/quant_parts.h"
#include "tensor/quant_table.h"

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
  return nearest_level(*levels, x * finite_ratio(1, step[g]));
}

}  // namespace moe
