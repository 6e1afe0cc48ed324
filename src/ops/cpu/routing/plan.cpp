// The plan of rows, its counts, and the way back from rows to pairs.
#include <algorithm>
#include <utility>

#include "ops/cpu/functions.h"
#include "tensor/each_token.h"

namespace moe::ops::cpu {
namespace {

template <class T>
std::span<T> alloc_span(Arena& arena, int64_t n) {
  return {static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(n) * sizeof(T))),
          static_cast<size_t>(n)};
}

const int32_t* stays_of(const Tensor& kept, int64_t n) {
  return kept.empty() ? nullptr : kept.row<int32_t>(n);
}

}  // namespace

// Every thread counts its tokens' pairs; from the counts of all follows where each thread's first
// row at each expert and in each list lies, so that the plan is the same for any number of threads.
RoutingPlan make_plan(Run& run, Tensor choice, Tensor kept, Tensor w, int64_t experts) {
  const int64_t tokens = choice.rows(), k = choice.cols();
  const auto offsets = alloc_span<int64_t>(run.saved, experts + 1);
  const auto bounds = alloc_span<int32_t>(run.saved, tokens + 1);
  ArenaScope scope(run.scratch);
  // [threads, E + 1], every thread on cache lines of its own: pairs, then the next row at each
  // expert; the last column is the list by tokens.
  const int64_t stride = (experts + 8) / 8 * 8;
  const auto next = alloc_span<int64_t>(run.scratch, run.threads * stride);
  std::fill(next.begin(), next.end(), 0);
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int thread) {
    int64_t* count = next.data() + thread * stride;
    int64_t all = 0;
    for (int64_t n = begin; n < end; ++n) {
      const int32_t *expert = choice.row<int32_t>(n), *stays = stays_of(kept, n);
      for (int64_t i = 0; i < k; ++i) {
        const bool is_row = stays == nullptr || stays[i] != 0;
        count[expert[i]] += is_row;
        all += is_row;
      }
    }
    count[experts] = all;
  });
  int64_t rows = 0;
  for (int64_t e = 0; e <= experts; ++e) {
    if (e == experts) rows = 0;
    else offsets[static_cast<size_t>(e)] = rows;
    for (int64_t t = 0; t < run.threads; ++t)
      rows += std::exchange(next[static_cast<size_t>(t * stride + e)], rows);
  }
  offsets[static_cast<size_t>(experts)] = rows;

  const auto token = alloc_span<int32_t>(run.saved, rows),
             row = alloc_span<int32_t>(run.saved, rows),
             pair = alloc_span<int32_t>(run.saved, rows);
  Tensor weight = run.saved.alloc(DType::f32, {rows});
  bounds[0] = 0;
  parallel_for(run.threads, tokens, kGrain, [&](int64_t begin, int64_t end, int thread) {
    int64_t* at = next.data() + thread * stride;
    for (int64_t n = begin; n < end; ++n) {
      const int32_t *expert = choice.row<int32_t>(n), *stays = stays_of(kept, n);
      for (int64_t i = 0; i < k; ++i) {
        if (stays != nullptr && stays[i] == 0) continue;
        const int64_t r = at[expert[i]]++;
        row[static_cast<size_t>(at[experts]++)] = static_cast<int32_t>(r);
        token[static_cast<size_t>(r)] = static_cast<int32_t>(n);
        pair[static_cast<size_t>(r)] = static_cast<int32_t>(n * k + i);
        weight.as<float>()[r] = w.row<float>(n)[i];
      }
      bounds[static_cast<size_t>(n) + 1] = static_cast<int32_t>(at[experts]);
    }
  });
  return {token, offsets, bounds, row, pair, weight};
}

void spread_rows(Run& run, Tensor dw, Tensor dweight, const RoutingPlan& plan) {
  const int64_t k = dw.cols();
  parallel_for(run.threads, dw.rows(), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      std::fill_n(dw.row<float>(n), k, 0.0f);
      for (int32_t i = plan.bounds[static_cast<size_t>(n)];
           i < plan.bounds[static_cast<size_t>(n) + 1]; ++i) {
        const auto r = static_cast<size_t>(plan.row[static_cast<size_t>(i)]);
        dw.row<float>(n)[plan.pair[r] - n * k] = dweight.as<float>()[r];
      }
    }
  });
}

// Whole numbers: how the tokens are shared out changes nothing.
void count_pairs_acc(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  constexpr int64_t kLine = 16;  // counts in a cache line, which no two threads write
  const int64_t experts = counts.numel(), stride = (experts + kLine - 1) / kLine * kLine;
  ArenaScope scope(run.scratch);
  Tensor of_thread = run.scratch.alloc_zeroed(DType::i32, {run.threads, stride});
  parallel_for(run.threads, choice.rows(), kGrain, [&](int64_t begin, int64_t end, int thread) {
    int32_t* mine = of_thread.row<int32_t>(thread);
    for (int64_t n = begin; n < end; ++n) {
      const int32_t *expert = choice.row<int32_t>(n),
                    *taken = selected.empty() ? nullptr : selected.row<int32_t>(n);
      for (int64_t i = 0; i < columns; ++i) mine[expert[i]] += taken == nullptr || taken[i] != 0;
    }
  });
  int32_t* out = counts.as<int32_t>();
  for (int64_t t = 0; t < run.threads; ++t)
    for (int64_t e = 0; e < experts; ++e) out[e] += of_thread.row<int32_t>(t)[e];
}

void count_pairs(Run& run, Tensor counts, Tensor choice, Tensor selected, int64_t columns) {
  std::fill_n(counts.as<int32_t>(), counts.numel(), 0);
  count_pairs_acc(run, counts, choice, selected, columns);
}

}  // namespace moe::ops::cpu
