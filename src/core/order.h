// The order of many values.
#pragma once

#include <algorithm>
#include <cstddef>
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

// The median; of an even number the mean of the two in the middle. At least one.
inline double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace moe
