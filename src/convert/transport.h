// Balanced assignment: every row to one sink, every sink as many rows as it has room for, the sum
// of the costs as small as can be. The square matrix that assignment solvers (Jonker and Volgenant
// 1987) want, each sink written down once for every row it can take, is never made: the problem is
// the transportation problem it stands for, in O(rows x sinks) memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

// sink_of [rows], sink s as often as capacity[s] says; the capacities add up to the rows.  cost
// [rows, sinks], integers so that sums are exact and ties are ties; |cost| <= 2^44
std::vector<int32_t> assign_balanced(std::span<const int64_t> cost,
                                     std::span<const int64_t> capacity);
// Every sink the same number of rows; `sinks` divides the number of rows.
std::vector<int32_t> assign_balanced(std::span<const int64_t> cost, int64_t sinks);

// Real costs as integers that assign_balanced takes: in steps of 2^-40 of the largest magnitude.
std::vector<int64_t> integer_costs(std::span<const double> cost);

}  // namespace moe
