// How large the numbers are that a model's matrices multiply on a text: of each column the sum of
// their squares, and of each expert the rows that it met (hub/importance.h).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hub/importance.h"
#include "tensor/run.h"

namespace moe {

// Whether what this matrix multiplies is looked at: the head is no matter of importance, as in
// llama.cpp, and operands that somebody made are none of the model's.
bool is_weighed(const Param&);

// Sums while it is a Run's observer. Sums are in f64, each column's rows in their order, so that
// they do not depend on threads. What an expert's down multiplies is weighed by the router already,
// as its output will be.
class InputSquares : public ProductObserver {
 public:
  void observe(Run&, std::span<const Param* const> weights, const ops::GatheredRows& x,
               std::span<const int64_t> offsets) override;

  // Of those of the tensors whose matrices were met. A tensor whose columns stand in another order
  // than the model's has them in its own; one that is turned has none.
  Importance of(std::span<const FileTensor> tensors) const;

 private:
  struct Sums {
    std::vector<double> squares;  // [E,I]
    std::vector<double> rows;     // [E]
  };
  // Matrices that meet the same rows share them.
  std::map<const Param*, std::shared_ptr<Sums>> sums_;
};

// Bytes that it holds of a model.
int64_t input_squares_bytes(const Model&);

}  // namespace moe
