// Numbers of a byte each: E4M3 beside scales of blocks, and E4M3 and whole numbers beside the
// scales of compressed-tensors, ModelOpt and FBGEMM. Where they are documented stands in
// packed_forms.cpp.
#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/packed_families.h"
#include "hub/folder/packed_grids.h"

namespace moe {

// "X" [O,I] and "X_scale_inv" [ceil(O/B),ceil(I/B)].
PackedMatrix fp8_matrix(const PackedParts& parts, const Packing& packing) {
  const Tensor &numbers = parts.numbers, &scales = parts.scales;
  if (!is_matrix_of(DType::f8_e4m3, numbers) || !are_scales(scales) ||
      !are_of_blocks(scales, numbers.rows(), numbers.cols(), packing))
    fail("{}: \"{}\" is {} with scales {}; a matrix is needed and a number for each {} x {} of it",
         parts.where, printable(parts.name), describe(numbers), describe(scales),
         packing.block_rows, packing.block_cols);
  return {.rows = numbers.rows(),
          .cols = numbers.cols(),
          .grid = grid_of_blocks(scales, numbers.cols(), packing),
          // bf16 or f16 in Qwen's checkpoints, f32 in DeepSeek's: bf16 was the model's type in all
          .wide = DType::bf16,
          .q = f8_numbers(),
          .read = reader_of_bytes(numbers)};
}

// "X" [E,I,O] and "X_weight_scale", one for all.
PackedMatrix f8_bank(const PackedParts& parts, const Packing&) {
  const Tensor &numbers = parts.numbers, &scales = parts.scales;
  if (numbers.rank != 3 || numbers.numel() == 0 || !are_scales(scales) || scales.numel() != 1)
    fail("{}: \"{}\" is {} with scales {}; a bank is needed and one number", parts.where,
         printable(parts.name), describe(numbers), describe(scales));
  return {.rows = numbers.rows(),
          .cols = numbers.cols(),
          .matrices = numbers.shape[0],
          .grid = {.scale = floats_in(scales),
                   .zero = {0},
                   .block_rows = numbers.rows(),
                   .group = groups_of_size(numbers.cols(), numbers.cols())},
          .wide = type_by_scales(scales),
          .q = f8_numbers(),
          .read = reader_of_bytes(numbers)};
}

// "X.weight" [O,I] of FP8 or of signed bytes.
PackedMatrix bytes_matrix(const PackedParts& parts, const Packing& packing) {
  const Tensor& numbers = parts.numbers;
  if (numbers.rank != 2 || numbers.numel() == 0)
    fail("{}: \"{}\" is {}; a matrix is needed", parts.where, printable(parts.name),
         describe(numbers));
  ScaleGrid grid = grid_beside(parts, numbers.rows(), numbers.cols(), 0, packing);
  if (!parts.zeros.empty()) add_zeros(grid, parts);
  const bool whole = numbers.dtype == DType::i8;
  return {.rows = numbers.rows(),
          .cols = numbers.cols(),
          .grid = std::move(grid),
          .wide = type_by_scales(parts.scales),
          .q = whole ? signed_numbers() : f8_numbers(),
          .bits = whole ? 8 : 0,
          .least = whole ? -128.0f : 0,
          .read = reader_of_bytes(numbers)};
}

}  // namespace moe
