// CMoE: arXiv 2502.04416, section 3.2, and its code (github JarvisPei/CMoE, CMoE_utils.py).
// MoEfication: github thunlp/MoEfication. LLaMA-MoE: github pjlab-sys4nlp/llama-moe,
// docs/expert_construction.
#include "convert/partition.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "convert/transport.h"
#include "core/order.h"
#include "core/threads.h"

namespace moe {
namespace {

constexpr int kRounds = 20;

// Deals `neurons` out by their sinks; both in the same order.
Partition dealt(std::vector<int32_t> shared, std::span<const int32_t> neurons,
                std::span<const int32_t> sink_of, int64_t experts) {
  Partition p;
  p.shared = std::move(shared);
  std::sort(p.shared.begin(), p.shared.end());
  p.experts.resize(static_cast<size_t>(experts));
  for (size_t i = 0; i < neurons.size(); ++i)
    p.experts[static_cast<size_t>(sink_of[i])].push_back(neurons[i]);
  for (auto& expert : p.experts) std::sort(expert.begin(), expert.end());
  return p;
}

// The member whose marks are closest to the mean of all members' marks. With c[t] how many of the m
// members token t marked, m times the L1 distance of neuron a is sum_t c[t] + sum over t marked by
// a of (m - 2 c[t]), all integers.
int32_t closest_to_mean(const Marks& marks, const std::vector<int32_t>& members) {
  std::vector<int32_t> count(static_cast<size_t>(marks.tokens()), 0);
  const auto each_token = [&](int32_t neuron, auto&& f) {
    const auto bits = marks.of(neuron);
    for (size_t w = 0; w < bits.size(); ++w)
      for (uint64_t word = bits[w]; word != 0; word &= word - 1)
        f(w * 64 + static_cast<size_t>(std::countr_zero(word)));
  };
  for (int32_t neuron : members) each_token(neuron, [&](size_t t) { ++count[t]; });
  const auto m = static_cast<int64_t>(members.size());
  int32_t best = -1;
  int64_t least = 0;
  for (int32_t neuron : members) {
    int64_t distance = 0;
    each_token(neuron, [&](size_t t) { distance += m - 2 * count[t]; });
    if (best >= 0 && distance >= least) continue;
    best = neuron;
    least = distance;
  }
  return best;
}

// rows / ||row||, [F,D] row after row; zeros stay zeros.
std::vector<float> unit_rows(Tensor rows) {
  std::vector<float> out(static_cast<size_t>(rows.numel()));
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const float* row = rows.row<float>(r);
    double sum = 0;
    for (int64_t i = 0; i < rows.cols(); ++i)
      sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    const double factor = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (int64_t i = 0; i < rows.cols(); ++i)
      out[static_cast<size_t>(r * rows.cols() + i)] = static_cast<float>(row[i] * factor);
  }
  return out;
}

// ||c||^2 - 2 <row, c> for each row and centroid: the squared distance but for what a row has in
// common with itself.
std::vector<double> distances(Run& run, std::span<const float> rows,
                              std::span<const int32_t> neurons, std::span<const double> centroids,
                              int64_t width) {
  const auto experts = static_cast<int64_t>(centroids.size()) / width;
  std::vector<double> out(neurons.size() * static_cast<size_t>(experts));
  parallel_for(run.threads, static_cast<int64_t>(neurons.size()), 16,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i)
                   for (int64_t e = 0; e < experts; ++e) {
                     const float* row = rows.data() + neurons[static_cast<size_t>(i)] * width;
                     const double* c = centroids.data() + e * width;
                     double sum = 0;
                     for (int64_t d = 0; d < width; ++d)
                       sum += c[d] * (c[d] - 2 * static_cast<double>(row[d]));
                     out[static_cast<size_t>(i * experts + e)] = sum;
                   }
               });
  return out;
}

std::vector<int32_t> shuffled(int64_t n, RngKey key) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i + 1 < n; ++i)
    std::swap(order[static_cast<size_t>(i)],
              order[static_cast<size_t>(i) +
                    uniform_index(key, static_cast<uint64_t>(i), static_cast<uint64_t>(n - i))]);
  return order;
}

}  // namespace

std::vector<int32_t> Partition::expert_of() const {
  size_t neurons = shared.size();
  for (const auto& expert : experts) neurons += expert.size();
  std::vector<int32_t> out(neurons, -1);
  for (size_t e = 0; e < experts.size(); ++e)
    for (int32_t neuron : experts[e]) out[static_cast<size_t>(neuron)] = static_cast<int32_t>(e);
  return out;
}

RatedNeurons rate_neurons(const Marks& marks, const SliceShape& shape) {
  std::vector<int64_t> rate(static_cast<size_t>(shape.neurons));
  for (int64_t f = 0; f < shape.neurons; ++f) rate[static_cast<size_t>(f)] = marks.rate(f);
  const std::vector<int32_t> order = falling_order<int32_t>(rate);
  const auto cut = order.begin() + shape.shared * shape.width;
  RatedNeurons out{{order.begin(), cut}, {cut, order.end()}};
  std::sort(out.shared.begin(), out.shared.end());
  return out;
}

Partition partition_by_marks(const Marks& marks, const SliceShape& shape) {
  const RatedNeurons rated = rate_neurons(marks, shape);
  const auto experts = static_cast<size_t>(shape.experts);
  std::vector<int64_t> cost(rated.rest.size() * experts);
  for (size_t i = 0; i < rated.rest.size(); ++i)
    for (size_t e = 0; e < experts; ++e)
      cost[i * experts + e] = marks.distance(rated.rest[i], rated.rest[e]);
  return dealt(rated.shared, rated.rest, assign_balanced(cost, shape.experts), shape.experts);
}

std::vector<int32_t> representatives(const Marks& marks, const Partition& p) {
  std::vector<int32_t> out;
  for (const auto& members : p.experts) out.push_back(closest_to_mean(marks, members));
  return out;
}

Partition partition_by_weights(Run& run, const Marks& marks, Tensor rows, const SliceShape& shape,
                               RngKey key) {
  const RatedNeurons rated = rate_neurons(marks, shape);
  const std::vector<float> units = unit_rows(rows);
  const int64_t width = rows.cols();
  const auto order = shuffled(static_cast<int64_t>(rated.rest.size()), key);
  std::vector<double> centroids(static_cast<size_t>(shape.experts * width));
  for (int64_t e = 0; e < shape.experts; ++e)
    std::copy_n(
        units.begin() + rated.rest[static_cast<size_t>(order[static_cast<size_t>(e)])] * width,
        width, centroids.begin() + e * width);
  std::vector<int32_t> sink_of;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> next = assign_balanced(
        integer_costs(distances(run, units, rated.rest, centroids, width)), shape.experts);
    if (next == sink_of) break;
    sink_of = std::move(next);
    std::fill(centroids.begin(), centroids.end(), 0.0);
    for (size_t i = 0; i < sink_of.size(); ++i)
      for (int64_t d = 0; d < width; ++d)
        centroids[static_cast<size_t>(sink_of[i] * width + d)] +=
            units[static_cast<size_t>(rated.rest[i] * width + d)] /
            static_cast<double>(shape.width);
  }
  return dealt(rated.shared, rated.rest, sink_of, shape.experts);
}

Partition partition_at_random(const SliceShape& shape, RngKey key) {
  const std::vector<int32_t> order = shuffled(shape.neurons, key);
  const auto cut = order.begin() + shape.shared * shape.width;
  const std::vector<int32_t> rest(cut, order.end());
  std::vector<int32_t> sink_of(rest.size());
  for (size_t i = 0; i < rest.size(); ++i)
    sink_of[i] = static_cast<int32_t>(static_cast<int64_t>(i) / shape.width);
  return dealt({order.begin(), cut}, rest, sink_of, shape.experts);
}

}  // namespace moe
