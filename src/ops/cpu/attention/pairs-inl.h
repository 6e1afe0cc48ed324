// Rows of bf16 as pairs, and products of them (VDPBF16PS): what attention in bf16 is made of. A
// pair is a word of 32 bits, the first of its two numbers in the lower half. Each element of a
// product is one chain over its pairs in ascending order.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_PAIRS_INL_H_
#undef MOE_OPS_CPU_ATTENTION_PAIRS_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include "ops/cpu/attention/blocks-inl.h"
#include "ops/cpu/bf16-inl.h"
#include "tensor/tensor.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

using Pair = uint32_t;
constexpr int64_t kLanes = 16;

// Columns [col, col + cols) of row r as pairs, the last one filled with zero.
MOE_BF16 HWY_INLINE void copy_pairs(Pair* dst, const Tensor& t, int64_t r, int64_t col,
                                    int64_t cols) {
  if (t.dtype == DType::bf16) {
    const bf16* src = t.row<bf16>(r) + col;
    const int64_t pairs = (cols + 1) / 2;
    for (int64_t c = 0; c < cols; c += 2 * kLanes)
      _mm512_mask_storeu_epi32(dst + c / 2, static_cast<__mmask16>(first_lanes(pairs - c / 2)),
                               _mm512_maskz_loadu_epi16(first_lanes(cols - c), src + c));
    return;
  }
  dst[(cols - 1) / 2] = 0;
  const float* src = t.row<float>(r) + col;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const auto mask = static_cast<__mmask16>(first_lanes(cols - c));
    _mm256_mask_storeu_epi16(reinterpret_cast<bf16*>(dst) + c, mask,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, src + c)));
  }
}

// 32 pairs of which a holds the first numbers and b the second.
MOE_BF16 HWY_INLINE void store_pairs(Pair* low, Pair* high, __m512i a, __m512i b) {
  // Numbers of b count from 32.
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, order, b));
  _mm512_storeu_si512(
      high, _mm512_permutex2var_epi16(a, _mm512_add_epi16(order, _mm512_set1_epi16(16)), b));
}

// Pairs of the numbers of two rows, a null row for zeros; whole vectors of 32 are written, each
// half of one `vector` words behind the other, zero beyond `cols`.
MOE_BF16 HWY_INLINE void pair_rows(Pair* dst, int64_t vector, const bf16* first, const bf16* second,
                                   int64_t cols) {
  for (int64_t c = 0; c < cols; c += 2 * kLanes, dst += 2 * vector) {
    const auto mask = first_lanes(cols - c);
    const auto numbers = [&](const bf16* row) MOE_BF16 {
      return row == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(mask, row + c);
    };
    store_pairs(dst, dst + vector, numbers(first), numbers(second));
  }
}

// 16 numbers rounded, which make 8 pairs.
MOE_BF16 HWY_INLINE void store_rounded(Pair* dst, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), (__m256i)_mm512_cvtneps_pbh(x));
}

// a [kRows, depth]; b [depth, kVectors * 16]; c [kRows, kVectors * 16]
template <int kRows, int kVectors, class Into, class Else>
MOE_BF16 HWY_INLINE void pair_tile(BlockA<Pair> a, const Pair* HWY_RESTRICT b, int64_t ldb,
                                   float* HWY_RESTRICT c, int64_t ldc, int64_t depth, Into into,
                                   Else& beside) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = into.start(c + i * ldc + j * kLanes, i).raw;
  for (int64_t k = 0; k < depth; ++k, a.data += a.step, b += ldb) {
    beside();
    __m512i row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const __m512i all = _mm512_set1_epi32(static_cast<int>(a.data[i * a.row]));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j)
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)all, (__m512bh)row[j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * ldc + j * kLanes, sum[i][j]);
}

// kRows rows of C, n columns.
template <int kRows, class Into, class Else>
MOE_BF16 void pair_panel(int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b, int64_t ldb,
                         float* c, int64_t ldc, Into into, Else& beside) {
  for (; n >= kTileVectors * kLanes;
       n -= kTileVectors * kLanes, b += kTileVectors * kLanes, c += kTileVectors * kLanes)
    pair_tile<kRows, kTileVectors>(a, b, ldb, c, ldc, depth, into, beside);
  switch (n / kLanes) {
    case 3: return pair_tile<kRows, 3>(a, b, ldb, c, ldc, depth, into, beside);
    case 2: return pair_tile<kRows, 2>(a, b, ldb, c, ldc, depth, into, beside);
    case 1: return pair_tile<kRows, 1>(a, b, ldb, c, ldc, depth, into, beside);
    default: return;
  }
}

// C = A B into what C holds, summed over pairs.  A [m, depth]; B [depth, n]; C [m, n]; n a multiple
// of 16
template <class Into, class Else>
MOE_BF16 void pair_product(int64_t m, int64_t n, int64_t depth, BlockA<Pair> a, const Pair* b,
                           int64_t ldb, float* c, int64_t ldc, Into into, Else&& beside) {
  for (; m >= kTileRows;
       m -= kTileRows, a.data += kTileRows * a.row, c += kTileRows * ldc, into.skip(kTileRows))
    pair_panel<kTileRows>(n, depth, a, b, ldb, c, ldc, into, beside);
  switch (m) {
    case 5: return pair_panel<5>(n, depth, a, b, ldb, c, ldc, into, beside);
    case 4: return pair_panel<4>(n, depth, a, b, ldb, c, ldc, into, beside);
    case 3: return pair_panel<3>(n, depth, a, b, ldb, c, ldc, into, beside);
    case 2: return pair_panel<2>(n, depth, a, b, ldb, c, ldc, into, beside);
    case 1: return pair_panel<1>(n, depth, a, b, ldb, c, ldc, into, beside);
    default: return;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
