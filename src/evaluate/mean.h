// A mean and how far chance may have moved it.
#pragma once

#include <cmath>
#include <numeric>
#include <span>

namespace moe {

struct Mean {
  double value = 0;
  double error = 0;  // standard: root of the variance (n - 1) over n; 0 of a single value
};

inline Mean mean_of(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squared = 0;
  for (const double x : values) squared += (x - mean) * (x - mean);
  return {mean, values.size() < 2 ? 0 : std::sqrt(squared / (n - 1) / n)};
}

}  // namespace moe
