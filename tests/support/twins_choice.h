// Naive choice of keys: every score, and a sort. In double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace moe::test::twin {

// sum_h w[h] max(0, <q[h], k[j]>) of each of `seen` keys, k[first + j].  q [heads*width], w
// [heads], k [rows*width]
inline std::vector<double> key_scores(const double* q, const double* w,
                                      const std::vector<double>& k, int64_t first, int64_t seen,
                                      int64_t heads, int64_t width) {
  std::vector<double> scores(static_cast<size_t>(seen));
  for (int64_t j = 0; j < seen; ++j)
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t c = 0; c < width; ++c)
        dot += q[h * width + c] * k[static_cast<size_t>((first + j) * width + c)];
      scores[static_cast<size_t>(j)] += w[h] * std::max(0.0, dot);
    }
  return scores;
}

// The best <q, k[j]> of each block of `block` of the `seen` keys k[first + j], and above all for
// the last `local` blocks.  q [width], k [rows*width]
inline std::vector<double> block_scores(const double* q, const std::vector<double>& k,
                                        int64_t first, int64_t seen, int64_t width, int64_t block,
                                        int64_t local) {
  std::vector<double> best(static_cast<size_t>((seen + block - 1) / block), -INFINITY);
  for (int64_t j = 0; j < seen; ++j) {
    double dot = 0;
    for (int64_t c = 0; c < width; ++c)
      dot += q[c] * k[static_cast<size_t>((first + j) * width + c)];
    double& of = best[static_cast<size_t>(j / block)];
    of = std::max(of, dot);
  }
  for (size_t b = 0; b < best.size(); ++b)
    if (b + static_cast<size_t>(local) >= best.size()) best[b] = INFINITY;
  return best;
}

// The places of the `take` best, of equal ones the earlier, rising; all where there are no more.
inline std::vector<int32_t> best_of(const std::vector<double>& scores, int64_t take) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(take)));
  std::sort(order.begin(), order.end());
  return order;
}

// How much better the best of those that `kept` leaves out is than the worst that it lists; -inf
// where it lists all.
inline double missed_by(const std::vector<double>& scores, const std::vector<int32_t>& kept) {
  double worst = INFINITY, best = -INFINITY;
  for (size_t j = 0; j < scores.size(); ++j) {
    const bool listed = std::find(kept.begin(), kept.end(), static_cast<int32_t>(j)) != kept.end();
    if (listed) worst = std::min(worst, scores[j]);
    else best = std::max(best, scores[j]);
  }
  return best - worst;
}

}  // namespace moe::test::twin
