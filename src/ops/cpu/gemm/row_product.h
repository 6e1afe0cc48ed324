// Products of one to four rows with packed weights. oneDNN's calls are made for many rows; here the
// weights stream through once at the speed of memory, any range of columns at a time, so that
// threads share one row's work evenly. The bits are those of more rows: where those are oneDNN's,
// each output is a chain of fused multiplications in the order of k, cut into stretches whose sums
// are added, and the length of a stretch is found by asking oneDNN (sum_stretch). Where no length
// explains its bits, or the machine has no AVX2, there are no such products.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cpu/gemm/primitives.h"

namespace moe::ops {

constexpr int64_t kMostSingleRows = 4;
constexpr int kMostTileRows = 6;  // of a tile of multiply_f32()'s, which may be given as here
constexpr int64_t kRowUnit = 32;  // columns that threads share out

// Numbers of k that oneDNN sums before it adds to what stands; 0: unknown, so that run_rows() may
// not be used.
int64_t sum_stretch(int64_t inner, DType dtype);

// Whether such products can read what oneDNN packs: one column of blocks after the other, each
// without gaps.
bool reads_layout(const PackLayout& layout, DType dtype);

// sum_stretch() of weights in weights_layout(); 0 too where run_rows() cannot read them. Their
// columns decide: for few of them oneDNN's AMX products may choose narrower blocks than for many.
int64_t row_stretch(const PackLayout& layout, DType dtype);

struct RowProduct {
  const PackLayout* layout;
  DType dtype;      // of weights; of rows too, but where has_f32_products(dtype) they are f32
  int64_t stretch;  // row_stretch(*layout, dtype), above 0
  const void* row[kMostTileRows];
  int64_t rows;
  const void* packed;
  void* out;        // row r, column n at out + r * out_stride + n elements
  DType out_dtype;  // f32, or bf16 where rows are
  int64_t out_stride;
};
// f(rows, as a constant), for 1 to kMostSingleRows.
template <class F>
void with_row_count(int64_t rows, F&& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    default: return f(std::integral_constant<int, 4>());
  }
}

// Columns [begin, end) in units of kRowUnit.
void run_rows(const RowProduct& product, int64_t begin, int64_t end);

}  // namespace moe::ops
