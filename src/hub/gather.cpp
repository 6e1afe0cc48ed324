#include "hub/gather.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/threads.h"
#include "tensor/quant.h"

namespace moe {
namespace {

// Rows shared out in pieces large enough to be worth a thread.
int64_t grain(int64_t cols) { return std::max<int64_t>(1, (int64_t{1} << 16) / cols); }

bool is_turned(const FileTensor& tensor) {
  return tensor.columns ||
         std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const FileTensor::Piece& piece) { return piece.transpose; });
}

// Row r of a piece as the file has it: where its numbers stand in the Model. `cols` may be 1 where
// a vector is walked number by number.
struct Place {
  const char* data;
  DType dtype;
  const FileTensor::Piece* piece;
  int64_t matrix, row;  // of the piece, and of the matrix
};
Place place_of(const FileTensor::Piece& piece, const PieceShape& shape, int64_t r, int64_t cols) {
  const int64_t at = piece.order.model_row(r) * cols, each = shape.rows * shape.cols;
  const Tensor matrix = matrix_of(piece, at / each);
  const int64_t in_matrix = at % each;
  const char* row =
      static_cast<const char*>(matrix.data) + in_matrix / shape.cols * matrix.row_bytes;
  return {row + bytes_of(matrix.dtype, in_matrix % shape.cols), matrix.dtype, &piece, at / each,
          in_matrix / shape.cols};
}

// Calls f(place, row) for rows [begin, end) of the tensor.
template <class F>
void each_row(const FileTensor& tensor, int64_t begin, int64_t end, int threads, Coverage& read,
              F&& f) {
  const int64_t cols = rows_of(tensor).cols;
  int64_t first = 0;  // row of the tensor at which the piece begins
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const PieceShape shape = shape_of(piece);
    const int64_t rows = shape.numel() / cols;
    // Among rows of other pieces: of the whole tensor, or of those of one expert.
    const bool apart = piece.order.apart > 0;
    const int64_t all = rows_of(tensor).rows / (piece.expert < 0 ? 1 : tensor.shape[0]),
                  before = !apart             ? first
                           : piece.expert < 0 ? 0
                                              : piece.expert * all,
                  count = apart ? all : rows, from = std::max(begin, before) - before,
                  to = std::min(end, before + count) - before;
    parallel_for(threads, to - from, grain(cols), [&](int64_t r0, int64_t r1, int) {
      for (int64_t r = from + r0; r < from + r1; ++r)
        if (piece.order.has(r)) f(place_of(piece, shape, r, cols), before + r);
    });
    for (int64_t r = from; r < to; ++r) {
      if (!piece.order.has(r)) continue;
      const int64_t number = shape.begin + piece.order.model_row(r) * cols;
      read.add(*piece.param, number, number + cols);
    }
    first += rows;
  }
}

// Whole matrices [begin, end) of a tensor, some of them turned.
void gather_turned(float* out, const FileTensor& tensor, int64_t begin, int64_t end, int threads,
                   Coverage& read) {
  const FileRows walk = rows_of(tensor);
  const int64_t m0 = begin / walk.step, m1 = end / walk.step;
  int64_t at = 0;  // numbers of a matrix before the piece, or columns
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const PieceShape shape = shape_of(piece);
    const bool apart = piece.order.apart > 0;
    const int64_t stride = tensor.columns || apart ? walk.cols
                           : piece.transpose       ? shape.rows
                                                   : shape.cols;
    for (int64_t m = m0; m < m1; ++m) {
      if (apart && piece.expert >= 0 && piece.expert != m) continue;
      const Tensor matrix = matrix_of(piece, m);
      float* to = out + (m - m0) * walk.step * walk.cols + (apart ? 0 : at);
      parallel_for(threads, shape.rows, grain(shape.cols), [&](int64_t r0, int64_t r1, int) {
        std::vector<float> row(static_cast<size_t>(shape.cols));
        for (int64_t r = r0; r < r1; ++r) {
          dequantise(row.data(), static_cast<const char*>(matrix.data) + r * matrix.row_bytes,
                     matrix.dtype, shape.cols);
          adapt_row(row, piece, m, r);
          for (int64_t c = 0; c < shape.cols; ++c)
            to[piece.transpose ? c * stride + piece.order.file_row(r) : r * stride + c] =
                row[static_cast<size_t>(c)];
        }
      });
      const int64_t number = shape.begin + (piece.expert < 0 ? m * shape.rows * shape.cols : 0);
      read.add(*piece.param, number, number + shape.rows * shape.cols);
    }
    at += tensor.columns ? (piece.transpose ? shape.rows : shape.cols) : shape.rows * shape.cols;
  }
}

}  // namespace

FileRows rows_of(const FileTensor& tensor) {
  int64_t rows = 1;
  for (const int64_t n : tensor.shape) rows *= n;
  // its pieces may be of different lengths, and pairs be single numbers
  const bool of_vectors = !tensor.pieces.empty() && !tensor.pieces[0].param->is_matrix();
  if (tensor.shape.size() == 1 || (of_vectors && !tensor.pieces[0].order.as_in_model()))
    return {rows, 1, 1};
  rows /= tensor.shape.back();
  return {rows, tensor.shape.back(), is_turned(tensor) ? tensor.shape[tensor.shape.size() - 2] : 1};
}

void gather_rows(float* out, const FileTensor& tensor, int64_t begin, int64_t end, int threads,
                 Coverage& read) {
  if (is_turned(tensor)) return gather_turned(out, tensor, begin, end, threads, read);
  const int64_t cols = rows_of(tensor).cols;
  each_row(tensor, begin, end, threads, read, [&](const Place& from, int64_t row) {
    float* to = out + (row - begin) * cols;
    dequantise(to, from.data, from.dtype, cols);
    adapt_row({to, static_cast<size_t>(cols)}, *from.piece, from.matrix, from.row);
    columns_to_file({to, static_cast<size_t>(cols)}, tensor.pieces[0]);
    to_file({to, static_cast<size_t>(cols)}, *from.piece);
  });
}

void gather_stored(void* out, const FileTensor& tensor, DType dtype, int64_t begin, int64_t end,
                   int threads, Coverage& read) {
  assert(!is_turned(tensor));
  const int64_t bytes = bytes_of(dtype, rows_of(tensor).cols);
  each_row(tensor, begin, end, threads, read, [&](const Place& from, int64_t row) {
    assert(from.dtype == dtype);
    auto* to = static_cast<std::byte*>(out) + (row - begin) * bytes;
    std::memcpy(to, from.data, static_cast<size_t>(bytes));
    columns_to_file({to, static_cast<size_t>(bytes)}, tensor.pieces[0], dtype);
    assert(dtype == DType::f32 || from.piece->factor == 1);
    if (dtype == DType::f32)
      to_file({reinterpret_cast<float*>(to), static_cast<size_t>(bytes) / sizeof(float)},
              *from.piece);
  });
}

}  // namespace moe
