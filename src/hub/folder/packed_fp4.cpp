// Floats of four bits: MXFP4, which stays what it is. Where it is documented stands in
// packed_forms.cpp.
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "hub/folder/packed_families.h"
#include "tensor/dtype.h"

namespace moe {
namespace {

constexpr std::string_view kInTurns = "gate_up_proj_blocks";
constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;  // of MXFP4

// A block of MXFP4 in the order of GGUF: there byte j holds numbers j and j + 16, here 2j and
// 2j + 1.
void reorder_block(uint8_t* to, const uint8_t* from) {
  const auto number = [&](int64_t n) { return from[n / 2] >> 4 * (n % 2) & 15; };
  for (int64_t j = 0; j < kBlockBytes; ++j)
    to[j] = static_cast<uint8_t>(number(j) | number(j + kBlockBytes) << 4);
}

Tensor shaped_like(void* data, DType dtype, const std::vector<int64_t>& shape) {
  if (shape.size() == 2) return Tensor(data, dtype, {shape[0], shape[1]});
  return Tensor(data, dtype, {shape[0], shape[1], shape[2]});
}

}  // namespace

// "X_blocks" [..,R,I/32,16] and "X_scales" [..,R,I/32]. Gates and ups of "gate_up_proj", which
// stand in turns, come one behind the other, so that nothing needs to be moved again.
Tensor unpack_mxfp4(const PackedParts& parts, const MemoryOfWeights& memory) {
  const Tensor &blocks = parts.numbers, &scales = parts.scales;
  bool fit = blocks.dtype == DType::u8 && scales.dtype == DType::u8 && blocks.rank >= 3 &&
             scales.rank == blocks.rank - 1 && blocks.cols() == kBlockBytes && blocks.numel() > 0;
  for (int i = 0; fit && i < scales.rank; ++i)
    fit = blocks.shape[static_cast<size_t>(i)] == scales.shape[static_cast<size_t>(i)];
  const bool in_turns = parts.name.ends_with(kInTurns);
  if (fit && in_turns) fit = scales.shape[static_cast<size_t>(scales.rank - 2)] % 2 == 0;
  if (!fit)
    fail("{}: \"{}\" is {} with scales {}; u8 [..,R,I/32,16] and u8 [..,R,I/32] are needed",
         parts.where, printable(parts.name), describe(blocks), describe(scales));
  std::vector<int64_t> shape(scales.shape.begin(), scales.shape.begin() + scales.rank);
  const int64_t in_row = shape.back(), rows = scales.rows(),
                together = shape[shape.size() - 2];  // rows of an expert
  shape.back() *= kBlock;
  const int64_t row_bytes = bytes_of(DType::mxfp4, shape.back());
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
  return shaped_like(to, DType::mxfp4, shape);
}

}  // namespace moe
