// Which instruction set the kernels use. MOE_MAX_ISA in the environment caps it: avx512 leaves AMX
// out, avx512_vnni products of bf16 too, avx2 AVX-512 too, baseline AVX2 too (tests run every op in
// the ways that differ); read once, before the first op. On ARM64 there is one set and no cap.
#pragma once

#include <cstdint>

namespace moe::ops {

// Applies the cap to Highway and oneDNN on first call. Every entry point that reaches a dynamic
// dispatch or creates a primitive calls it.
void choose_isa();

// Highway's targets within the cap, as bits. Not hwy::SupportedTargets(): asking it makes Highway
// (1.0.3) dispatch without the cap from then on.
int64_t usable_targets();

}  // namespace moe::ops
