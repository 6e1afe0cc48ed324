#include "hub/folder/packed.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "hub/folder/field_visitors.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales", kInverse = "_scale_inv";
constexpr std::string_view kInTurns = "gate_up_proj";
constexpr const char* kConfig = "quantization_config";
constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;

// What else such a config says: which modules stayed as they were, which shows in the tensors, and
// how other programs multiply.
constexpr const char* kOfPrograms[] = {"modules_to_not_convert", "ignored_layers", "dequantize",
                                       "activation_scheme",      "act_per_tensor", "scale_fmt"};

Packing read_fp8(const JsonReader& reader) {
  if (reader.has("fmt")) reader.get_one_of("fmt", {"e4m3", "float8_e4m3fn"});  // are the same
  if (reader.get<bool>("weight_per_tensor", false))
    refuse(reader, "weight_per_tensor", "only scales of blocks are supported, only false");
  if (!reader.has("weight_block_size"))
    fail("{}: FP8 without \"weight_block_size\" is not supported, only scales of blocks are",
         reader.where());
  const auto size = reader.get<std::vector<int64_t>>("weight_block_size");
  if (size.size() != 2 || std::ranges::any_of(size, [](int64_t n) { return n < 1 || n > 65536; }))
    refuse(reader, "weight_block_size", "two sizes of a block are needed");
  return {Packing::Kind::fp8, size[0], size[1]};
}

// A block of MXFP4 in the order of GGUF: there byte j holds numbers j and j + 16, here 2j and
// 2j + 1.
void reorder(uint8_t* to, const uint8_t* from) {
  const auto number = [&](int64_t n) { return from[n / 2] >> 4 * (n % 2) & 15; };
  for (int64_t j = 0; j < kBlockBytes; ++j)
    to[j] = static_cast<uint8_t>(number(j) | number(j + kBlockBytes) << 4);
}

Tensor shaped_like(void* data, DType dtype, const std::vector<int64_t>& shape) {
  if (shape.size() == 2) return Tensor(data, dtype, {shape[0], shape[1]});
  return Tensor(data, dtype, {shape[0], shape[1], shape[2]});
}

}  // namespace

Packing read_packing(const JsonReader& config) {
  if (!config.has(kConfig)) return {};
  const JsonReader reader = config.object(kConfig);
  for (const char* key : kOfPrograms) reader.has(key);
  const auto method = reader.get<std::string>("quant_method");
  Packing packing;
  if (method == "mxfp4") packing.kind = Packing::Kind::mxfp4;
  else if (method == "fp8") packing = read_fp8(reader);
  else refuse(reader, "quant_method", "\"mxfp4\" and \"fp8\" are read");
  reader.refuse_unknown();
  return packing;
}

UnpackedTensors::UnpackedTensors(std::shared_ptr<const Safetensors> file, const Packing& packing)
    : NamedTensors(file->path()), file_(std::move(file)) {
  const bool mxfp4 = packing.kind == Packing::Kind::mxfp4;
  const auto partner = [&](const std::string& name, const std::string& other) {
    if (!file_->contains(other))
      fail("{}: tensor \"{}\" has no \"{}\" beside it", path(), printable(name), printable(other));
    return file_->get(other);
  };
  for (const NamedTensor& tensor : file_->tensors()) {
    const std::string& name = tensor.name;
    if (mxfp4 && name.ends_with(kBlocks)) {
      const std::string base = name.substr(0, name.size() - kBlocks.size());
      add_mxfp4(base, tensor.value, partner(name, base + std::string(kScales)));
    } else if (mxfp4 && name.ends_with(kScales)) {
      partner(name, name.substr(0, name.size() - kScales.size()) + std::string(kBlocks));
    } else if (!mxfp4 && tensor.value.dtype == DType::f8_e4m3) {
      add_fp8(name, tensor.value, partner(name, name + std::string(kInverse)), packing);
    } else if (!mxfp4 && name.ends_with(kInverse)) {
      partner(name, name.substr(0, name.size() - kInverse.size()));
    } else {
      add(name, tensor.value, path());
    }
  }
}

void* UnpackedTensors::allocate(int64_t bytes) {
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(
      static_cast<size_t>(std::max<int64_t>(bytes, 1))));
  return memory_.back().get();
}

void UnpackedTensors::add_mxfp4(const std::string& name, const Tensor& blocks,
                                const Tensor& scales) {
  bool fit = blocks.dtype == DType::u8 && scales.dtype == DType::u8 && blocks.rank >= 3 &&
             scales.rank == blocks.rank - 1 && blocks.cols() == kBlockBytes && blocks.numel() > 0;
  for (int i = 0; fit && i < scales.rank; ++i)
    fit = blocks.shape[static_cast<size_t>(i)] == scales.shape[static_cast<size_t>(i)];
  const bool in_turns = name.ends_with(kInTurns);
  if (fit && in_turns) fit = scales.shape[static_cast<size_t>(scales.rank - 2)] % 2 == 0;
  if (!fit)
    fail("{}: \"{}\" is {} with scales {}; u8 [..,R,I/32,16] and u8 [..,R,I/32] are needed", path(),
         printable(name), describe(blocks), describe(scales));
  std::vector<int64_t> shape(scales.shape.begin(), scales.shape.begin() + scales.rank);
  const int64_t in_row = shape.back(), rows = scales.rows(),
                together = shape[shape.size() - 2];  // rows of an expert
  shape.back() *= kBlock;
  const int64_t row_bytes = bytes_of(DType::mxfp4, shape.back());
  auto* to = static_cast<uint8_t*>(allocate(rows * row_bytes));
  const auto *numbers = blocks.as<uint8_t>(), *exponents = scales.as<uint8_t>();
  parallel_for(available_threads(), rows, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t in_expert = r % together;
      const int64_t place =
          in_turns ? r - in_expert + in_expert % 2 * (together / 2) + in_expert / 2 : r;
      uint8_t* block = to + place * row_bytes;
      for (int64_t b = r * in_row; b < (r + 1) * in_row; ++b, block += 1 + kBlockBytes) {
        block[0] = exponents[b];
        reorder(block + 1, numbers + b * kBlockBytes);
      }
    }
  });
  add(name, shaped_like(to, DType::mxfp4, shape), path());
}

void UnpackedTensors::add_fp8(const std::string& name, const Tensor& numbers, const Tensor& scales,
                              const Packing& packing) {
  const auto parts = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
  const bool fit = numbers.rank == 2 && numbers.numel() > 0 && scales.rank == 2 &&
                   holds_weights(scales.dtype) && !is_quantised(scales.dtype) &&
                   scales.rows() == parts(numbers.rows(), packing.block_rows) &&
                   scales.cols() == parts(numbers.cols(), packing.block_cols);
  if (!fit)
    fail("{}: \"{}\" is {} with scales {}; a matrix is needed and a number for each {} x {} of it",
         path(), printable(name), describe(numbers), describe(scales), packing.block_rows,
         packing.block_cols);
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = f8_e4m3_to_f32(static_cast<uint8_t>(i));
  // bf16 or f16 in Qwen's checkpoints, f32 in DeepSeek's
  std::vector<float> scale(static_cast<size_t>(scales.numel()));
  dequantise(scale.data(), scales.data, scales.dtype, scales.numel());
  const int64_t rows = numbers.rows(), cols = numbers.cols();
  auto* to = static_cast<bf16*>(allocate(rows * cols * 2));
  const auto* from = static_cast<const uint8_t*>(numbers.data);
  parallel_for(available_threads(), rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* of_row = scale.data() + r / packing.block_rows * scales.cols();
      for (int64_t c = 0; c < cols; ++c)
        to[r * cols + c] = to_bf16(value[from[r * cols + c]] * of_row[c / packing.block_cols]);
    }
  });
  add(name, Tensor(to, DType::bf16, {rows, cols}), path());
}

}  // namespace moe
