// Rearranges the right operand of a product into the layout that products want (PackLayout), out of
// f32 masters, weights of a file (f32, bf16, f16) or activations of either dtype. All conversions
// f32 -> bf16 round to nearest even and keep NaN, as to_bf16 does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/gemm/primitives.h"

namespace moe::ops {

// A matrix in memory; element (i, j) at data + i * stride + j elements, or with a list of rows at
// data + row[i] * stride + j.
struct Source {
  const void* data;
  DType dtype;
  int64_t stride;
  const int32_t* row = nullptr;
};

// How memory is used, never what is written.
struct PackHints {
  const void* next = nullptr;  // what will be read after this call, fetched meanwhile
  int64_t next_bytes = 0;
  // The copy goes past the caches: for copies larger than they are, which would otherwise be read
  // before they are written. Only for layouts of whole cache lines (streams()); whoever streams
  // calls finish_streams() on the same thread before another one may read.
  bool stream = false;
};
constexpr bool streams(const PackLayout& layout) {
  return layout.n_block % 16 == 0 && layout.k_stride % 16 == 0 && layout.n_stride % 16 == 0;
}
void finish_streams();

// One column of blocks (all k, columns [block * n_block, ...)) of w(k, n) = source(n, k), source
// [cols, inner] f32, bf16 or f16. w is `dtype`; f16 where the source is.
void pack_transposed(void* packed, const PackLayout& layout, DType dtype, Source source,
                     int64_t n_block_index, const PackHints& hints = {});
int64_t column_blocks(const PackLayout& layout);

// One row of blocks (k in [block * k_block, ...), all n) of w(k, n) = source(k, n) for k <
// source_rows, else 0. source [source_rows, cols] f32, bf16 or f16.
void pack_straight(void* packed, const PackLayout& layout, DType dtype, Source source,
                   int64_t source_rows, int64_t k_block_index, const PackHints& hints = {});
int64_t row_blocks(const PackLayout& layout);

// out(j, i) = source(i, j) for i < rows, 0 for rows <= i < padded_rows.  out [cols, padded_rows]
// `dtype` dense; source [rows, cols]. In bf16 padded_rows must be even. `scratch` holds
// transpose_scratch_bytes.
void transpose(void* out, DType dtype, Source source, int64_t rows, int64_t cols,
               int64_t padded_rows, void* scratch);
constexpr size_t transpose_scratch_bytes(int64_t cols) {
  return static_cast<size_t>(cols) * 16 * 4;
}

// out = source, or out += source, between f32 and bf16; sums in f32, rounded once. out_stride in
// elements.  [rows, cols]
void convert_matrix(void* out, DType out_dtype, int64_t out_stride, Source source, int64_t rows,
                    int64_t cols, bool add);

}  // namespace moe::ops
