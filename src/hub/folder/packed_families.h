// What the rows of packed_forms.cpp read with, one function a form: the weight of its parts, which
// it views. Each fails, naming the tensor, where they do not fit together.
#pragma once

#include "hub/folder/packed_forms.h"

namespace moe {

Tensor mxfp4_shape(const PackedParts&);
Tensor unpack_mxfp4(const PackedParts&, const MemoryOfWeights&);
// Of compressed-tensors.
Tensor mxfp4_matrix_shape(const PackedParts&);
Tensor unpack_mxfp4_matrix(const PackedParts&, const MemoryOfWeights&);
// NVFP4, whose scales are multiplied by that of the matrix (ModelOpt) or divided by it
// (compressed-tensors).
PackedMatrix nvfp4_matrix(const PackedParts&, const Packing&);
PackedMatrix nvfp4_divided_matrix(const PackedParts&, const Packing&);
// The experts of a layer, of ModelOpt.
PackedMatrix nvfp4_bank(const PackedParts&, const Packing&);
PackedMatrix f8_bank(const PackedParts&, const Packing&);

PackedMatrix fp8_matrix(const PackedParts&, const Packing&);
// Of E4M3 or of signed bytes, beside scales of the matrix, of rows, groups or blocks.
PackedMatrix bytes_matrix(const PackedParts&, const Packing&);

PackedMatrix gptq_matrix(const PackedParts&, const Packing&);
PackedMatrix awq_matrix(const PackedParts&, const Packing&);
// Of compressed-tensors.
PackedMatrix words_matrix(const PackedParts&, const Packing&);

// Of bitsandbytes, 4 and 8 bits.
PackedMatrix bitsandbytes4_matrix(const PackedParts&, const Packing&);
PackedMatrix bitsandbytes8_matrix(const PackedParts&, const Packing&);

}  // namespace moe
