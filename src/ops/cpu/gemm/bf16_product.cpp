#include "ops/cpu/gemm/bf16_product.h"

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "ops/cpu/gemm/row_product.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/ops.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {

#if defined(__x86_64__)

namespace {

#define MOE_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define MOE_UNROLL _Pragma("GCC unroll 8")

// Six rows by four vectors of sums leave registers for the weights' vectors and a pair of x.
constexpr int64_t kTileRows = 6, kVectors = 4, kLanes = 16, kColumns = kVectors * kLanes;
constexpr int64_t kPairBytes = 4, kLine = 64;
// Pairs of which a column of weights (16 KB) and a tile's rows stay in the first-level cache.
constexpr int64_t kDepth = 64;

// `in` [kRows, depth] pairs, rows in_stride pairs apart; w [depth, 64] pairs; sums [kRows, 64].
// From `fetched` on so many lines a step are fetched, spread out, for the memory takes no more than
// a few at a time.
struct Tile {
  const char* in;
  int64_t in_stride;
  const char* w;
  int64_t depth;
  float* sums;
  bool add;
  const char* fetched;
  int64_t lines;
};

template <int kRows>
MOE_BF16_TARGET void multiply_tile(const Tile& t) {
  __m512 sum[kRows][kVectors];
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kVectors; ++v)
      sum[r][v] = t.add ? _mm512_loadu_ps(t.sums + r * kColumns + v * kLanes) : _mm512_setzero_ps();
  const char* in = t.in;
  const char *w = t.w, *fetched = t.fetched;
  for (int64_t k = 0; k < t.depth; ++k, in += kPairBytes, w += kColumns * kPairBytes) {
    for (int64_t line = 0; line < t.lines; ++line, fetched += kLine)
      _mm_prefetch(fetched, _MM_HINT_T1);
    __m512bh row[kVectors];
    MOE_UNROLL for (int v = 0; v < kVectors; ++v) row[v] =
        (__m512bh)_mm512_loadu_si512(w + v * kLanes * kPairBytes);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      int32_t word;
      std::memcpy(&word, in + r * t.in_stride * kPairBytes, sizeof word);
      const auto x = (__m512bh)_mm512_set1_epi32(word);
      MOE_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] =
          _mm512_dpbf16_ps(sum[r][v], x, row[v]);
    }
  }
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kVectors; ++v)
      _mm512_storeu_ps(t.sums + r * kColumns + v * kLanes, sum[r][v]);
}
constexpr void (*kTiles[kTileRows])(const Tile&) = {multiply_tile<1>, multiply_tile<2>,
                                                    multiply_tile<3>, multiply_tile<4>,
                                                    multiply_tile<5>, multiply_tile<6>};

// sums [rows, 64] to columns [first, first + 64) of out, as far as there are.
MOE_BF16_TARGET void store_sums(const ProductShape& s, void* out, const float* sums,
                                int64_t first) {
  const int64_t columns = std::min(kColumns, s.cols - first);
  for (int64_t r = 0; r < s.rows; ++r, sums += kColumns)
    for (int64_t c = 0; c < columns; c += kLanes) {
      const auto mask =
          static_cast<__mmask16>(columns - c >= kLanes ? 0xFFFF : (1 << (columns - c)) - 1);
      const int64_t at = r * s.cols + first + c;
      const __m512 x = _mm512_loadu_ps(sums + c);
      if (s.out == DType::f32) _mm512_mask_storeu_ps(static_cast<float*>(out) + at, mask, x);
      else
        _mm256_mask_storeu_epi16(static_cast<bf16*>(out) + at, mask,
                                 (__m256i)_mm512_cvtneps_pbh(x));
    }
}

// A column of blocks, whose weights lie in the order in which they are read; what follows them is
// on its way while they are multiplied.
void multiply_column(const ProductShape& s, void* out, const char* in, const char* w,
                     int64_t first) {
  alignas(64) float sums[kMostFetchedRows * kColumns], totals[kMostFetchedRows * kColumns];
  const int64_t tiles = (s.rows + kTileRows - 1) / kTileRows, numbers = s.rows * kColumns;
  for (int64_t begin = 0; begin < s.inner; begin += s.stretch) {
    const int64_t pairs = (std::min(s.stretch, s.inner - begin) + 1) / 2;
    for (int64_t k = 0; k < pairs; k += kDepth) {
      const int64_t depth = std::min(kDepth, pairs - k), bytes = depth * kColumns * kPairBytes,
                    lines = (kColumns * kPairBytes / kLine + tiles - 1) / tiles;
      const char *next = w + bytes, *end = next + bytes;
      for (int64_t t = 0; t < tiles; ++t, next += depth * lines * kLine) {
        const Span rows = partition(s.rows, static_cast<int>(t), static_cast<int>(tiles));
        kTiles[rows.end - rows.begin - 1]({.in = in + (rows.begin * s.inner + begin + 2 * k) * 2,
                                           .in_stride = s.inner / 2,
                                           .w = w,
                                           .depth = depth,
                                           .sums = sums + rows.begin * kColumns,
                                           .add = k > 0,
                                           .fetched = next,
                                           .lines = next < end ? lines : 0});
      }
      w += bytes;
    }
    if (s.stretch >= s.inner) break;
    for (int64_t i = 0; i < numbers; ++i) totals[i] = begin == 0 ? sums[i] : totals[i] + sums[i];
  }
  store_sums(s, out, s.stretch < s.inner ? totals : sums, first);
}

}  // namespace

int64_t fetched_stretch(const ProductShape& s) {
  if (s.add || s.in != DType::bf16 || s.weights != DType::bf16 || !has_bf16_products() ||
      has_tiles())
    return 0;
  return row_stretch(weights_layout(s.inner, s.cols, DType::bf16), DType::bf16);
}

void multiply_bf16(const ProductShape& shape, const PackLayout& layout, void* out, const void* in,
                   const void* w) {
  parallel_for(shape.threads, (shape.cols + kColumns - 1) / kColumns, 1,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t c = begin; c < end; ++c)
                   multiply_column(shape, out, static_cast<const char*>(in),
                                   static_cast<const char*>(w) + c * layout.n_stride * 2,
                                   c * kColumns);
               });
}

#else

int64_t fetched_stretch(const ProductShape&) { return 0; }
void multiply_bf16(const ProductShape&, const PackLayout&, void*, const void*, const void*) {}

#endif

}  // namespace moe::ops
