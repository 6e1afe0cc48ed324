#include "convert/matrix_source.h"

#include "model/parameters.h"

namespace moe {

MatrixSource source_of(const FileTensor& tensor, int64_t m) {
  if (tensor.columns || tensor.alias) return {};
  const bool bank = tensor.shape.size() == 3;
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const Tensor& value = piece.param->value;
    const bool part = piece.heads > 0 || piece.rows.count > 0;
    if (piece.transpose || part || value.cols() != tensor.shape.back()) return {};
    if (value.rank == 2 && !bank) return {&piece, 0};
    if (value.rank == 3 && piece.expert < 0 && bank) return {&piece, static_cast<size_t>(m)};
    if (value.rank == 3 && piece.expert >= 0 && (!bank || piece.expert == m))
      return {&piece, static_cast<size_t>(piece.expert)};
  }
  return {};
}

}  // namespace moe
