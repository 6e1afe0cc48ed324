#include "hub/account.h"

#include <algorithm>

#include "core/error.h"

namespace moe {

PieceShape shape_of(const FileTensor::Piece& piece) {
  const Tensor& t = piece.param->value;
  PieceShape shape{.begin = 0,
                   .count = t.matrices(),
                   .rows = t.rank >= 2 ? t.shape[t.rank - 2] : 1,
                   .cols = t.cols()};
  if (piece.heads > 0) shape.count = piece.heads, shape.rows /= piece.heads;
  if (piece.rows.count > 0) {
    shape.rows = piece.rows.count;
    shape.begin = piece.rows.begin * shape.cols;
  }
  if (piece.expert < 0) return shape;
  if (t.rank == 2) shape.rows = 1;  // of a bank of vectors
  shape.count = 1;
  shape.begin = piece.expert * shape.numel();
  return shape;
}

void Coverage::add(const Param& param, int64_t begin, int64_t end) {
  std::vector<Span>& spans = spans_[&param];
  numbers_ += end - begin;
  if (!spans.empty() && spans.back().end == begin) spans.back().end = end;
  else spans.push_back({begin, end});
}

void Coverage::add(const FileTensor& tensor) {
  for (const FileTensor::Piece& piece : tensor.pieces) {
    const PieceShape shape = shape_of(piece);
    add(*piece.param, shape.begin, shape.begin + shape.numel());
  }
}

void Coverage::settle(const std::vector<Param*>& params, const std::string& where) const {
  size_t known = 0;
  for (const Param* param : params) {
    const auto found = spans_.find(param);
    std::vector<Span> spans = found == spans_.end() ? std::vector<Span>{} : found->second;
    known += found == spans_.end() ? 0 : 1;
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    spans.push_back({param->value.numel(), param->value.numel()});
    int64_t at = 0;
    for (const Span& span : spans) {
      if (span.begin != at)
        fail("{}: the account does not come out: numbers {} to {} of \"{}\" would stand {}", where,
             std::min(at, span.begin), std::max(at, span.begin) - 1, param->name,
             span.begin > at ? "nowhere" : "there twice");
      at = span.end;
    }
  }
  if (known != spans_.size())
    fail("{}: the account does not come out: it holds {} parameters that the model does not have",
         where, spans_.size() - known);
}

}  // namespace moe
