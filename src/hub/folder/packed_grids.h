// What the families of packed weights share: what their parts must be, what bytes mean, and the
// grids of the scales that stand beside a matrix.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hub/folder/packed_forms.h"

namespace moe {

bool is_matrix_of(DType, const Tensor&);
// Floats of 16 or 32 bits.
bool are_scales(const Tensor&);
std::vector<float> floats_in(const Tensor&);
// That of the scales, in which the programs that pack work the products out too. Models whose
// scales are f32 are in bf16.
DType type_by_scales(const Tensor& scales);

// What each byte means: as E4M3, as a signed number, as itself.
std::array<float, 256> f8_numbers();
std::array<float, 256> signed_numbers();
std::array<float, 256> whole_numbers();

// Of a matrix whose numbers are bytes.
ReadCodes reader_of_bytes(const Tensor& bytes);
// Of one of so many columns whose numbers are four bits each, row behind row, the first of a byte
// in its upper half or in its lower one.
enum class FirstHalf { upper, lower };
ReadCodes reader_of_halves(const Tensor& bytes, int64_t cols, FirstHalf);

int64_t blocks_in(int64_t n, int64_t block);
// Which scale each column has where `size` of them share one.
std::vector<int64_t> groups_of_size(int64_t cols, int64_t size);
// The same of `count` scales of a row: as the form's list says where it has one, else as a
// group_size of the config divides the columns.
std::vector<int64_t> groups_of_columns(const PackedParts&, int64_t cols, int64_t count,
                                       const Packing&);

bool are_of_blocks(const Tensor& scales, int64_t rows, int64_t cols, const Packing&);
ScaleGrid grid_of_blocks(const Tensor& scales, int64_t cols, const Packing&);
// Of a matrix that has one scale, or [O], [O,1], [O,G] or [ceil(O/B),ceil(I/B)] of them. The zero
// points are `offset`.
ScaleGrid grid_beside(const PackedParts&, int64_t rows, int64_t cols, float offset, const Packing&);

// Adds zero points of bytes, one beside each scale.
void add_zeros(ScaleGrid&, const PackedParts&);
[[noreturn]] void fail_zeros(const PackedParts&);

}  // namespace moe
