// Included first by every kernel file, before any Highway header: which instruction sets the
// kernels are compiled for. On x86-64 three of them: the compiler's baseline (always works), AVX2
// and AVX3 (AVX-512). What lies between or above costs compile time and gains little here. In
// Highway a better target has a lower bit, so that all above AVX3 go, those too for which an older
// Highway has no name. On ARM64 one, NEON, which every such machine has. Not SVE: its vectors have
// no size while compiling, so that they can be neither elements of arrays nor members, and kernels
// keep their sums in both.
#pragma once

#if defined(__aarch64__)
#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))
#endif
