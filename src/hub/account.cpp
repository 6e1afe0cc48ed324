#include "hub/account.h"

#include <algorithm>

#include "core/error.h"

namespace moe {

PartShape shape_of(const FileTensor::Part& part) {
  const Tensor& t = part.param->value;
  PartShape shape{.begin = 0, .count = t.rank == 3 ? t.shape[0] : 1, .rows = t.rank >= 2 ? t.shape[t.rank - 2] : 1, .cols = t.cols()};
  if (part.expert < 0) return shape;
  if (t.rank == 2) shape.rows = 1;  // of a bank of vectors
  shape.count = 1;
  shape.begin = part.expert * shape.numel();
  return shape;
}

void Coverage::add(const Param& param, int64_t begin, int64_t end) {
  std::vector<Piece>& pieces = pieces_[&param];
  numbers_ += end - begin;
  if (!pieces.empty() && pieces.back().end == begin) pieces.back().end = end;
  else pieces.push_back({begin, end});
}

void Coverage::add(const FileTensor& tensor) {
  for (const FileTensor::Part& part : tensor.parts) {
    const PartShape shape = shape_of(part);
    add(*part.param, shape.begin, shape.begin + shape.numel());
  }
}

void Coverage::settle(const std::vector<Param*>& params, const std::string& where) const {
  size_t known = 0;
  for (const Param* param : params) {
    const auto found = pieces_.find(param);
    std::vector<Piece> pieces = found == pieces_.end() ? std::vector<Piece>{} : found->second;
    known += found == pieces_.end() ? 0 : 1;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    pieces.push_back({param->value.numel(), param->value.numel()});
    int64_t at = 0;
    for (const Piece& piece : pieces) {
      if (piece.begin != at)
        fail("{}: the account does not come out: numbers {} to {} of \"{}\" would stand {}", where, std::min(at, piece.begin), std::max(at, piece.begin) - 1,
             param->name, piece.begin > at ? "nowhere" : "there twice");
      at = piece.end;
    }
  }
  if (known != pieces_.size()) fail("{}: the account does not come out: it holds {} parameters that the model does not have", where, pieces_.size() - known);
}

}  // namespace moe
