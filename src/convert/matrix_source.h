// Which matrix of a model a matrix of its file is.
#pragma once

#include "hub/tensor_map.h"

namespace moe {

// Which matrix of which parameter makes matrix m of the tensor; null: none that rows are multiplied
// by as the file has it.
struct MatrixSource {
  const FileTensor::Piece* piece = nullptr;
  size_t matrix = 0;
};
MatrixSource source_of(const FileTensor& tensor, int64_t m);

}  // namespace moe
