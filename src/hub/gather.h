// Rows of a tensor as a file has them, out of the parameters of a model, whatever their types and
// wherever they lie.
#pragma once

#include "hub/account.h"
#include "hub/tensor_map.h"

namespace moe {

// How a tensor is walked: so many rows of so many numbers, in steps that begin and end at multiples
// of `step`.
struct FileRows {
  int64_t rows, cols;
  int64_t step;  // more than 1 where a matrix is turned and comes whole
};
FileRows rows_of(const FileTensor&);

// Rows [begin, end) into out [end - begin, cols] as f32, with the terms that hang on the matrices
// (model/adapters.h), the work shared by threads. What was read is added to `read`.
void gather_rows(float* out, const FileTensor&, int64_t begin, int64_t end, int threads,
                 Coverage& read);
// The same as they are stored; all pieces must have the type `dtype`, and none may be turned, have
// a term or, but for f32, a factor.
void gather_stored(void* out, const FileTensor&, DType dtype, int64_t begin, int64_t end,
                   int threads, Coverage& read);

}  // namespace moe
