// Matrix products out = in * w, oneDNN's or those of f32_product.h and bf16_product.h, created once
// per shape and kept for the life of the process, and the layout they want w in. What is not here:
// how rows are cut into shapes and given to threads (matmul.cpp), how weights are rearranged
// (pack.cpp).
#pragma once

#include <omp.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>

#include "tensor/dtype.h"

namespace moe::ops {

// Where element (k, n) of w lies: blocks of k_block x n_block, in a block k in groups of `pair`,
// then n, then k within its group. Rows and columns that pad the last blocks are zero. A plain
// row-major matrix is one block with pair 1. Strides are in elements.
struct PackLayout {
  int64_t inner = 0, cols = 0;         // K, N
  int64_t k_block = 0, n_block = 0;    // n_block is also the distance between groups of k
  int64_t k_stride = 0, n_stride = 0;  // between neighbouring blocks
  int64_t pair = 1;
  size_t bytes = 0;
};

struct ProductShape {
  int64_t rows, inner, cols;  // M, K, N
  DType in, weights, out;     // in: f32 or bf16; weights: in, or stored_dtype(); out: f32 or in
  bool add;                   // out += instead of out =
  int threads;                // how many it may use itself; 1 inside a parallel region
  int64_t stretch = 0;        // if above 0 it is one of bf16_product.h
  auto operator<=>(const ProductShape&) const = default;
};

// One primitive of oneDNN, or of this engine. Several threads may run the same one at once: all its
// working memory is the caller's scratch.
class Product {
 public:
  explicit Product(const ProductShape& shape);
  // out [rows, cols], in [rows, inner] dense, w in weights_layout(inner, cols, weights), scratch of
  // scratch_bytes(), 64-byte aligned.
  void run(void* out, const void* in, const void* w, void* scratch) const;
  size_t scratch_bytes() const { return scratch_bytes_; }
  bool keeps_row_bits() const { return keeps_row_bits_; }
  bool in_tiles() const { return in_tiles_; }

 private:
  struct Operands;

  ProductShape shape_;
  const PackLayout* layout_ = nullptr;  // of the weights, where no oneDNN is asked
  dnnl::matmul primitive_;
  dnnl::memory::desc in_, weights_, out_, scratch_;
  size_t scratch_bytes_ = 0;
  bool keeps_row_bits_ = false, in_tiles_ = false;
};

// Both are thread-safe, build on first request and answer from a cache after that; the references
// live as long as the process.
const Product& find_product(ProductShape shape);
const PackLayout& weights_layout(int64_t inner, int64_t cols, DType dtype);

// What weights of this dtype are packed as for products in `compute`.
DType stored_dtype(DType value, DType compute);

// Sets how many threads oneDNN's own loops may use, for the calling thread, until it goes out of
// scope.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

}  // namespace moe::ops
