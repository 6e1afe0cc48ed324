// Floats of four bits: MXFP4, which stays what it is, and NVFP4. Where they are documented stands
// in packed_forms.cpp.
#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "hub/folder/packed_families.h"
#include "hub/folder/packed_grids.h"
#include "tensor/dtype.h"

namespace moe {
namespace {

constexpr std::string_view kInTurns = "gate_up_proj_blocks";
constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;  // of MXFP4
constexpr int64_t kNvfp4Block = 16;

// A block of MXFP4 in the order of GGUF: there byte j holds numbers j and j + 16, here 2j and
// 2j + 1.
void reorder_block(uint8_t* to, const uint8_t* from) {
  const auto number = [&](int64_t n) { return from[n / 2] >> 4 * (n % 2) & 15; };
  for (int64_t j = 0; j < kBlockBytes; ++j)
    to[j] = static_cast<uint8_t>(number(j) | number(j + kBlockBytes) << 4);
}

// E2M1: a sign, two bits of exponent and one of fraction.
std::array<float, 256> fp4_numbers() {
  constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::array<float, 256> value{};
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    value[i] = kSizes[i];
    value[i + std::size(kSizes)] = -kSizes[i];
  }
  return value;
}

// "X" [O,I/2], two numbers a byte, the first in the lower half, E4M3 scales [O,I/16] and one f32 of
// the matrix. As both makers' programs have it, the scale of a block is rounded to f32 and so is
// the product; bf16 is what compressed-tensors unpacks to, and what nearly all models were in.
template <class Scale>
PackedMatrix nvfp4_with(const PackedParts& parts, Scale&& scale_of) {
  const Tensor &bytes = parts.numbers, &scales = parts.scales, &of_all = parts.scale_of_scales;
  if (!is_matrix_of(DType::u8, bytes) || !is_matrix_of(DType::f8_e4m3, scales) ||
      of_all.dtype != DType::f32 || of_all.numel() != 1 || scales.rows() != bytes.rows() ||
      scales.cols() * kNvfp4Block != bytes.cols() * 2)
    fail(
        "{}: \"{}\" is {} with scales {} and {}; u8 [O,I/2], f8_e4m3 [O,I/16] and f32 [1] are "
        "needed",
        parts.where, printable(parts.name), describe(bytes), describe(scales), describe(of_all));
  const int64_t rows = bytes.rows(), cols = bytes.cols() * 2;
  ScaleGrid grid{.scale = std::vector<float>(static_cast<size_t>(scales.numel())),
                 .zero = std::vector<float>(static_cast<size_t>(scales.numel())),
                 .row_step = scales.cols(),
                 .group_step = 1,
                 .group = groups_of_size(cols, kNvfp4Block)};
  const float all = *of_all.as<float>();
  std::transform(static_cast<const uint8_t*>(scales.data),
                 static_cast<const uint8_t*>(scales.data) + scales.numel(), grid.scale.begin(),
                 [&](uint8_t byte) { return scale_of(f8_e4m3_to_f32(byte), all); });
  return {.rows = rows,
          .cols = cols,
          .grid = std::move(grid),
          .wide = DType::bf16,
          .q = fp4_numbers(),
          .read = reader_of_halves(bytes, cols, FirstHalf::lower)};
}

}  // namespace

// "X_blocks" [..,R,I/32,16] and "X_scales" [..,R,I/32].
Tensor mxfp4_shape(const PackedParts& parts) {
  const Tensor &blocks = parts.numbers, &scales = parts.scales;
  bool fit = blocks.dtype == DType::u8 && scales.dtype == DType::u8 && blocks.rank >= 3 &&
             scales.rank == blocks.rank - 1 && blocks.cols() == kBlockBytes && blocks.numel() > 0;
  for (int i = 0; fit && i < scales.rank; ++i)
    fit = blocks.shape[static_cast<size_t>(i)] == scales.shape[static_cast<size_t>(i)];
  if (fit && parts.name.ends_with(kInTurns))
    fit = scales.shape[static_cast<size_t>(scales.rank - 2)] % 2 == 0;
  if (!fit)
    fail("{}: \"{}\" is {} with scales {}; u8 [..,R,I/32,16] and u8 [..,R,I/32] are needed",
         parts.where, printable(parts.name), describe(blocks), describe(scales));
  Tensor weight = scales;
  weight.data = nullptr;
  weight.dtype = DType::mxfp4;
  weight.shape[static_cast<size_t>(weight.rank - 1)] *= kBlock;
  weight.row_bytes = bytes_of(weight.dtype, weight.cols());
  return weight;
}

// Gates and ups of "gate_up_proj", which stand in turns, come one behind the other, so that nothing
// needs to be moved again.
Tensor unpack_mxfp4(const PackedParts& parts, const MemoryOfWeights& memory) {
  const Tensor &blocks = parts.numbers, &scales = parts.scales;
  Tensor weight = mxfp4_shape(parts);
  const bool in_turns = parts.name.ends_with(kInTurns);
  const int64_t in_row = scales.cols(), rows = scales.rows(),
                together = weight.shape[static_cast<size_t>(weight.rank - 2)];  // rows of an expert
  const int64_t row_bytes = weight.row_bytes;
  auto* to = static_cast<uint8_t*>(memory(rows * row_bytes));
  const auto *numbers = blocks.as<uint8_t>(), *exponents = scales.as<uint8_t>();
  parallel_for(available_threads(), rows, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t in_expert = r % together;
      const int64_t place =
          in_turns ? r - in_expert + in_expert % 2 * (together / 2) + in_expert / 2 : r;
      uint8_t* block = to + place * row_bytes;
      for (int64_t b = r * in_row; b < (r + 1) * in_row; ++b, block += 1 + kBlockBytes) {
        block[0] = exponents[b];
        reorder_block(block + 1, numbers + b * kBlockBytes);
      }
    }
  });
  weight.data = to;
  return weight;
}

namespace {

// "X.weight_packed" [O,I/2] as the blocks of a matrix.
PackedParts in_blocks(const PackedParts& parts) {
  const Tensor& bytes = parts.numbers;
  if (!is_matrix_of(DType::u8, bytes) || bytes.cols() % kBlockBytes != 0)
    fail("{}: \"{}\" is {}; u8 [O,I/2] is needed, I in blocks of {}", parts.where,
         printable(parts.name), describe(bytes), kBlock);
  PackedParts blocks = parts;
  blocks.numbers = bytes.reshape({bytes.rows(), bytes.cols() / kBlockBytes, kBlockBytes});
  return blocks;
}

}  // namespace

// Beside "X.weight_scale" [O,I/32], which has no other.
Tensor mxfp4_matrix_shape(const PackedParts& parts) { return mxfp4_shape(in_blocks(parts)); }

Tensor unpack_mxfp4_matrix(const PackedParts& parts, const MemoryOfWeights& memory) {
  return unpack_mxfp4(in_blocks(parts), memory);
}

// "X.weight", "X.weight_scale" and "X.weight_scale_2".
PackedMatrix nvfp4_matrix(const PackedParts& parts, const Packing&) {
  return nvfp4_with(parts, [](float block, float all) { return block * all; });
}

// "X.weight_packed", "X.weight_scale" and "X.weight_global_scale".
PackedMatrix nvfp4_divided_matrix(const PackedParts& parts, const Packing&) {
  return nvfp4_with(parts, [](float block, float all) { return block / all; });
}

// "X" [E,I/2,O], two numbers of a column a byte, the first in the lower half, "X_weight_scale"
// [E,I/16,O] and "X_weight_scale_2", one for all.
PackedMatrix nvfp4_bank(const PackedParts& parts, const Packing&) {
  const Tensor &bytes = parts.numbers, &scales = parts.scales, &of_all = parts.scale_of_scales;
  const bool fit = bytes.rank == 3 && scales.rank == 3 && scales.dtype == DType::f8_e4m3 &&
                   of_all.dtype == DType::f32 && of_all.numel() == 1 && bytes.numel() > 0 &&
                   scales.shape[0] == bytes.shape[0] && scales.cols() == bytes.cols() &&
                   scales.shape[1] * kNvfp4Block == bytes.shape[1] * 2;
  if (!fit)
    fail(
        "{}: \"{}\" is {} with scales {} and {}; u8 [E,I/2,O], f8_e4m3 [E,I/16,O] and f32 [1] are "
        "needed",
        parts.where, printable(parts.name), describe(bytes), describe(scales), describe(of_all));
  const int64_t cols = bytes.cols();
  ScaleGrid grid{.scale = std::vector<float>(static_cast<size_t>(scales.numel())),
                 .zero = std::vector<float>(static_cast<size_t>(scales.numel())),
                 .block_rows = kNvfp4Block,
                 .row_step = cols,
                 .group_step = 1,
                 .group = groups_of_size(cols, 1)};
  const float all = *of_all.as<float>();
  std::transform(static_cast<const uint8_t*>(scales.data),
                 static_cast<const uint8_t*>(scales.data) + scales.numel(), grid.scale.begin(),
                 [&](uint8_t byte) { return f8_e4m3_to_f32(byte) * all; });
  const auto* from = static_cast<const uint8_t*>(bytes.data);
  return {.rows = bytes.rows() * 2,
          .cols = cols,
          .matrices = bytes.shape[0],
          .grid = std::move(grid),
          .wide = DType::bf16,
          .q = fp4_numbers(),
          .read = [from, cols](uint8_t* codes, int64_t r, int64_t c, int64_t n) {
            const uint8_t* row = from + r / 2 * cols + c;
            for (int64_t j = 0; j < n; ++j) codes[j] = row[j] >> 4 * (r % 2) & 15;
          }};
}

}  // namespace moe
