// Included first by every kernel file, before any Highway header: which instruction sets the
// kernels are compiled for. Three of them: the compiler's baseline (always works), AVX2 and AVX3
// (AVX-512). What lies between or above costs compile time and gains little here. In Highway a
// better target has a lower bit, so that all above AVX3 go, those too for which an older Highway
// has no name.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))
