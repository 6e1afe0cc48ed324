// What bitsandbytes packs and transformers saves: codes of 4 bits, whose blocks run over the
// flattened matrix, and whole numbers of 8 bits. Where they are documented stands in
// packed_forms.cpp.
#include <algorithm>
#include <cfloat>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "core/nearest.h"
#include "hub/folder/packed_families.h"
#include "hub/folder/packed_grids.h"

namespace moe {
namespace {

constexpr int64_t kCodesOfFour = 16, kCodesOfEight = 256;
constexpr int64_t kLargestBlock = int64_t{1} << 16, kLongestSide = int64_t{1} << 30;

// What "X.weight.quant_state.bitsandbytes__nf4" says, or "..__fp4".
struct StateOfCodes {
  int64_t rows = 0, cols = 0, block = 0;
  DType wide = DType::bf16;
  int64_t outer_block = 0;  // of scales that are codes; 0: they are floats
  float offset = 0;         // of those scales, less which they were packed
};

StateOfCodes state_of(const PackedParts& parts) {
  const Tensor& bytes = parts.state;
  if (bytes.empty() || bytes.dtype != DType::u8)
    fail(
        "{}: \"{}\" has no \"quant_state.bitsandbytes__nf4\" or \"quant_state.bitsandbytes__fp4\" "
        "of bytes beside it",
        parts.where, printable(parts.name));
  const std::string where =
      fmt::format("{}: the quant_state of \"{}\"", parts.where, printable(parts.name));
  const Json json =
      parse_json({static_cast<const char*>(bytes.data), static_cast<size_t>(bytes.bytes())}, where);
  const JsonReader reader(json, where);
  StateOfCodes state;
  reader.get_one_of("quant_type", {"nf4", "fp4"});
  state.block = reader.get_in<int64_t>("blocksize", 1, kLargestBlock);
  state.wide = reader.get_one_of("dtype", {"float16", "bfloat16", "float32"}) == 0 ? DType::f16
                                                                                   : DType::bf16;
  const auto shape = reader.get<std::vector<int64_t>>("shape");
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > kLongestSide ||
      shape[1] > kLongestSide)
    fail("{}: \"shape\" is {}; that of a matrix is needed", where,
         printable(reader.value("shape").dump()));
  state.rows = shape[0];
  state.cols = shape[1];
  if (reader.has("nested_blocksize")) {
    state.outer_block = reader.get_in<int64_t>("nested_blocksize", 1, kLargestBlock);
    reader.get_one_of("nested_dtype", {"float32"});
    state.offset = static_cast<float>(reader.get_in<double>("nested_offset", -FLT_MAX, FLT_MAX));
  }
  reader.refuse_unknown();
  return state;
}

bool has_floats(const Tensor& t, int64_t count) { return are_scales(t) && t.numel() == count; }

// The scale of each block. Where they are codes: what a code means times the scale of its own
// block, rounded to f32, and the offset.
std::vector<float> scales_of_codes(const PackedParts& parts, const StateOfCodes& state) {
  if (state.outer_block == 0) return floats_in(parts.scales);
  const std::vector<float> map = floats_in(parts.outer_map), outer = floats_in(parts.outer_scales);
  const auto* codes = static_cast<const uint8_t*>(parts.scales.data);
  std::vector<float> scales(static_cast<size_t>(parts.scales.numel()));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = map[codes[i]] * outer[i / static_cast<size_t>(state.outer_block)] + state.offset;
  return scales;
}

bool fit_together(const PackedParts& parts, const StateOfCodes& state) {
  const int64_t count = state.rows * state.cols, blocks = blocks_in(count, state.block);
  const Tensor& scales = parts.scales;
  return is_matrix_of(DType::u8, parts.numbers) && parts.numbers.cols() == 1 &&
         parts.numbers.rows() == blocks_in(count, 2) && has_floats(parts.map, kCodesOfFour) &&
         (state.outer_block == 0
              ? has_floats(scales, blocks)
              : scales.dtype == DType::u8 && scales.numel() == blocks && !parts.outer_map.empty() &&
                    has_floats(parts.outer_map, kCodesOfEight) && !parts.outer_scales.empty() &&
                    has_floats(parts.outer_scales, blocks_in(blocks, state.outer_block)));
}

}  // namespace

// "X.weight" [ceil(O*I/2),1], two codes a byte, "X.weight.absmax", a scale for each block of them,
// and "X.weight.quant_map" [16]. Scales that are codes stand beside "X.weight.nested_absmax" and
// "X.weight.nested_quant_map" [256].
PackedMatrix bitsandbytes4_matrix(const PackedParts& parts, const Packing&) {
  const StateOfCodes state = state_of(parts);
  if (!fit_together(parts, state))
    fail(
        "{}: \"{}\" is {} with \"absmax\" {}, \"quant_map\" {}, \"nested_absmax\" {} and "
        "\"nested_quant_map\" {}, which do not fit [{}, {}] in blocks of {}",
        parts.where, printable(parts.name), describe(parts.numbers), describe(parts.scales),
        describe(parts.map), describe(parts.outer_scales), describe(parts.outer_map), state.rows,
        state.cols, state.block);
  // So many numbers never lie in two rows nor in two blocks.
  const int64_t together = std::gcd(state.cols, state.block);
  PackedMatrix matrix{
      .rows = state.rows * (state.cols / together),
      .cols = together,
      .row_parts = state.cols / together,
      .grid = {.scale = scales_of_codes(parts, state),
               .zero = std::vector<float>(static_cast<size_t>(parts.scales.numel())),
               .block_rows = state.block / together,
               .row_step = 1,
               .group = groups_of_size(together, together)},
      .wide = state.wide,
      .read = reader_of_halves(parts.numbers, together, FirstHalf::upper)};
  const std::vector<float> map = floats_in(parts.map);
  std::copy(map.begin(), map.end(), matrix.q.begin());
  return matrix;
}

// "X.weight" [O,I], "X.SCB" [O], the largest number of each row, and "X.weight_format", 0 for rows.
// They were made of f16.
PackedMatrix bitsandbytes8_matrix(const PackedParts& parts, const Packing&) {
  const Tensor &numbers = parts.numbers, &scales = parts.scales, &order = parts.order;
  if (!is_matrix_of(DType::i8, numbers) || scales.dtype != DType::f32 ||
      scales.numel() != numbers.rows())
    fail("{}: \"{}\" is {} with \"SCB\" {}; i8 [O,I] and f32 [O] are needed", parts.where,
         printable(parts.name), describe(numbers), describe(scales));
  if (!order.empty() && (order.dtype != DType::u8 || order.numel() != 1 ||
                         *static_cast<const uint8_t*>(order.data) != 0))
    fail("{}: the \"weight_format\" of \"{}\" is none of rows, which alone are read", parts.where,
         printable(parts.name));
  return {.rows = numbers.rows(),
          .cols = numbers.cols(),
          .grid = {.scale = floats_in(scales),
                   .zero = std::vector<float>(static_cast<size_t>(numbers.rows())),
                   .row_step = 1,
                   .group = groups_of_size(numbers.cols(), numbers.cols())},
          .factor = 1.0f / 127,
          .wide = DType::f16,
          .q = signed_numbers(),
          .bits = 8,
          .least = -128,
          .read = reader_of_bytes(numbers)};
}

}  // namespace moe
