// The parts of one call of a product, between matmul.cpp, which checks and packs, and the ways of
// multiplying them.
#pragma once

#include <span>
#include <vector>

#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/weights.h"

namespace moe::ops {

// Rows [begin, end), at least one, meet this expert.
struct Group {
  int64_t expert, begin, end;
  int64_t units() const { return round_up(end - begin, kUnit) / kUnit; }
};

// One matrix of a call. Forward it reads the rows all factors share and has an output of its own;
// backward the other way round.
struct Part {
  Tensor out;       // [R, N]
  GatheredRows in;  // [R, K]
  CallWeight w;
  bool add;
  DType compute;

  bool direct_in() const { return !in.listed() && in.x.dense() && in.x.dtype == compute; }
  // Else the product goes to a dense copy in scratch, because `out` is a slice of columns or of
  // another dtype.
  bool direct_out() const {
    return out.dense() && (out.dtype == DType::f32 || out.dtype == compute);
  }
  DType product_dtype() const { return direct_out() ? out.dtype : DType::f32; }
  ProductShape shape(int64_t rows, int threads) const {
    return {rows,    in.cols(),       out.cols(),          compute,
            w.dtype, product_dtype(), add && direct_out(), threads};
  }
};

// The rows of a group at one matrix. Parts of one call may have groups of their own.
struct Meeting {
  const Part* part;
  const Group* group;
};

// y = x w^T where all parts' weights are panels of quantised values (quant_product.h).
void multiply_quantised(Run& run, std::span<const Meeting> meetings);

}  // namespace moe::ops
