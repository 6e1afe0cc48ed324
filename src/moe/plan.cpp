#include "moe/plan.h"

#include <vector>

namespace moe {
namespace {

template <class T>
std::span<T> alloc_span(Arena& arena, int64_t n) {
  return {static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(n) * sizeof(T))), static_cast<size_t>(n)};
}

}  // namespace

RoutingPlan make_plan(Arena& arena, Tensor choice, Tensor kept, Tensor w, int64_t experts) {
  const int64_t tokens = choice.rows(), k = choice.cols();
  const auto offsets = alloc_span<int64_t>(arena, experts + 1);
  const auto bounds = alloc_span<int32_t>(arena, tokens + 1);
  std::fill(offsets.begin(), offsets.end(), 0);
  bounds[0] = 0;
  for (int64_t n = 0; n < tokens; ++n) {
    int32_t mine = 0;
    for (int64_t i = 0; i < k; ++i) {
      if (kept.row<int32_t>(n)[i] == 0) continue;
      ++offsets[static_cast<size_t>(choice.row<int32_t>(n)[i]) + 1];
      ++mine;
    }
    bounds[static_cast<size_t>(n) + 1] = bounds[static_cast<size_t>(n)] + mine;
  }
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) offsets[e + 1] += offsets[e];

  const int64_t rows = offsets.back();
  const auto token = alloc_span<int32_t>(arena, rows), row = alloc_span<int32_t>(arena, rows), pair = alloc_span<int32_t>(arena, rows);
  Tensor weight = arena.alloc(DType::f32, {rows});
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  size_t at = 0;
  for (int64_t n = 0; n < tokens; ++n)
    for (int64_t i = 0; i < k; ++i) {
      if (kept.row<int32_t>(n)[i] == 0) continue;
      const int64_t r = next[static_cast<size_t>(choice.row<int32_t>(n)[i])]++;
      row[at++] = static_cast<int32_t>(r);
      token[static_cast<size_t>(r)] = static_cast<int32_t>(n);
      pair[static_cast<size_t>(r)] = static_cast<int32_t>(n * k + i);
      weight.as<float>()[r] = w.row<float>(n)[i];
    }
  return {token, offsets, bounds, row, pair, weight};
}

Rows whole(Arena& arena, Tensor x, Tensor weight) {
  const auto offsets = alloc_span<int64_t>(arena, 2);
  offsets[0] = 0;
  offsets[1] = x.rows();
  return {x, weight, offsets};
}

Rows dispatch(const RoutingPlan& plan, Tensor x) { return {{x, plan.token}, plan.weight, plan.offsets}; }

void combine(Run& run, Tensor y, const RoutingPlan& plan, Tensor rows) { ops::sum_rows(run, y, rows, plan.bounds, plan.row); }

}  // namespace moe
