// What the products share (matmul.cpp, matmul_dw.cpp): the checks of their arguments, how rows are
// found, and how shares of them are given to threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <utility>

#include "core/threads.h"
#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/primitives.h"
#include "ops/cpu/gemm/repack.h"
#include "ops/cpu/spans.h"
#include "ops/ops.h"

namespace moe::ops {

using Offsets = std::span<const int64_t>;

constexpr int64_t kUnit = 16;       // rows that threads share out; also the step of block sizes
constexpr int64_t kMostRows = 256;  // of one product

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t element_size(DType dtype) { return static_cast<int64_t>(size_of(dtype)); }
inline Source source_of(const Tensor& t) {
  return {t.data, t.dtype, t.row_bytes / element_size(t.dtype)};
}
// The rows from `row` on, the columns from `col` on.
inline Source source_of(const GatheredRows& rows, int64_t row, int64_t col) {
  const auto* data = static_cast<const char*>(rows.x.data) + col * element_size(rows.x.dtype);
  const int64_t stride = rows.x.row_bytes / element_size(rows.x.dtype);
  if (!rows.listed()) return {data + row * rows.x.row_bytes, rows.x.dtype, stride};
  return {data, rows.x.dtype, stride, rows.row.data() + row};
}

// Weights of any type but integers.
inline Bank checked_bank(const char* op, const Param& w) {
  need(w.present() && w.value.dtype != DType::i32 && w.value.dense() &&
           (w.value.rank == 2 || w.value.rank == 3),
       op, "w [O, I] or [E, O, I] of numbers, without gaps", {{w.name.c_str(), w.value}});
  return bank_of(w);
}

inline void check_offsets(const char* op, const Bank& bank, int64_t rows, Offsets offsets,
                          const Param& w) {
  const bool fits = offsets.size() == static_cast<size_t>(bank.experts) + 1 &&
                    offsets.front() == 0 && offsets.back() == rows;
  need(fits && std::is_sorted(offsets.begin(), offsets.end()), op,
       "offsets [E + 1] that rise from 0 to the number of rows", {{w.name.c_str(), w.value}});
}

inline DType compute_dtype(DType in) {
  return in == DType::bf16 && has_bf16_products() ? DType::bf16 : DType::f32;
}

// Below about a million multiplications waking the other threads costs more than they bring.
inline int worthy_threads(const Run& run, int64_t rows, const Bank& bank) {
  constexpr int64_t kWorthThreads = 1 << 20;
  return rows * bank.out * bank.in < kWorthThreads ? 1 : run.threads;
}

// f(share, scratch) for every share, one thread each, with oneDNN's own loops serial. Fewer threads
// than asked for (a nested region) do several shares.
template <class F>
void parallel_shares(Run& run, int shares, F&& f) {
  Guard guard;
  ++joins_of_this_thread();
#pragma omp parallel num_threads(shares)
  guard([&] {
    const ThreadLimit limit(1);
    const int thread = omp_get_thread_num();
    for (int share = thread; share < shares; share += omp_get_num_threads())
      f(static_cast<size_t>(share), run.thread_scratch[static_cast<size_t>(thread)]);
  });
  guard.rethrow();
}

}  // namespace moe::ops
