#include "ops/cpu/gemm/avx2_product.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "ops/cpu/isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {
namespace {

constexpr int64_t kColumns = 16, kBlock = 16;  // of a layout

}  // namespace

PackLayout avx2_layout(int64_t inner, int64_t cols, DType dtype) {
  const int64_t blocks = (inner + kBlock - 1) / kBlock, columns = (cols + kColumns - 1) / kColumns,
                stride = blocks * kBlock * kColumns;
  return {.inner = inner,
          .cols = cols,
          .k_block = kBlock,
          .n_block = kColumns,
          .k_stride = kBlock * kColumns,
          .n_stride = stride,
          .pair = dtype == DType::bf16 ? 2 : 1,
          .bytes = static_cast<size_t>(columns * stride) * size_of(dtype)};
}

#if defined(__x86_64__)

bool has_avx2_products() {
  return (usable_targets() & (HWY_AVX2 | HWY_AVX3)) == HWY_AVX2;
}

namespace {

#define MOE_AVX2 __attribute__((target("avx2,fma")))
#define MOE_UNROLL _Pragma("GCC unroll 8")

// Six rows by two vectors of sums leave registers for two vectors of weights and a number of x.
constexpr int64_t kTileRows = 6;
// Inner numbers of which a column of weights (16 KB) and a tile's rows stay in the first-level
// cache. Sums wait in the output meanwhile, so that a chain goes on where it was.
constexpr int64_t kDepth = 256;

// `in` [kRows, depth], rows in_stride apart; w [depth, 16]; out [kRows, 16]
struct Tile {
  const float* in;
  int64_t in_stride;
  const float* w;
  int64_t depth;
  float* out;
  int64_t out_stride;
  bool add;
};

template <int kRows>
MOE_AVX2 void multiply_tile(const Tile& t) {
  __m256 sum[kRows][2];
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < 2; ++v) sum[r][v] =
      t.add ? _mm256_loadu_ps(t.out + r * t.out_stride + 8 * v) : _mm256_setzero_ps();
  const float* in = t.in;
  const float* w = t.w;
  for (int64_t k = 0; k < t.depth; ++k, ++in, w += kColumns) {
    const __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(in + r * t.in_stride);
      sum[r][0] = _mm256_fmadd_ps(x, w0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, w1, sum[r][1]);
    }
  }
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < 2; ++v)
      _mm256_storeu_ps(t.out + r * t.out_stride + 8 * v, sum[r][v]);
}
constexpr void (*kTiles[kTileRows])(const Tile&) = {multiply_tile<1>, multiply_tile<2>,
                                                    multiply_tile<3>, multiply_tile<4>,
                                                    multiply_tile<5>, multiply_tile<6>};

// A tile of which only `columns` exist in the output.
void multiply_narrow(const Tile& t, int64_t rows, int64_t columns) {
  float sums[kTileRows * kColumns];
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t r = 0; r < rows && t.add; ++r)
    std::memcpy(sums + r * kColumns, t.out + r * t.out_stride, bytes);
  Tile whole = t;
  whole.out = sums;
  whole.out_stride = kColumns;
  kTiles[rows - 1](whole);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(t.out + r * t.out_stride, sums + r * kColumns, bytes);
}

// What lies in a word of two bf16 of neighbouring k, as f32.
MOE_AVX2 inline __m256 first_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
MOE_AVX2 inline __m256 second_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000)));
}

// out [depth, 16] of pairs, an odd depth with one row more.
MOE_AVX2 void widen_pairs(float* out, const char* pairs, int64_t depth) {
  for (int64_t k = 0; k < depth; k += 2, pairs += kColumns * 4, out += 2 * kColumns)
    MOE_UNROLL for (int v = 0; v < 2; ++v) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + 32 * v));
      _mm256_storeu_ps(out + 8 * v, first_of(words));
      _mm256_storeu_ps(out + kColumns + 8 * v, second_of(words));
    }
}

// Where the sums of these rows will be read or written, 16 columns of each.
void fetch_sums(const float* out, int64_t stride, Span rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    __builtin_prefetch(out + r * stride, 1, 3);
    __builtin_prefetch(out + r * stride + kColumns - 1, 1, 3);
  }
}

// Columns of blocks [begin, end). While a tile is multiplied the next column of weights and the
// next tile's sums are on their way.
void multiply_columns(const ProductShape& s, const PackLayout& l, float* out, const float* in,
                      const char* w, Span columns) {
  const auto size = static_cast<int64_t>(size_of(s.weights));
  const int64_t tiles = (s.rows + kTileRows - 1) / kTileRows;
  alignas(64) float wide[kDepth * kColumns];
  for (int64_t k = 0; k < s.inner; k += kDepth) {
    const int64_t depth = std::min(kDepth, s.inner - k), bytes = depth * kColumns * size,
                  fetched = (bytes / tiles + 63) / 64 * 64;
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const char* packed = w + (c * l.n_stride + k * kColumns) * size;
      const char* next = packed + l.n_stride * size;
      if (s.weights == DType::bf16) widen_pairs(wide, packed, depth);
      const int64_t left = s.cols - c * kColumns;
      for (int64_t t = 0; t < tiles; ++t) {
        if (c + 1 < columns.end)
          for (int64_t line = t * fetched; line < std::min((t + 1) * fetched, bytes); line += 64)
            __builtin_prefetch(next + line, 0, 2);
        const Span rows = partition(s.rows, static_cast<int>(t), static_cast<int>(tiles));
        fetch_sums(out + c * kColumns, s.cols, {rows.end, std::min(s.rows, rows.end + kTileRows)});
        const Tile tile{
            .in = in + rows.begin * s.inner + k,
            .in_stride = s.inner,
            .w = s.weights == DType::bf16 ? wide : reinterpret_cast<const float*>(packed),
            .depth = depth,
            .out = out + rows.begin * s.cols + c * kColumns,
            .out_stride = s.cols,
            .add = s.add || k > 0};
        if (left < kColumns) multiply_narrow(tile, rows.end - rows.begin, left);
        else kTiles[rows.end - rows.begin - 1](tile);
      }
    }
  }
}

// ---- a few rows -------------------------------------------------------------------------------

// what lies this far ahead is fetched: the hardware stops at each page
constexpr int64_t kAheadBytes = 4096;

template <int kRows, int kWidth>
using RowSums = __m256[kRows][kWidth][2];

// sum += row k of the inner numbers, or if kHalves k and k + 1; the second only if `both`.
template <int kRows, bool kHalves, int kWidth>
MOE_AVX2 inline void add_word(RowSums<kRows, kWidth>& sum, const char* const* w,
                              const float* const* row, int64_t k, bool both) {
  MOE_UNROLL for (int c = 0; c < kWidth; ++c) {
    __builtin_prefetch(w[c] + kAheadBytes, 0, 3);
    MOE_UNROLL for (int v = 0; v < 2; ++v) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w[c] + 32 * v));
      const __m256 first = kHalves ? first_of(word) : _mm256_castsi256_ps(word);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) sum[r][c][v] =
          _mm256_fmadd_ps(_mm256_broadcast_ss(row[r] + k), first, sum[r][c][v]);
      if (!kHalves || !both) continue;
      const __m256 second = second_of(word);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) sum[r][c][v] =
          _mm256_fmadd_ps(_mm256_broadcast_ss(row[r] + k + 1), second, sum[r][c][v]);
    }
  }
}

// kWidth columns of blocks, from `column` on, for kRows rows.
template <int kRows, bool kHalves, int kWidth>
MOE_AVX2 void multiply_row_columns(const RowProduct& p, int64_t column) {
  constexpr int64_t kStep = kHalves ? 2 : 1;
  const PackLayout& l = *p.layout;
  RowSums<kRows, kWidth> sum;
  const char* w[kWidth];
  const float* row[kRows];
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    row[r] = static_cast<const float*>(p.row[r]);
    MOE_UNROLL for (int c = 0; c < kWidth; ++c) sum[r][c][0] = sum[r][c][1] = _mm256_setzero_ps();
  }
  MOE_UNROLL for (int c = 0; c < kWidth; ++c) w[c] =
      static_cast<const char*>(p.packed) + (column + c) * l.n_stride * (kHalves ? 2 : 4);
  int64_t k = 0;
  for (; k + kStep <= l.inner; k += kStep) {
    add_word<kRows, kHalves, kWidth>(sum, w, row, k, true);
    MOE_UNROLL for (int c = 0; c < kWidth; ++c) w[c] += kColumns * 4;
  }
  if (k < l.inner) add_word<kRows, kHalves, kWidth>(sum, w, row, k, false);
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kWidth; ++c) {
      const int64_t first = (column + c) * kColumns, left = l.cols - first;
      float* out = static_cast<float*>(p.out) + r * p.out_stride + first;
      alignas(32) float tail[kColumns];
      float* to = left < kColumns ? tail : out;
      _mm256_storeu_ps(to, sum[r][c][0]);
      _mm256_storeu_ps(to + 8, sum[r][c][1]);
      if (to == tail) std::memcpy(out, tail, static_cast<size_t>(left) * sizeof(float));
    }
}

template <int kRows, bool kHalves>
void multiply_row_units(const RowProduct& p, int64_t begin, int64_t end) {
  // as many sums as registers hold, and enough that none waits for the one before
  constexpr int kWidth = kRows > 2 ? 1 : 2;
  const int64_t last = std::min(end * kRowUnit, p.layout->cols);
  int64_t column = begin * kRowUnit / kColumns;
  for (; (column + kWidth - 1) * kColumns < last; column += kWidth)
    multiply_row_columns<kRows, kHalves, kWidth>(p, column);
  if (column * kColumns < last) multiply_row_columns<kRows, kHalves, 1>(p, column);
}

template <bool kHalves>
void multiply_some_rows(const RowProduct& p, int64_t begin, int64_t end) {
  with_row_count(p.rows, [&](auto rows) {
    multiply_row_units<decltype(rows)::value, kHalves>(p, begin, end);
  });
}

}  // namespace

void multiply_avx2(const ProductShape& shape, const PackLayout& layout, float* out, const float* in,
                   const void* w) {
  const int64_t columns = (shape.cols + kColumns - 1) / kColumns;
  parallel_for(shape.threads, columns, 1, [&](int64_t begin, int64_t end, int) {
    multiply_columns(shape, layout, out, in, static_cast<const char*>(w), {begin, end});
  });
}

void run_rows_avx2(const RowProduct& product, int64_t begin, int64_t end) {
  if (product.dtype == DType::bf16) multiply_some_rows<true>(product, begin, end);
  else multiply_some_rows<false>(product, begin, end);
}

#else

bool has_avx2_products() { return false; }
void multiply_avx2(const ProductShape&, const PackLayout&, float*, const float*, const void*) {}
void run_rows_avx2(const RowProduct&, int64_t, int64_t) {}

#endif

}  // namespace moe::ops
