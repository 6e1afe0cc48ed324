// Which of many are the largest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace moe {

// The places of `values` by falling value; of equals the one that stands first.
template <class Place = int64_t, class Values>
std::vector<Place> falling_order(const Values& values) {
  std::vector<Place> order(std::size(values));
  std::iota(order.begin(), order.end(), Place{0});
  std::stable_sort(order.begin(), order.end(), [&](Place a, Place b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace moe
