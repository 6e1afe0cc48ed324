#include "tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace moe {

Tensor::Tensor(void* memory, DType type, std::initializer_list<int64_t> dims)
    : data(memory), dtype(type), rank(static_cast<int>(dims.size())) {
  assert(rank >= 1 && rank <= 4);
  std::copy(dims.begin(), dims.end(), shape.begin());
  row_bytes = bytes_of(dtype, cols());
}

int64_t Tensor::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank; ++i) n *= shape[i];
  return n;
}

Tensor Tensor::slice_rows(int64_t begin, int64_t end) const {
  assert(0 <= begin && begin <= end && end <= rows());
  Tensor t(static_cast<char*>(data) + begin * row_bytes, dtype, {end - begin, cols()});
  t.row_bytes = row_bytes;
  return t;
}

Tensor Tensor::slice_cols(int64_t begin, int64_t end) const {
  assert(0 <= begin && begin <= end && end <= cols());
  Tensor t(static_cast<char*>(data) + begin * static_cast<int64_t>(size_of(dtype)), dtype,
           {rows(), end - begin});
  t.row_bytes = row_bytes;
  return t;
}

Tensor Tensor::at(int64_t i) const {
  assert(rank >= 2 && 0 <= i && i < shape[0]);
  Tensor t = *this;
  t.rank = rank - 1;
  std::copy(shape.begin() + 1, shape.end(), t.shape.begin());
  t.shape[3] = 0;
  const int64_t rows_each = rank == 2 ? 1 : t.rows();
  t.data = static_cast<char*>(data) + i * rows_each * row_bytes;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> dims) const {
  assert(dense());
  Tensor t(data, dtype, dims);
  assert(t.numel() == numel());
  return t;
}

std::string describe(const Tensor& t) {
  if (t.empty() && t.rank == 0) return "absent";
  return fmt::format("{} [{}]", name_of(t.dtype),
                     fmt::join(t.shape.begin(), t.shape.begin() + t.rank, ", "));
}

}  // namespace moe
