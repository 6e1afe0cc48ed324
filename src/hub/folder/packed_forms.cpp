// Where each form keeps its numbers: MXFP4 transformers:integrations/mxfp4.py; FP8 github
// deepseek-ai/DeepSeek-V3, inference/kernel.py; GPTQ github AutoGPTQ/AutoGPTQ,
// nn_modules/qlinear/qlinear_cuda.py, and ModelCloud/GPTQModel, utils/model.py for the two kinds of
// zero points; AWQ github casper-hansen/AutoAWQ, modules/linear/gemm.py; compressed-tensors github
// vllm-project/compressed-tensors, compressors/pack_quantized and naive_quantized.
#include "hub/folder/packed_forms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "tensor/quant.h"

namespace moe {
namespace {

using PackingKind = Packing::Kind;

constexpr std::string_view kInTurns = "gate_up_proj_blocks";
constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;  // of MXFP4
constexpr int64_t kWordBits = 32;

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

// That of the scales, in which the programs that pack work the products out too. Models whose
// scales are f32 are in bf16.
DType type_by_scales(const Tensor& scales) {
  return scales.dtype == DType::f16 ? DType::f16 : DType::bf16;
}

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

std::array<float, 256> f8_numbers() {
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = f8_e4m3_to_f32(static_cast<uint8_t>(i));
  return value;
}

int64_t blocks_in(int64_t n, int64_t block) { return (n + block - 1) / block; }

bool are_of_blocks(const Tensor& scales, int64_t rows, int64_t cols, const Packing& packing) {
  return packing.block_rows > 0 && scales.rank == 2 &&
         scales.rows() == blocks_in(rows, packing.block_rows) &&
         scales.cols() == blocks_in(cols, packing.block_cols);
}

// What numbers mean that are themselves.
std::array<float, 256> whole_numbers() {
  std::array<float, 256> value{};
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i);
  return value;
}

// Which scale each column has where `size` of them share one.
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

// Of a matrix whose numbers are bytes.
auto reader_of_bytes(const Tensor& bytes) {
  return [from = static_cast<const uint8_t*>(bytes.data), cols = bytes.cols()](
             uint8_t* codes, int64_t r, int64_t c, int64_t n) {
    std::memcpy(codes, from + r * cols + c, static_cast<size_t>(n));
  };
}

// "X" [O,I] and "X_scale_inv" [ceil(O/B),ceil(I/B)].
PackedMatrix read_fp8(const PackedParts& parts, const Packing& packing) {
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

// Words of 32 bits hold 8 numbers of 4 bits or 4 of 8, the first in the lowest bits.
template <int kOfNumber>
struct WordOf {
  static constexpr int kBits = kOfNumber;
  static constexpr int64_t kNumbers = kWordBits / kBits;

  static uint8_t number(uint32_t word, int64_t place) {
    return static_cast<uint8_t>(word >> kBits * place & ((1u << kBits) - 1));
  }
};
constexpr int64_t kNumbersInWords[] = {WordOf<4>::kNumbers, WordOf<8>::kNumbers};

// f(WordOf<..>()) for words of so many numbers, which as a constant need no division.
template <class F>
auto with_word(int64_t numbers, F&& f) {
  return numbers == WordOf<4>::kNumbers ? f(WordOf<4>()) : f(WordOf<8>());
}

uint32_t word_at(const Tensor& words, int64_t i) {
  return static_cast<uint32_t>(words.as<int32_t>()[i]);
}

// `n` numbers of a row from column `col` on, whose words stand `step` apart, the first at `first`.
template <class Word>
void read_row(uint8_t* numbers, const Tensor& words, int64_t first, int64_t step, int64_t col,
              int64_t n) {
  for (const int64_t end = col + n; col < end;) {
    const uint32_t word = word_at(words, first + col / Word::kNumbers * step);
    for (int64_t place = col % Word::kNumbers; place < Word::kNumbers && col < end; ++place, ++col)
      *numbers++ = Word::number(word, place);
  }
}

// Where the form has a list, each column's group as that says; else as a group_size of the config
// divides the columns.
std::vector<int64_t> groups_of(const PackedParts& parts, int64_t cols, int64_t count,
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
        packing.kind != PackingKind::compressed || std::ranges::count(listed, -1) == 0;
    for (const int32_t group : listed)
      if (used && (group < 0 || group >= count))
        misfit(fmt::format("a column is of group {}, of which there are {}", group, count));
    if (used) return {listed.begin(), listed.end()};
  }
  if (count == 1) return groups_of_size(cols, cols);
  // Only GPTQ's last group may be a shorter one.
  for (const int64_t size : packing.groups)
    if (blocks_in(cols, size) == count && (cols % size == 0 || packing.kind == PackingKind::gptq))
      return groups_of_size(cols, size);
  misfit(fmt::format("{} columns in {} groups are of no \"group_size\" that the config says", cols,
                     count));
  return {};
}

// "X.qweight" [I/N,O], N numbers of a column in a word, "X.qzeros" [G,O/N], N of a row, "X.scales"
// [G,O] and, where columns were taken out of their order, "X.g_idx" [I].
PackedMatrix read_gptq(const PackedParts& parts, const Packing& packing) {
  const Tensor &words = parts.numbers, &scales = parts.scales, &zeros = parts.zeros;
  int64_t in_word = 0;
  if (is_matrix_of(DType::i32, words) && is_matrix_of(DType::i32, zeros) && are_scales(scales) &&
      scales.rank == 2 && scales.cols() == words.cols() && zeros.rows() == scales.rows())
    for (const int64_t numbers : kNumbersInWords)
      if (zeros.cols() * numbers == scales.cols()) in_word = numbers;
  if (in_word == 0)
    fail(
        "{}: \"{}\" is {} with scales {} and zeros {}; i32 [I/N,O], [G,O] and i32 [G,O/N] are "
        "needed, N 8 or 4",
        parts.where, printable(parts.name), describe(words), describe(scales), describe(zeros));
  const int64_t rows = words.cols(), cols = words.rows() * in_word;
  return with_word(in_word, [&](auto word) {
    constexpr int64_t kNumbers = word.kNumbers;
    ScaleGrid grid{.scale = floats_in(scales), .row_step = 1, .group_step = rows};
    // GPTQModel takes the ones off whole words, so that the zero point 0 borrows from its
    // neighbour; they are put back the same way.
    const uint32_t ones = !packing.zeros_less_one ? 0 : kNumbers == 8 ? 0x11111111 : 0x01010101;
    for (int64_t i = 0; i < zeros.numel(); ++i)
      for (int64_t place = 0; place < kNumbers; ++place)
        grid.zero.push_back(word.number(word_at(zeros, i) + ones, place));
    grid.group = groups_of(parts, cols, scales.rows(), packing);
    return PackedMatrix{.rows = rows,
                        .cols = cols,
                        .grid = std::move(grid),
                        .wide = type_by_scales(scales),
                        .q = whole_numbers(),
                        .bits = word.kBits,
                        .read = [words, rows](uint8_t* q, int64_t r, int64_t c, int64_t n) {
                          read_row<decltype(word)>(q, words, r, rows, c, n);
                        }};
  });
}

// Number n of a word's eight, 0 to 7, is at this place.
constexpr int64_t kAwqPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};

// "X.qweight" [I,O/8], 8 numbers of a row in a word, "X.qzeros" [G,O/8] and "X.scales" [G,O].
PackedMatrix read_awq(const PackedParts& parts, const Packing& packing) {
  const Tensor &words = parts.numbers, &scales = parts.scales, &zeros = parts.zeros;
  using Word = WordOf<4>;
  const bool fit = is_matrix_of(DType::i32, words) && is_matrix_of(DType::i32, zeros) &&
                   are_scales(scales) && scales.rank == 2 && zeros.cols() == words.cols() &&
                   zeros.rows() == scales.rows() && scales.cols() == words.cols() * Word::kNumbers;
  if (!fit)
    fail(
        "{}: \"{}\" is {} with scales {} and zeros {}; i32 [I,O/8], [G,O] and i32 [G,O/8] are "
        "needed",
        parts.where, printable(parts.name), describe(words), describe(scales), describe(zeros));
  const int64_t rows = scales.cols(), cols = words.rows();
  ScaleGrid grid{.scale = floats_in(scales), .row_step = 1, .group_step = rows};
  for (int64_t i = 0; i < zeros.numel(); ++i)
    for (const int64_t place : kAwqPlaces)
      grid.zero.push_back(Word::number(word_at(zeros, i), place));
  grid.group = groups_of(parts, cols, scales.rows(), packing);
  return {.rows = rows,
          .cols = cols,
          .grid = std::move(grid),
          .wide = type_by_scales(scales),
          .q = whole_numbers(),
          .bits = Word::kBits,
          .read = [words](uint8_t* q, int64_t r, int64_t c, int64_t n) {
            for (const int64_t end = c + n; c < end; ++c)
              *q++ = Word::number(word_at(words, c * words.cols() + r / Word::kNumbers),
                                  kAwqPlaces[r % Word::kNumbers]);
          }};
}

// Of compressed-tensors a matrix has one scale, or "X.weight_scale" [O,1], [O,G] or [ceil(O/B),
// ceil(I/B)]. The zero points are `offset`.
ScaleGrid grid_of_compressed(const PackedParts& parts, int64_t rows, int64_t cols, float offset,
                             const Packing& packing) {
  const Tensor& scales = parts.scales;
  ScaleGrid grid;
  if (are_scales(scales) && scales.numel() == 1) {
    grid.scale = floats_in(scales);
    grid.group = groups_of_size(cols, cols);
  } else if (are_scales(scales) && scales.rank == 2 && scales.rows() == rows) {
    grid.scale = floats_in(scales);
    grid.row_step = scales.cols();
    grid.group_step = 1;
    grid.group = groups_of(parts, cols, scales.cols(), packing);
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

// "X.weight_zero_point" of bytes, one beside each scale.
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

// A weight's shape as "X.weight_shape" says it.
std::array<int64_t, 2> said_shape(const Tensor& shape) {
  if (shape.rank != 1 || shape.numel() != 2) return {};
  if (shape.dtype == DType::i64) return {shape.as<int64_t>()[0], shape.as<int64_t>()[1]};
  if (shape.dtype == DType::i32) return {shape.as<int32_t>()[0], shape.as<int32_t>()[1]};
  return {};
}

// "X.weight_zero_point" [ceil(O/N),G], packed as the numbers are, but down the columns.
template <class Word>
void set_zeros(ScaleGrid& grid, const PackedParts& parts, int64_t rows, Word word) {
  constexpr int64_t kNumbers = Word::kNumbers;
  const Tensor &zeros = parts.zeros, &scales = parts.scales;
  if (scales.rank != 2 || scales.rows() != rows || zeros.rank != 2 ||
      zeros.rows() != blocks_in(rows, kNumbers) || zeros.cols() != scales.cols())
    fail_zeros(parts);
  const int64_t count = scales.cols();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t g = 0; g < count; ++g)
      grid.zero[static_cast<size_t>(r * count + g)] =
          word.number(word_at(zeros, r / kNumbers * count + g), r % kNumbers);
}

// "X.weight_packed" [O,ceil(I/N)], N numbers of a row in a word, and "X.weight_shape" [2].
PackedMatrix read_words(const PackedParts& parts, const Packing& packing) {
  const Tensor& words = parts.numbers;
  const std::array<int64_t, 2> said = said_shape(parts.shape);
  const int64_t rows = said[0], cols = said[1];
  int64_t in_word = 0;
  // Of 4 numbers or fewer a word could be of either format.
  if (is_matrix_of(DType::i32, words) && rows == words.rows() && cols > WordOf<8>::kNumbers &&
      cols <= words.cols() * WordOf<4>::kNumbers)
    for (const int64_t numbers : kNumbersInWords)
      if (blocks_in(cols, numbers) == words.cols()) in_word = numbers;
  if (in_word == 0)
    fail(
        "{}: \"{}\" is {} and its shape said to be [{}, {}] by {}; i32 [O,I/N] is needed, N 8 or 4",
        parts.where, printable(parts.name), describe(words), rows, cols, describe(parts.shape));
  return with_word(in_word, [&](auto word) {
    constexpr int64_t kNumbers = word.kNumbers;
    constexpr float kMiddle = kNumbers == 8 ? 8 : 128;
    ScaleGrid grid = grid_of_compressed(parts, rows, cols, kMiddle, packing);
    if (!parts.zeros.empty() && parts.zeros.dtype == DType::i32) set_zeros(grid, parts, rows, word);
    else if (!parts.zeros.empty()) add_zeros(grid, parts);
    return PackedMatrix{.rows = rows,
                        .cols = cols,
                        .grid = std::move(grid),
                        .wide = type_by_scales(parts.scales),
                        .q = whole_numbers(),
                        .bits = word.kBits,
                        .read = [words](uint8_t* q, int64_t r, int64_t c, int64_t n) {
                          read_row<decltype(word)>(q, words, r * words.cols(), 1, c, n);
                        }};
  });
}

// "X.weight" [O,I] of FP8 or of signed bytes.
PackedMatrix read_bytes(const PackedParts& parts, const Packing& packing) {
  const Tensor& numbers = parts.numbers;
  if (numbers.rank != 2 || numbers.numel() == 0)
    fail("{}: \"{}\" is {}; a matrix is needed", parts.where, printable(parts.name),
         describe(numbers));
  ScaleGrid grid = grid_of_compressed(parts, numbers.rows(), numbers.cols(), 0, packing);
  if (!parts.zeros.empty()) add_zeros(grid, parts);
  const bool whole = numbers.dtype == DType::i8;
  std::array<float, 256> value = f8_numbers();
  for (size_t i = 0; i < value.size() && whole; ++i) value[i] = static_cast<int8_t>(i);
  return {.rows = numbers.rows(),
          .cols = numbers.cols(),
          .grid = std::move(grid),
          .wide = type_by_scales(parts.scales),
          .q = value,
          .bits = whole ? 8 : 0,
          .least = whole ? -128.0f : 0,
          .read = reader_of_bytes(numbers)};
}

constexpr DType kF8[] = {DType::f8_e4m3}, kBytes[] = {DType::f8_e4m3, DType::i8};
constexpr bool kMayBeMissing = false;

constexpr PackedForm kPackedForms[] = {
    {PackingKind::mxfp4,
     "_blocks",
     "",
     {},
     {{"_scales", &PackedParts::scales}},
     nullptr,
     unpack_mxfp4},
    {PackingKind::fp8, "", "", kF8, {{"_scale_inv", &PackedParts::scales}}, read_fp8},
    {PackingKind::gptq,
     ".qweight",
     ".weight",
     {},
     {{".scales", &PackedParts::scales},
      {".qzeros", &PackedParts::zeros},
      {".g_idx", &PackedParts::groups, kMayBeMissing}},
     read_gptq},
    {PackingKind::awq,
     ".qweight",
     ".weight",
     {},
     {{".scales", &PackedParts::scales}, {".qzeros", &PackedParts::zeros}},
     read_awq},
    {PackingKind::compressed,
     ".weight_packed",
     ".weight",
     {},
     {{".weight_scale", &PackedParts::scales},
      {".weight_shape", &PackedParts::shape},
      {".weight_zero_point", &PackedParts::zeros, kMayBeMissing},
      {".weight_g_idx", &PackedParts::groups, kMayBeMissing}},
     read_words},
    {PackingKind::compressed,
     ".weight",
     ".weight",
     kBytes,
     {{".weight_scale", &PackedParts::scales},
      {".weight_zero_point", &PackedParts::zeros, kMayBeMissing}},
     read_bytes},
};

}  // namespace

bool PackedForm::has_numbers_in(std::string_view name, DType dtype) const {
  return name.ends_with(numbers) &&
         (types.empty() || std::ranges::find(types, dtype) != types.end());
}

std::span<const PackedForm> packed_forms() { return kPackedForms; }

}  // namespace moe
