// Losses that multiply shares of the load, which are constants for the gradient, by probabilities.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/cpu/functions.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {
namespace {

// f(token, slopes of its scope) on all threads.
template <class F>
void each_token_with(Run& run, std::span<const int64_t> bounds, std::span<const double> slopes,
                     F&& f) {
  const auto experts = static_cast<int64_t>(slopes.size() / (bounds.size() - 1));
  parallel_for(run.threads, bounds.back(), kGrain, [&](int64_t begin, int64_t end, int) {
    auto scope = std::upper_bound(bounds.begin(), bounds.end(), begin) - bounds.begin() - 1;
    for (int64_t n = begin; n < end; ++n) {
      while (n >= bounds[static_cast<size_t>(scope) + 1]) ++scope;
      f(n, slopes.data() + scope * experts);
    }
  });
}

// Four sums side by side, so that one addition need not wait for the one before.
double dot(const double* a, const float* b, int64_t n) {
  double sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int64_t j = 0; j < 4; ++j) sum[j] += a[i + j] * static_cast<double>(b[i + j]);
  for (; i < n; ++i) sum[0] += a[i] * static_cast<double>(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
double sum_of(const float* x, int64_t n) {
  return std::accumulate(x, x + n, static_cast<double>(kRenormFloor));
}

// p = softmax(s) in double, expert by expert.
class Softmax {
 public:
  Softmax(const float* s, int64_t n) : s_(s), top_(*std::max_element(s, s + n)), sum_(0) {
    for (int64_t i = 0; i < n; ++i) sum_ += std::exp(static_cast<double>(s[i]) - top_);
  }
  double operator[](int64_t i) const { return std::exp(static_cast<double>(s_[i]) - top_) / sum_; }

 private:
  const float* s_;
  double top_, sum_;
};

// One token's term.
double weighed(const TokenShares& in, int64_t n, const double* slope) {
  if (in.of == ShareOf::chosen_weights) {
    double sum = 0;
    for (int64_t i = 0; i < in.choice.cols(); ++i)
      if (in.selected.row<int32_t>(n)[i] != 0)
        sum += slope[in.choice.row<int32_t>(n)[i]] * static_cast<double>(in.w.row<float>(n)[i]);
    return sum;
  }
  const float* s = in.s.row<float>(n);
  const int64_t experts = in.s.cols();
  if (in.of == ShareOf::scores) return dot(slope, s, experts);
  if (in.of == ShareOf::normalised_scores) return dot(slope, s, experts) / sum_of(s, experts);
  const Softmax p(s, experts);
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) sum += slope[e] * p[e];
  return sum;
}

}  // namespace

void slopes_of_counts(Run&, std::span<double> slopes, Tensor counts, std::span<const int64_t> other,
                      double whole) {
  const size_t experts = counts.empty() ? other.size() : static_cast<size_t>(counts.cols());
  for (size_t i = 0; i < slopes.size(); i += experts) {
    const std::span<double> row = slopes.subspan(i, experts);
    for (size_t e = 0; e < experts; ++e)
      row[e] = (counts.empty() ? 0.0 : counts.as<int32_t>()[i + e]) +
               (other.empty() ? 0.0 : static_cast<double>(other[e]));
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& slope : row) slope = sum > 0 ? whole * slope / sum : 0;
  }
}

// Token by token in double, then over tokens in order, so that threads change no bit.
void slopes_forward(Run& run, Tensor sum, const TokenShares& p, std::span<const int64_t> bounds,
                    std::span<const double> slopes) {
  ArenaScope scope(run.scratch);
  const auto tokens = static_cast<size_t>(bounds.back());
  auto* of_token = static_cast<double*>(run.scratch.alloc_bytes(tokens * sizeof(double)));
  each_token_with(run, bounds, slopes,
                  [&](int64_t n, const double* slope) { of_token[n] = weighed(p, n, slope); });
  *sum.as<float>() = static_cast<float>(std::accumulate(of_token, of_token + tokens, 0.0));
}

// Normalised, p_e = s_e / S with S = sum s: ds_j = (slope_j - sum_e slope_e p_e) / S; of a softmax
// p_j times that difference.
void slopes_backward_acc(Run& run, Tensor ds, Tensor dw, const TokenShares& p,
                         std::span<const int64_t> bounds, std::span<const double> slopes,
                         double coef) {
  if (p.of == ShareOf::scores) {  // the same for all tokens of a scope
    std::vector<float> steps(slopes.size());
    std::transform(slopes.begin(), slopes.end(), steps.begin(),
                   [&](double slope) { return static_cast<float>(coef * slope); });
    each_token_with(run, bounds, slopes, [&](int64_t n, const double* slope) {
      const float* step = steps.data() + (slope - slopes.data());
      float* out = ds.row<float>(n);
      for (int64_t e = 0; e < ds.cols(); ++e) out[e] += step[e];
    });
    return;
  }
  each_token_with(run, bounds, slopes, [&](int64_t n, const double* slope) {
    if (p.of == ShareOf::chosen_weights) {
      for (int64_t i = 0; i < p.choice.cols(); ++i)
        if (p.selected.row<int32_t>(n)[i] != 0)
          dw.row<float>(n)[i] += static_cast<float>(coef * slope[p.choice.row<int32_t>(n)[i]]);
      return;
    }
    const double mean = weighed(p, n, slope);
    const float* s = p.s.row<float>(n);
    float* out = ds.row<float>(n);
    if (p.of == ShareOf::softmax) {
      const Softmax share(s, ds.cols());
      for (int64_t e = 0; e < ds.cols(); ++e)
        out[e] += static_cast<float>(coef * share[e] * (slope[e] - mean));
      return;
    }
    const double factor = coef / sum_of(s, ds.cols());
    for (int64_t e = 0; e < ds.cols(); ++e)
      out[e] += static_cast<float>(factor * (slope[e] - mean));
  });
}

}  // namespace moe::ops::cpu
