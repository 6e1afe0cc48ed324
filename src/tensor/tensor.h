// A view of numbers that something else owns: an Arena, a Model's parameter store, a mapped file.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tensor/dtype.h"

namespace moe {

// Up to four dimensions, the last one contiguous. `row_bytes` is the distance between consecutive
// rows (all leading dimensions flattened), so a slice of columns is a view too; of a quantised
// type, whose rows are blocks, only rows can be sliced. An empty tensor (no data) means "absent":
// no bias, a weight of one, a frozen parameter.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  int64_t row_bytes = 0;

  Tensor() = default;
  // Dense: rows follow each other without gaps.
  Tensor(void* memory, DType type, std::initializer_list<int64_t> dims);

  bool empty() const { return data == nullptr; }
  int64_t cols() const { return shape[rank - 1]; }
  int64_t rows() const;
  int64_t numel() const { return rows() * cols(); }
  int64_t bytes() const { return rows() * bytes_of(dtype, cols()); }
  bool dense() const { return row_bytes == bytes_of(dtype, cols()); }

  template <class T>
  T* as() const {
    [[maybe_unused]] constexpr DType type = dtype_of<T>();
    assert(dtype == type && dense());
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t i) const {
    [[maybe_unused]] constexpr DType type = dtype_of<T>();
    assert(dtype == type);
    return reinterpret_cast<T*>(static_cast<char*>(data) + i * row_bytes);
  }

  // Rows [begin, end) as a matrix.
  Tensor slice_rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of every row, as a matrix with the same row distance.
  Tensor slice_cols(int64_t begin, int64_t end) const;
  // The i-th entry along the first dimension.
  Tensor at(int64_t i) const;
  // Matrices of a bank [E,O,I]; anything else is a bank of one.
  int64_t matrices() const { return rank == 3 ? shape[0] : 1; }
  // [O,I]: matrix e of a bank [E,O,I]; of a matrix [O,I], which may stand for all of a bank's,
  // itself.
  Tensor matrix(int64_t e) const { return rank == 3 ? at(e) : *this; }
  // The same numbers in another shape; the view must be dense.
  Tensor reshape(std::initializer_list<int64_t> dims) const;
};

// "f32 [2048, 384]", for messages; also where the numbers are still to come.
std::string describe(const Tensor& t);

}  // namespace moe
