// Products of small blocks of bf16 pairs (VDPBF16PS) that lie in a thread's scratch, and the ways into it: what attention in halves is made of. A pair is a
// word of 32 bits, the first of its two numbers in the lower half; a product sums over pairs, in f32. Every element is one chain over its pairs in ascending
// order: its bits depend on its own row of A and column of B alone. The columns of B and C are padded to whole vectors.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_PAIR_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_PAIR_GEMM_INL_H_
#undef MOE_OPS_CPU_PAIR_GEMM_INL_H_
#else
#define MOE_OPS_CPU_PAIR_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "tensor/arena.h"
#include "tensor/tensor.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

#define MOE_HALVES __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

constexpr int64_t kLanes = 16;
// A product takes so many rows and vectors of columns at once: their sums fill 24 of the 32 registers.
constexpr int kRowsAtOnce = 6;
constexpr int kVectorsAtOnce = 4;

template <class T>
T* alloc(Arena& arena, int64_t n) {
  return static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(n) * sizeof(T)));
}

// A mask of the first `count` of 32 lanes, or of the first of 16 in its lower half.
HWY_INLINE uint32_t first_lanes(int64_t count) { return count >= 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1; }

// Columns [col, col + cols) of row r as pairs, the last one filled with zero.
MOE_HALVES HWY_INLINE void copy_pairs(uint32_t* dst, const Tensor& t, int64_t r, int64_t col, int64_t cols) {
  if (t.dtype == DType::bf16) {
    const bf16* src = t.row<bf16>(r) + col;
    const int64_t pairs = (cols + 1) / 2;
    for (int64_t c = 0; c < cols; c += 2 * kLanes)
      _mm512_mask_storeu_epi32(dst + c / 2, static_cast<__mmask16>(first_lanes(pairs - c / 2)), _mm512_maskz_loadu_epi16(first_lanes(cols - c), src + c));
    return;
  }
  dst[(cols - 1) / 2] = 0;
  const float* src = t.row<float>(r) + col;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const auto mask = static_cast<__mmask16>(first_lanes(cols - c));
    _mm256_mask_storeu_epi16(reinterpret_cast<bf16*>(dst) + c, mask, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, src + c)));
  }
}

// 32 pairs of which a holds the first numbers and b the second.
MOE_HALVES HWY_INLINE void store_pairs(uint32_t* dst, __m512i a, __m512i b) {
  // Numbers of b count from 32.
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(a, low, b));
  _mm512_storeu_si512(dst + kLanes, _mm512_permutex2var_epi16(a, high, b));
}

// Pairs of the numbers of two rows, a null row for zeros; whole vectors of 32 are written, zero beyond `cols`.
MOE_HALVES HWY_INLINE void pair_rows(uint32_t* dst, const bf16* first, const bf16* second, int64_t cols) {
  for (int64_t c = 0; c < cols; c += 2 * kLanes) {
    const auto mask = first_lanes(cols - c);
    const auto numbers = [&](const bf16* row) MOE_HALVES { return row == nullptr ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(mask, row + c); };
    store_pairs(dst + c, numbers(first), numbers(second));
  }
}

// Pair k of row m of A lies at data[m * row + k * step].
struct PairsA {
  const uint32_t* data;
  int64_t row;
  int64_t step;
};

// What a product does with what C holds: C = A B, C += A B, or C = factor C + A B with a factor for each row.
struct Written {
  MOE_HALVES HWY_INLINE __m512 start(const float*, int) const { return _mm512_setzero_ps(); }
};
struct Added {
  MOE_HALVES HWY_INLINE __m512 start(const float* c, int) const { return _mm512_loadu_ps(c); }
};
struct Scaled {
  const float* factor;
  MOE_HALVES HWY_INLINE __m512 start(const float* c, int row) const { return _mm512_mul_ps(_mm512_set1_ps(factor[row]), _mm512_loadu_ps(c)); }
};

// a [kRows, depth]; b [depth, kVectors * 16]; c [kRows, kVectors * 16]
template <int kRows, int kVectors, class Into>
MOE_HALVES HWY_INLINE void pair_tile(PairsA a, const uint32_t* HWY_RESTRICT b, int64_t ldb, float* HWY_RESTRICT c, int64_t ldc, int64_t depth, Into into) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) sum[i][j] = into.start(c + i * ldc + j * kLanes, i);
  for (int64_t k = 0; k < depth; ++k, a.data += a.step, b += ldb) {
    __m512i row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const __m512i all = _mm512_set1_epi32(static_cast<int>(a.data[i * a.row]));
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)all, (__m512bh)row[j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(c + i * ldc + j * kLanes, sum[i][j]);
}

// kRows rows of C, n columns.
template <int kRows, class Into>
MOE_HALVES void pair_product(int64_t n, int64_t depth, PairsA a, const uint32_t* b, int64_t ldb, float* c, int64_t ldc, Into into) {
  for (; n >= kVectorsAtOnce * kLanes; n -= kVectorsAtOnce * kLanes, b += kVectorsAtOnce * kLanes, c += kVectorsAtOnce * kLanes)
    pair_tile<kRows, kVectorsAtOnce>(a, b, ldb, c, ldc, depth, into);
  switch (n / kLanes) {
    case 3: return pair_tile<kRows, 3>(a, b, ldb, c, ldc, depth, into);
    case 2: return pair_tile<kRows, 2>(a, b, ldb, c, ldc, depth, into);
    case 1: return pair_tile<kRows, 1>(a, b, ldb, c, ldc, depth, into);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
