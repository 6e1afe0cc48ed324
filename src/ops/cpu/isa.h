// Which instruction set the kernels use. MOE_MAX_ISA=avx2 in the environment caps it (tests run every op both ways); read once, before the first op.
#pragma once

namespace moe::ops {

// Applies the cap to Highway and oneDNN on first call. Every entry point that reaches a dynamic dispatch or creates a primitive calls it.
void choose_isa();

}  // namespace moe::ops
