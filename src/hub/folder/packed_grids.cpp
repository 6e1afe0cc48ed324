#include "hub/folder/packed_grids.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/nearest.h"
#include "tensor/quant.h"

namespace moe {

bool is_matrix_of(DType dtype, const Tensor& t) {
  return t.rank == 2 && t.dtype == dtype && t.numel() > 0;
}

bool are_scales(const Tensor& t) {
  return holds_weights(t.dtype) && !is_quantised(t.dtype) && t.numel() > 0;
}

std::vector<float> floats_in(const Tensor& t) {
  std::vector<float> numbers(static_cast<size_t>(t.numel()));
  dequantise(numbers.data(), t.data, t.dtype, t.numel());
  return numbers;
}

DType type_by_scales(const Tensor& scales) {
  return scales.dtype == DType::f16 ? DType::f16 : DType::bf16;
}

std::array<float, 256> f8_numbers() {
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = f8_e4m3_to_f32(static_cast<uint8_t>(i));
  return value;
}

std::array<float, 256> signed_numbers() {
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<int8_t>(i);
  return value;
}

std::array<float, 256> whole_numbers() {
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i);
  return value;
}

ReadCodes reader_of_bytes(const Tensor& bytes) {
  return [from = static_cast<const uint8_t*>(bytes.data), cols = bytes.cols()](
             uint8_t* codes, int64_t r, int64_t c, int64_t n) {
    std::memcpy(codes, from + r * cols + c, static_cast<size_t>(n));
  };
}

ReadCodes reader_of_halves(const Tensor& bytes, int64_t cols, FirstHalf first) {
  // Of an even number the shift is 0 or 4, of an odd one the other.
  const int64_t turned = first == FirstHalf::upper ? 1 : 0;
  return [from = static_cast<const uint8_t*>(bytes.data), cols, turned](uint8_t* codes, int64_t r,
                                                                        int64_t c, int64_t n) {
    for (int64_t i = r * cols + c, end = i + n; i < end; ++i)
      *codes++ = static_cast<uint8_t>(from[i / 2] >> 4 * ((i ^ turned) & 1) & 15);
  };
}

int64_t blocks_in(int64_t n, int64_t block) { return (n + block - 1) / block; }

bool are_of_blocks(const Tensor& scales, int64_t rows, int64_t cols, const Packing& packing) {
  return packing.block_rows > 0 && scales.rank == 2 &&
         scales.rows() == blocks_in(rows, packing.block_rows) &&
         scales.cols() == blocks_in(cols, packing.block_cols);
}

std::vector<int64_t> groups_of_size(int64_t cols, int64_t size) {
  std::vector<int64_t> group(static_cast<size_t>(cols));
  for (int64_t c = 0; c < cols; ++c) group[static_cast<size_t>(c)] = c / size;
  return group;
}

ScaleGrid grid_of_blocks(const Tensor& scales, int64_t cols, const Packing& packing) {
  ScaleGrid grid{.scale = floats_in(scales),
                 .zero = std::vector<float>(static_cast<size_t>(scales.numel())),
                 .block_rows = packing.block_rows,
                 .row_step = scales.cols(),
                 .group_step = 1};
  grid.group = groups_of_size(cols, packing.block_cols);
  return grid;
}

std::vector<int64_t> groups_of_columns(const PackedParts& parts, int64_t cols, int64_t count,
                                       const Packing& packing) {
  const auto misfit = [&](const std::string& why) {
    fail("{}: \"{}\" is {} with scales {}: {}", parts.where, printable(parts.name),
         describe(parts.numbers), describe(parts.scales), why);
  };
  const Tensor& list = parts.groups;
  if (!list.empty()) {
    if (list.dtype != DType::i32 || list.rank != 1 || list.numel() != cols)
      misfit(fmt::format("the list of its groups is {}, i32 [{}] is needed", describe(list), cols));
    const std::span<const int32_t> listed(list.as<int32_t>(), static_cast<size_t>(cols));
    // compressed-tensors leaves -1 in a list that it does not use.
    const bool used =
        packing.kind != Packing::Kind::compressed || std::ranges::count(listed, -1) == 0;
    for (const int32_t group : listed)
      if (used && (group < 0 || group >= count))
        misfit(fmt::format("a column is of group {}, of which there are {}", group, count));
    if (used) return {listed.begin(), listed.end()};
  }
  if (count == 1) return groups_of_size(cols, cols);
  // Only GPTQ's last group may be a shorter one.
  for (const int64_t size : packing.groups)
    if (blocks_in(cols, size) == count && (cols % size == 0 || packing.kind == Packing::Kind::gptq))
      return groups_of_size(cols, size);
  misfit(fmt::format("{} columns in {} groups are of no \"group_size\" that the config says", cols,
                     count));
  return {};
}

ScaleGrid grid_beside(const PackedParts& parts, int64_t rows, int64_t cols, float offset,
                      const Packing& packing) {
  const Tensor& scales = parts.scales;
  ScaleGrid grid;
  if (are_scales(scales) && scales.numel() == 1) {
    grid.scale = floats_in(scales);
    grid.group = groups_of_size(cols, cols);
  } else if (are_scales(scales) && scales.rank == 1 && scales.numel() == rows) {
    grid.scale = floats_in(scales);
    grid.row_step = 1;
    grid.group = groups_of_size(cols, cols);
  } else if (are_scales(scales) && scales.rank == 2 && scales.rows() == rows) {
    grid.scale = floats_in(scales);
    grid.row_step = scales.cols();
    grid.group_step = 1;
    grid.group = groups_of_columns(parts, cols, scales.cols(), packing);
  } else if (are_scales(scales) && are_of_blocks(scales, rows, cols, packing)) {
    grid = grid_of_blocks(scales, cols, packing);
  } else {
    fail(
        "{}: \"{}\" is {} with scales {}; of {} x {} numbers one is needed, or one of each row, "
        "group or block",
        parts.where, printable(parts.name), describe(parts.numbers), describe(scales), rows, cols);
  }
  grid.zero.assign(grid.scale.size(), offset);
  return grid;
}

[[noreturn]] void fail_zeros(const PackedParts& parts) {
  fail("{}: \"{}\" is {} with scales {} and zero points {}, which do not fit", parts.where,
       printable(parts.name), describe(parts.numbers), describe(parts.scales),
       describe(parts.zeros));
}

void add_zeros(ScaleGrid& grid, const PackedParts& parts) {
  const Tensor& zeros = parts.zeros;
  if (zeros.numel() != std::ssize(grid.zero) || zeros.rank != parts.scales.rank ||
      zeros.rows() != parts.scales.rows())
    fail_zeros(parts);
  const auto* bytes = static_cast<const uint8_t*>(zeros.data);
  for (size_t i = 0; i < grid.zero.size(); ++i) {
    if (zeros.dtype == DType::i8) grid.zero[i] += static_cast<float>(static_cast<int8_t>(bytes[i]));
    else if (zeros.dtype == DType::f8_e4m3) grid.zero[i] += f8_e4m3_to_f32(bytes[i]);
    else fail_zeros(parts);
  }
}

}  // namespace moe
