// Successive shortest paths (Ahuja, Magnanti and Orlin, "Network Flows", 1993, section 9.7) on the
// graph of the sinks alone. Every row starts at its cheapest sink, the optimum without capacities.
// Moving a row from sink a to b costs cost[row,b] - cost[row,a]; the edge a -> b is the cheapest
// such row. As long as a sink has too many rows, the cheapest path from such a sink to one with too
// few moves one row along each of its edges, which keeps the assignment optimal for the loads it
// then has.
#include "convert/transport.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace moe {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

class Assignment {
 public:
  Assignment(std::span<const int64_t> cost, std::span<const int64_t> capacity)
      : cost_(cost),
        sinks_(capacity.size()),
        rows_(cost.size() / sinks_),
        capacity_(capacity),
        sink_of_(rows_),
        load_(sinks_, 0),
        edges_(sinks_ * sinks_) {
    for (size_t row = 0; row < rows_; ++row) {
      const auto costs = cost_.subspan(row * sinks_, sinks_);
      sink_of_[row] =
          static_cast<int32_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
      ++load_[static_cast<size_t>(sink_of_[row])];
    }
    for (size_t row = 0; row < rows_; ++row) offer(row);
  }

  std::vector<int32_t> solve() {
    while (load_ != std::vector<int64_t>(capacity_.begin(), capacity_.end()))
      move_along_cheapest_path();
    return std::move(sink_of_);
  }

 private:
  struct Edge {
    int64_t cost = kFar;
    size_t row = SIZE_MAX;
  };

  int64_t cost(size_t row, size_t sink) const { return cost_[row * sinks_ + sink]; }
  Edge& edge(size_t from, size_t to) { return edges_[from * sinks_ + to]; }

  // Whether the row is the cheapest of its sink to move anywhere.
  void offer(size_t row) {
    const auto from = static_cast<size_t>(sink_of_[row]);
    for (size_t to = 0; to < sinks_; ++to) {
      const int64_t change = cost(row, to) - cost(row, from);
      if (to != from && change < edge(from, to).cost) edge(from, to) = {change, row};
    }
  }
  void search_again(size_t from, size_t to) {
    Edge best;
    for (size_t row = 0; row < rows_; ++row)
      if (static_cast<size_t>(sink_of_[row]) == from && cost(row, to) - cost(row, from) < best.cost)
        best = {cost(row, to) - cost(row, from), row};
    edge(from, to) = best;
  }
  void move(size_t row, size_t to) {
    const auto from = static_cast<size_t>(sink_of_[row]);
    sink_of_[row] = static_cast<int32_t>(to);
    for (size_t other = 0; other < sinks_; ++other)
      if (edge(from, other).row == row) search_again(from, other);
    offer(row);
  }

  // Bellman-Ford from all overfull sinks at once: edges may cost less than nothing, but no cycle
  // does.
  void move_along_cheapest_path() {
    std::vector<int64_t> distance(sinks_);
    std::vector<size_t> before(sinks_, SIZE_MAX);
    for (size_t s = 0; s < sinks_; ++s) distance[s] = load_[s] > capacity_[s] ? 0 : kFar;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t from = 0; from < sinks_; ++from)
        for (size_t to = 0; to < sinks_ && distance[from] < kFar; ++to) {
          const int64_t step = edge(from, to).cost;
          if (step >= kFar || distance[from] + step >= distance[to]) continue;
          distance[to] = distance[from] + step;
          before[to] = from;
          changed = true;
        }
    }
    size_t end = SIZE_MAX;
    for (size_t s = 0; s < sinks_; ++s)
      if (load_[s] < capacity_[s] && distance[s] < kFar &&
          (end == SIZE_MAX || distance[s] < distance[end]))
        end = s;
    if (end == SIZE_MAX)
      fail("the balanced assignment found no way to even out its loads, which cannot be");
    // (row, to), all chosen before the first move changes an edge
    std::vector<std::pair<size_t, size_t>> moves;
    ++load_[end];
    for (; before[end] != SIZE_MAX; end = before[end])
      moves.emplace_back(edge(before[end], end).row, end);
    --load_[end];
    for (const auto& [row, to] : moves) move(row, to);
  }

  std::span<const int64_t> cost_;
  size_t sinks_, rows_;
  std::span<const int64_t> capacity_;  // [sinks]
  std::vector<int32_t> sink_of_;
  std::vector<int64_t> load_;
  std::vector<Edge> edges_;  // [sinks, sinks]
};

}  // namespace

std::vector<int32_t> assign_balanced(std::span<const int64_t> cost,
                                     std::span<const int64_t> capacity) {
  const int64_t rows = std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  if (capacity.empty() || *std::min_element(capacity.begin(), capacity.end()) < 0 ||
      static_cast<int64_t>(cost.size()) != rows * std::ssize(capacity))
    fail("{} costs are not those of {} rows and {} sinks", cost.size(), rows, capacity.size());
  return Assignment(cost, capacity).solve();
}

std::vector<int32_t> assign_balanced(std::span<const int64_t> cost, int64_t sinks) {
  if (sinks < 1 || cost.size() % static_cast<size_t>(sinks * sinks) != 0)
    fail("{} costs cannot be those of rows that {} sinks share evenly", cost.size(), sinks);
  return assign_balanced(
      cost, std::vector<int64_t>(static_cast<size_t>(sinks), std::ssize(cost) / sinks / sinks));
}

std::vector<int64_t> integer_costs(std::span<const double> cost) {
  double largest = 0;
  for (double c : cost) {
    if (!std::isfinite(c))
      fail(
          "a cost of the balanced assignment is not finite; the weights or activations it comes "
          "from are not");
    largest = std::max(largest, std::fabs(c));
  }
  const double scale = largest > 0 ? std::ldexp(1.0, 40) / largest : 0;
  std::vector<int64_t> out;
  out.reserve(cost.size());
  for (double c : cost) out.push_back(std::llround(c * scale));
  return out;
}

}  // namespace moe
