// How the columns of what a model's matrices multiply on a text go together: the products x^T x of
// the rows x, and what they say of rounding errors (hub/error_shares.h).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hub/error_shares.h"
#include "tensor/arena.h"
#include "tensor/run.h"

namespace moe {

// Sums while it is a Run's observer, in f32. The experts of a layer share those of what their gates
// and ups multiply, which is one stream; each has its own of what its down multiplies, which are
// its own neurons.
class InputProducts : public ProductObserver, public ErrorShares {
 public:
  // `then` is told of the same rows; outlives this.
  explicit InputProducts(ProductObserver& then) : then_(then) {}
  void observe(Run&, std::span<const Param* const> weights, const ops::GatheredRows& x,
               std::span<const int64_t> offsets) override;

  Tensor of(const FileTensor&, int64_t m, int threads) override;

 private:
  struct Sums {
    Tensor products;            // [M,I,I] f32
    std::vector<int64_t> rows;  // [M]
  };
  ProductObserver& then_;
  Arena memory_;
  std::map<const Param*, std::shared_ptr<Sums>> sums_;  // matrices that meet the same rows share
  struct Made {
    const Sums* sums = nullptr;
    int64_t matrix = -1;
    std::vector<int64_t> order;  // [I]
    bool operator==(const Made&) const = default;
  };
  // The last shares made, and of what: the rows of a tensor come a few at a time.
  std::vector<float> shares_;
  Made made_;
};

// Bytes that it holds of a model at most, and those that making shares takes beside them.
int64_t input_products_bytes(const Model&);
int64_t error_shares_bytes(const Model&);

// shares [n,n] of products [n,n] f32 of so many rows, of which `order` [n] says which column of the
// products each is. Columns that few rows were seen of lean on the others less: the diagonal is
// raised by (0.01 + 0.1 n / rows) of its mean.
void error_shares(Tensor shares, Tensor products, int64_t rows, std::span<const int64_t> order,
                  int threads);

}  // namespace moe
