#include "train/preference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace moe {
namespace {

constexpr float kNotTaken = 1;

// In order, in double.
double sum_of(const Tensor& nll, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t n = begin; n < end; ++n) sum += nll.as<float>()[n];
  return sum;
}

// log(1 + e^x)
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

}  // namespace

PairFigures PairSums::means() const {
  const auto n = static_cast<double>(std::max<int64_t>(1, pairs));
  return {loss / n, margin / n, static_cast<double>(preferred) / n};
}

double PairSums::chosen_ce() const {
  return chosen_tokens > 0 ? chosen_nll / static_cast<double>(chosen_tokens)
                           : std::numeric_limits<double>::quiet_NaN();
}

PairReference::PairReference(int64_t pairs) : numbers_(static_cast<size_t>(2 * pairs), kNotTaken) {}

void PairReference::set(int64_t pair, float chosen, float rejected) {
  numbers_[static_cast<size_t>(2 * pair)] = chosen;
  numbers_[static_cast<size_t>(2 * pair + 1)] = rejected;
}

bool PairReference::has(int64_t pair) const {
  return static_cast<size_t>(2 * pair) < numbers_.size() && at(pair)[0] < kNotTaken;
}

Tensor PairReference::view() const {
  return Tensor(numbers_.data(), DType::f32, {static_cast<int64_t>(numbers_.size()) / 2, 2});
}

// Rounded as the reference's, so that equal models give equal numbers.
PairLogProbs pair_log_probs(const Tensor& nll, const TextBatch& batch, size_t i) {
  const int64_t *chosen = &batch.bounds[2 * i], *rejected = chosen + 1;
  return {static_cast<float>(-sum_of(nll, chosen[0], chosen[1])),
          static_cast<float>(-sum_of(nll, rejected[0], rejected[1]))};
}

std::vector<float> pair_losses(PairSums& sums, const Tensor& nll, const TextBatch& batch,
                               const PairReference& reference, double beta) {
  std::vector<float> weights(batch.ids.size());
  for (size_t i = 0; i < batch.pairs.size(); ++i) {
    if (!reference.has(batch.pairs[i]))
      fail("there is no reference of preference pair {}", batch.pairs[i] + 1);
    const PairLogProbs now = pair_log_probs(nll, batch, i);
    const float* ref = reference.at(batch.pairs[i]);
    const double margin = beta * ((static_cast<double>(now.chosen) - ref[0]) -
                                  (static_cast<double>(now.rejected) - ref[1]));
    sums.loss += softplus(-margin);
    sums.margin += margin;
    sums.preferred += margin > 0;
    ++sums.pairs;
    const auto by_nll = static_cast<float>(beta * sigmoid(-margin));
    const int64_t begin = batch.bounds[2 * i], middle = batch.bounds[2 * i + 1],
                  end = batch.bounds[2 * i + 2];
    std::fill(weights.begin() + begin, weights.begin() + middle, by_nll);
    std::fill(weights.begin() + middle, weights.begin() + end, -by_nll);
    sums.chosen_nll += sum_of(nll, begin, middle);
    sums.chosen_tokens +=
        std::count_if(batch.targets.begin() + begin, batch.targets.begin() + middle,
                      [](int32_t target) { return target != kNoTarget; });
  }
  return weights;
}

}  // namespace moe
