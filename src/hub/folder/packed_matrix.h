// A matrix whose numbers stand in few bits beside their scales: what can hold it, and it in that.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "tensor/tensor.h"

namespace moe {

// Memory for so many bytes, which lives as long as the weights do.
using MemoryOfWeights = std::function<void*(int64_t bytes)>;

// Writes what the file has of `n` columns of a row.
using ReadCodes = std::function<void(uint8_t* codes, int64_t row, int64_t col, int64_t n)>;

// Of a matrix [R,C] number (r, c) is (q - zero) * scale (* factor), zero and scale those of row
// r / block_rows and of group[c].
struct ScaleGrid {
  std::vector<float> scale, zero;
  int64_t block_rows = 1;
  int64_t row_step = 0, group_step = 0;  // from a row's first scale to the next row's; to the next
  std::vector<int64_t> group;            // [C]

  // Of the scales, the first of a row; and that of a column, `first` being its row's.
  int64_t first(int64_t row) const { return row / block_rows * row_step; }
  size_t at(int64_t first, int64_t col) const {
    return static_cast<size_t>(first + group[static_cast<size_t>(col)] * group_step);
  }
};

// Of a weight [rows / row_parts, cols * row_parts]. Where numbers share scales as they follow each
// other row by row, with no regard to where a row ends, a row here is as many of them as lie both
// in one row of the weight and under one scale.
struct PackedMatrix {
  int64_t rows = 0, cols = 0;
  int64_t row_parts = 1;
  int64_t matrices = 0;  // of a bank [matrices, rows / matrices, cols]; 0: it is none
  ScaleGrid grid;
  float factor = 1;          // of every product, which is rounded to f32 before
  DType wide = DType::bf16;  // the 16 bits that the numbers become where nothing smaller holds them
  // Of what the file has for a number, q. They are whole, `bits` of them, and rise by ones from
  // `least`, or `bits` is 0.
  std::array<float, 256> q = {};
  int bits = 0;
  float least = 0;
  ReadCodes read;
};

// The smallest type that holds the matrix: q4_0 or q8_0, which have every number exactly, or q4_1,
// where zero point times scale is rounded once to f16 (by at most 15 / 2^11 of a step of the
// numbers, 0.73%); else `wide`. A block of these types, 32 columns, has one scale, which is an f16.
DType least_type(const PackedMatrix&);
// What holds matrices of both types, whose wide types are `wide`.
DType common_type(DType a, DType b, DType wide);

// The weight in that type, without its numbers.
Tensor weight_of(const PackedMatrix&, DType as);
// The weight in the matrix's least type or one that is common to it and others. In 16 bits: the
// product, in f32 exact unless the scales are f32, rounded once.
Tensor unpack(const PackedMatrix&, DType as, const MemoryOfWeights&);

}  // namespace moe
