// Double entry for tensors on their way from one file to another: what was taken, number by number,
// is every number of every parameter once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hub/tensor_map.h"

namespace moe {

// The numbers of a model that something has touched, as spans of each parameter.
class Coverage {
 public:
  // Numbers [begin, end) of the parameter, counted row by row through all its matrices.
  void add(const Param& param, int64_t begin, int64_t end);
  // All that a tensor of a file holds.
  void add(const FileTensor& tensor);
  // Fails, beginning with `where` and naming the parameter, unless each number of each parameter
  // was added once.
  void settle(const std::vector<Param*>& params, const std::string& where) const;
  int64_t numbers() const { return numbers_; }

 private:
  struct Span {
    int64_t begin, end;
  };
  std::map<const Param*, std::vector<Span>> spans_;
  int64_t numbers_ = 0;
};

// What a piece of a tensor of a file is in the parameter: [count, rows, cols] from number `begin`
// on.
struct PieceShape {
  int64_t begin, count, rows, cols;
  int64_t numel() const { return count * rows * cols; }
};
PieceShape shape_of(const FileTensor::Piece& piece);

}  // namespace moe
