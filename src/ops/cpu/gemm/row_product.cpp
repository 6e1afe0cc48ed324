#include "ops/cpu/gemm/row_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "ops/cpu/gemm/f32_product.h"
#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/ops.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {
namespace {

#if defined(__x86_64__)

#define MOE_ROWS_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int64_t kBlockColumns = 64;  // four vectors of 16

// What lies so far ahead is fetched: the hardware stops at each page. Intel's cores with AMX get a
// tenth more of the memory's rate with half a page than with a page, and of two blocks at a time,
// each half as far, another tenth; the others were tuned with a page.
int64_t ahead_bytes(int64_t blocks) {
  static const int64_t bytes = has_tiles() ? 2048 : 4096;
  return bytes / blocks;
}

MOE_ROWS_TARGET inline void store_columns(const RowProduct& p, int64_t row, int64_t column,
                                          __m512 sum) {
  const auto mask = static_cast<__mmask16>(
      p.layout->cols - column >= 16 ? 0xFFFF
                                    : (1 << std::max<int64_t>(0, p.layout->cols - column)) - 1);
  const int64_t at = row * p.out_stride + column;
  if (p.out_dtype == DType::f32) _mm512_mask_storeu_ps(static_cast<float*>(p.out) + at, mask, sum);
  else
    _mm256_mask_storeu_epi16(static_cast<bf16*>(p.out) + at, mask,
                             (__m256i)_mm512_cvtneps_pbh(sum));
}

// kVectors vectors of columns, within one block or all of several, from unit `unit` on, for kRows
// rows, in pairs of bf16.
template <int kRows, int kVectors>
MOE_ROWS_TARGET void unit_rows(const RowProduct& p, int64_t unit) {
  constexpr int64_t kUnitsEach = kBlockColumns / kRowUnit;
  constexpr int kEach = kBlockColumns / 16, kBlocks = (kVectors + kEach - 1) / kEach;
  const PackLayout& l = *p.layout;
  const int64_t ahead = ahead_bytes(kBlocks), block = l.n_stride * 2;
  const char* weights = static_cast<const char*>(p.packed) + unit / kUnitsEach * l.n_stride * 2 +
                        unit % kUnitsEach * kRowUnit * 4;
  __m512 total[kRows][kVectors] = {};
  for (int64_t k = 0; k < l.inner; k += p.stretch) {
    __m512 sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
    const int64_t words = (std::min(p.stretch, l.inner - k) + 1) / 2;
    for (int64_t i = 0; i < words; ++i, weights += kBlockColumns * 4) {
      __m512bh w[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const char* at = weights + v / kEach * block + v % kEach * 64;
        _mm_prefetch(at + ahead, _MM_HINT_T0);
        w[v] = (__m512bh)_mm512_loadu_ps(at);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        uint32_t word;
        std::memcpy(&word, static_cast<const char*>(p.row[r]) + (k / 2 + i) * 4, sizeof word);
        const auto pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(word));
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pair, w[v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v)
        total[r][v] = k == 0 ? sum[r][v] : _mm512_add_ps(total[r][v], sum[r][v]);
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store_columns(p, r, unit * kRowUnit + v * 16, total[r][v]);
}

template <int kRows>
void units_rows(const RowProduct& p, int64_t begin, int64_t end) {
  // Whole blocks are read as they lie; a share may begin or end in the middle of one. Of a narrow
  // matrix, such as a router's, only the columns that it has.
  for (int64_t unit = begin; unit < end;) {
    if constexpr (kRows == 1) {
      if (unit % 2 == 0 && unit + 4 <= end && has_tiles()) {
        unit_rows<1, 8>(p, unit);
        unit += 4;
        continue;
      }
    }
    if (p.layout->cols - unit * kRowUnit <= kRowUnit / 2) unit_rows<kRows, 1>(p, unit++);
    else if (unit % 2 == 0 && unit + 2 <= end) {
      unit_rows<kRows, 4>(p, unit);
      unit += 2;
    } else {
      unit_rows<kRows, 2>(p, unit++);
    }
  }
}

// Two rows of noise through oneDNN and through the kernel with stretches of different lengths.
int64_t find_stretch(int64_t inner, DType dtype) {
  constexpr int64_t kRows = 2, kCols = kBlockColumns;
  if (dtype == DType::bf16 && !has_bf16_products()) return 0;
  const PackLayout& layout = weights_layout(inner, kCols, dtype);
  const Product& product = find_product({kRows, inner, kCols, dtype, dtype, DType::f32, false, 1});
  if (!reads_layout(layout, dtype) || (dtype == DType::bf16 && inner % 2 != 0)) return 0;
  // bits that vary with the number of rows cannot be matched, so that any length is as good
  if (product.in_tiles()) return inner;
  if (!product.keeps_row_bits()) return 0;
  Arena memory;
  const auto noise = [&](int64_t n, uint64_t seed) {
    auto* x = memory.alloc(DType::f32, {n}).as<float>();
    for (int64_t i = 0; i < n; ++i)
      x[i] = uniform(RngKey::from_seed(seed), static_cast<uint64_t>(i)) - 0.5f;
    return x;
  };
  const float *w = noise(kCols * inner, 1), *x = noise(kRows * inner, 2);
  void* rows = memory.alloc_bytes(static_cast<size_t>(kRows * inner) * size_of(dtype));
  convert_matrix(rows, dtype, inner, {x, DType::f32, inner}, kRows, inner, false);
  void* packed = memory.alloc_bytes(layout.bytes);
  pack_transposed(packed, layout, dtype, {w, DType::f32, inner}, 0);
  std::array<float, kRows * kCols> want, got;
  product.run(want.data(), rows, packed, memory.alloc_bytes(product.scratch_bytes()));
  for (const int64_t stretch : {inner, int64_t{1024}, int64_t{512}, int64_t{2048}, int64_t{256}}) {
    run_rows({.layout = &layout,
              .dtype = dtype,
              .stretch = stretch,
              .row = {rows, static_cast<const char*>(rows) +
                                inner * static_cast<int64_t>(size_of(dtype))},
              .rows = kRows,
              .packed = packed,
              .out = got.data(),
              .out_dtype = DType::f32,
              .out_stride = kCols},
             0, kBlockColumns / kRowUnit);
    if (std::memcmp(want.data(), got.data(), sizeof want) == 0) return stretch;
  }
  return 0;
}

#endif

}  // namespace

#if defined(__x86_64__)

bool reads_layout(const PackLayout& l, DType dtype) {
  const int64_t pair = dtype == DType::bf16 ? 2 : 1;
  return l.n_block == kBlockColumns && l.pair == pair && l.k_stride == l.k_block * l.n_block;
}

int64_t sum_stretch(int64_t inner, DType dtype) {
  if (has_f32_products(dtype)) return inner;
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<int64_t, DType>, int64_t>;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({inner, dtype}); found != known.end()) return found->second;
  const int64_t stretch = find_stretch(inner, dtype);  // may throw: nothing is known then
  known.emplace(std::pair(inner, dtype), stretch);
  return stretch;
}

void run_rows(const RowProduct& product, int64_t begin, int64_t end) {
  if (product.dtype != DType::bf16 || has_f32_products(DType::bf16))
    return run_rows_f32(product, begin, end);
  with_row_count(product.rows,
                 [&](auto rows) { units_rows<decltype(rows)::value>(product, begin, end); });
}

#else

bool reads_layout(const PackLayout&, DType) { return false; }
int64_t sum_stretch(int64_t, DType) { return 0; }
void run_rows(const RowProduct&, int64_t, int64_t) {}

#endif

int64_t row_stretch(const PackLayout& layout, DType dtype) {
  const bool reads = has_f32_products(dtype) || reads_layout(layout, dtype);
  return reads ? sum_stretch(layout.inner, dtype) : 0;
}

}  // namespace moe::ops
