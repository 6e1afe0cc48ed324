// The middle of a benchmark's timings.
#pragma once

#include <algorithm>
#include <vector>

namespace moe::bench {

inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

}  // namespace moe::bench
