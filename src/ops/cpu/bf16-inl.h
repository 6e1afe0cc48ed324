// What kernels that multiply pairs of bf16 share: the processor has AVX512-BF16 where they run. A
// pair is a word of 32 bits, the first of its two numbers in the lower half.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_BF16_INL_H_
#undef MOE_OPS_CPU_BF16_INL_H_
#else
#define MOE_OPS_CPU_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {
namespace {

#define MOE_BF16 __attribute__((target(HWY_TARGET_STR ",avx512bf16")))

// A mask of the first `count` of 32 lanes, or of the first of 16 in its lower half.
HWY_INLINE uint32_t first_lanes(int64_t count) {
  return count >= 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
}

// Pairs of which a holds the first numbers and b the second, rounded.
MOE_BF16 HWY_INLINE __m512i round_pairs(__m512 a, __m512 b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target guard
