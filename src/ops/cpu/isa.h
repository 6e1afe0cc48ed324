// Which instruction set the kernels use. MOE_MAX_ISA in the environment caps it: avx512 leaves AMX
// out, avx2 AVX-512 too, baseline AVX2 too (tests run every op in the ways that differ); read once,
// before the first op.
#pragma once

namespace moe::ops {

// Applies the cap to Highway and oneDNN on first call. Every entry point that reaches a dynamic
// dispatch or creates a primitive calls it.
void choose_isa();

}  // namespace moe::ops
