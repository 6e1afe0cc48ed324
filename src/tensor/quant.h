// The block formats of GGUF (github ggml-org/ggml, docs/gguf.md and src/ggml-quants.c): how numbers
// become blocks and blocks numbers, in plain C++, the same bits on every machine. Kernels that
// multiply by blocks have their own readers (ops/cpu); they are tested against these.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace moe {

class BlockRounding;

// Whether numbers can become weights of this type; of the others a file's blocks are only read.
bool can_make(DType dtype);

// out[i] = in[i] as f32, i < n, from any float or quantised type; n is whole blocks.
void dequantise(float* out, const void* in, DType from, int64_t n);
// out = in in the type `to`: f32, f16 and bf16 rounded to nearest even, quantised types by scales
// as llama.cpp's reference chooses them, but q2_0 (better ones, quant_two.h) and numbers that have
// been of q4_0 or q5_0, which stay. importance [n]: what the square of an error counts in a place,
// above zero; then scales (but those of q8_0 and mxfp4, which hang on the largest number alone) are
// the best for that. n is whole blocks. Fails for i32 and for types that are only read. Numbers
// that are not finite are the caller's to refuse. `rounding` chooses the integers of each block of
// those types whose scales are fitted; null: the nearest ones.
void quantise(void* out, const float* in, DType to, int64_t n, const float* importance = nullptr,
              BlockRounding* rounding = nullptr);

}  // namespace moe
