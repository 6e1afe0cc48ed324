// The balanced assignment against two twins: every permutation of very small cases, and the
// Hungarian method on the square matrix of larger ones.
#include "convert/transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/rng.h"
#include "support/files.h"

namespace moe::transport_test {
namespace {

std::vector<int64_t> drawn(int64_t rows, int64_t sinks, uint64_t seed, uint64_t largest) {
  std::vector<int64_t> cost(static_cast<size_t>(rows * sinks));
  for (size_t i = 0; i < cost.size(); ++i)
    cost[i] = static_cast<int64_t>(uniform_index(RngKey::from_seed(seed), i, largest)) -
              static_cast<int64_t>(largest / 3);
  return cost;
}

int64_t objective(const std::vector<int64_t>& cost, const std::vector<int32_t>& sink_of,
                  int64_t sinks) {
  int64_t sum = 0;
  for (size_t row = 0; row < sink_of.size(); ++row)
    sum += cost[row * static_cast<size_t>(sinks) + static_cast<size_t>(sink_of[row])];
  return sum;
}

int64_t best_of_all(const std::vector<int64_t>& cost, int64_t rows, int64_t sinks) {
  std::vector<int32_t> sink_of(static_cast<size_t>(rows));
  for (size_t i = 0; i < sink_of.size(); ++i)
    sink_of[i] = static_cast<int32_t>(static_cast<int64_t>(i) * sinks / rows);
  int64_t best = INT64_MAX;
  do best = std::min(best, objective(cost, sink_of, sinks));
  while (std::next_permutation(sink_of.begin(), sink_of.end()));
  return best;
}

// The Hungarian method with potentials, O(n^3), on the square matrix in which every sink stands
// rows / sinks times.
int64_t hungarian(const std::vector<int64_t>& cost, int64_t rows, int64_t sinks) {
  const auto n = static_cast<size_t>(rows);
  const auto at = [&](size_t row, size_t column) {
    return cost[row * static_cast<size_t>(sinks) + column / (n / static_cast<size_t>(sinks))];
  };
  std::vector<int64_t> u(n + 1, 0), v(n + 1, 0);
  std::vector<size_t> row_of(n + 1, 0), way(n + 1, 0);
  for (size_t i = 1; i <= n; ++i) {
    row_of[0] = i;
    size_t j0 = 0;
    std::vector<int64_t> least(n + 1, INT64_MAX / 2);
    std::vector<bool> used(n + 1, false);
    do {
      used[j0] = true;
      size_t j1 = 0;
      int64_t delta = INT64_MAX / 2;
      for (size_t j = 1; j <= n; ++j) {
        if (used[j]) continue;
        const int64_t reduced = at(row_of[j0] - 1, j - 1) - u[row_of[j0]] - v[j];
        if (reduced < least[j]) least[j] = reduced, way[j] = j0;
        if (least[j] < delta) delta = least[j], j1 = j;
      }
      for (size_t j = 0; j <= n; ++j)
        if (used[j]) u[row_of[j]] += delta, v[j] -= delta;
        else least[j] -= delta;
      j0 = j1;
    } while (row_of[j0] != 0);
    for (; j0 != 0; j0 = way[j0]) row_of[j0] = row_of[way[j0]];
  }
  int64_t sum = 0;
  for (size_t j = 1; j <= n; ++j) sum += at(row_of[j] - 1, j - 1);
  return sum;
}

TEST(Transport, EverySinkTakesTheSameNumberOfRows) {
  for (int64_t sinks : {1, 2, 5, 12}) {
    const int64_t rows = sinks * 13;
    const std::vector<int32_t> sink_of = assign_balanced(drawn(rows, sinks, 3, 1000), sinks);
    ASSERT_EQ(static_cast<int64_t>(sink_of.size()), rows);
    for (int32_t s = 0; s < sinks; ++s)
      EXPECT_EQ(std::count(sink_of.begin(), sink_of.end(), s), 13);
  }
}

TEST(Transport, IsAsCheapAsTheBestOfAllAssignments) {
  for (uint64_t seed = 1; seed <= 40; ++seed)
    for (int64_t sinks : {2, 3, 4}) {
      const int64_t rows = sinks * (sinks == 2 ? 4 : sinks == 3 ? 3 : 2);
      const std::vector<int64_t> cost = drawn(rows, sinks, seed, seed % 2 ? 1000000 : 4);
      EXPECT_EQ(objective(cost, assign_balanced(cost, sinks), sinks),
                best_of_all(cost, rows, sinks))
          << "seed " << seed << ", " << sinks << " sinks";
    }
}

TEST(Transport, IsAsCheapAsTheHungarianMethodOnTheSquareMatrix) {
  for (uint64_t seed = 1; seed <= 12; ++seed)
    for (int64_t sinks : {2, 5, 10, 16}) {
      const int64_t rows = sinks * 9;
      const std::vector<int64_t> cost = drawn(rows, sinks, seed, seed % 2 ? int64_t{1} << 40 : 6);
      EXPECT_EQ(objective(cost, assign_balanced(cost, sinks), sinks), hungarian(cost, rows, sinks))
          << "seed " << seed << ", " << sinks << " sinks";
    }
}

// Room for 1, 6 and 2 rows is a square matrix in which the sinks stand so often.
TEST(Transport, FillsUnequalSinks) {
  const std::vector<int64_t> capacity = {1, 6, 2, 0};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<int64_t> cost = drawn(9, 4, seed, 1000);
    const std::vector<int32_t> sink_of = assign_balanced(cost, capacity);
    for (int32_t s = 0; s < 4; ++s)
      EXPECT_EQ(std::count(sink_of.begin(), sink_of.end(), s), capacity[static_cast<size_t>(s)]);
    std::vector<int64_t> square;
    for (size_t row = 0; row < 9; ++row)
      for (size_t s = 0; s < 4; ++s)
        for (int64_t i = 0; i < capacity[s]; ++i) square.push_back(cost[row * 4 + s]);
    EXPECT_EQ(objective(cost, sink_of, 4), hungarian(square, 9, 9)) << "seed " << seed;
  }
}

// Every row wants the same sink: the most moves there can be.
TEST(Transport, EvensOutRowsThatAllWantOneSink) {
  const int64_t sinks = 7, rows = 70;
  std::vector<int64_t> cost = drawn(rows, sinks, 5, 100);
  for (int64_t row = 0; row < rows; ++row) cost[static_cast<size_t>(row * sinks + 3)] -= 1000;
  EXPECT_EQ(objective(cost, assign_balanced(cost, sinks), sinks), hungarian(cost, rows, sinks));
}

TEST(Transport, RealCostsKeepTheirOrder) {
  const std::vector<double> cost = {0.5, -2.0, 1e-9, 0};
  const std::vector<int64_t> whole = integer_costs(cost);
  EXPECT_EQ(whole[1], -(int64_t{1} << 40));
  EXPECT_EQ(whole[0], int64_t{1} << 38);
  EXPECT_GT(whole[2], 0);
  EXPECT_EQ(whole[3], 0);
  EXPECT_NE(test::message_of([] {
              integer_costs(std::vector<double>{1, NAN});
            }).find("not finite"),
            std::string::npos);
}

TEST(Transport, RefusesRowsThatCannotBeSharedEvenly) {
  EXPECT_NE(test::message_of([] {
              assign_balanced(std::vector<int64_t>(10 * 3), 3);
            }).find("share evenly"),
            std::string::npos);
}

}  // namespace
}  // namespace moe::transport_test
