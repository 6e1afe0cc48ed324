// Turning blocks of 32-bit words: an f32, or two neighbouring bf16.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_TRANSPOSE_INL_H_
#undef MOE_OPS_CPU_TRANSPOSE_INL_H_
#else
#define MOE_OPS_CPU_TRANSPOSE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

template <bool kStream, class D>
HWY_INLINE void Put(hn::Vec<D> v, D d, uint32_t* p) {
  if constexpr (kStream) hn::Stream(v, d, p);
  else hn::StoreU(v, d, p);
}

#if HWY_TARGET <= HWY_AVX3
// Sixteen by sixteen words, each line of memory read once and written once: rows that lie a
// multiple of 4 KiB apart share one set of the first-level cache and would push each other out
// between two visits. First four by four inside each 128-bit block, then the blocks.
template <bool kStream>
HWY_INLINE void Transpose16(uint32_t* HWY_RESTRICT out, int64_t out_stride,
                            const uint32_t* HWY_RESTRICT in, int64_t in_stride) {
  const hn::FixedTag<uint32_t, 16> d;
  const hn::FixedTag<uint64_t, 8> d64;
  hn::Vec<decltype(d)> t[16];  // block b of t[4 q + i]: column 4 b + i of rows 4 q .. 4 q + 3
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const uint32_t* p = in + 4 * q * in_stride;
    const auto r0 = hn::LoadU(d, p), r1 = hn::LoadU(d, p + in_stride),
               r2 = hn::LoadU(d, p + 2 * in_stride), r3 = hn::LoadU(d, p + 3 * in_stride);
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)),
               low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1)),
               high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
    t[4 * q] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    t[4 * q + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    t[4 * q + 2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    t[4 * q + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto a = t[i], b = t[4 + i], c = t[8 + i], e = t[12 + i];
    const auto even_ab = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a),
               odd_ab = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
    const auto even_ce = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(e), c),
               odd_ce = hn::OddEvenBlocks(e, hn::SwapAdjacentBlocks(c));
    Put<kStream>(hn::ConcatLowerLower(d, even_ce, even_ab), d, out + i * out_stride);
    Put<kStream>(hn::ConcatLowerLower(d, odd_ce, odd_ab), d, out + (4 + i) * out_stride);
    Put<kStream>(hn::ConcatUpperUpper(d, even_ce, even_ab), d, out + (8 + i) * out_stride);
    Put<kStream>(hn::ConcatUpperUpper(d, odd_ce, odd_ab), d, out + (12 + i) * out_stride);
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
