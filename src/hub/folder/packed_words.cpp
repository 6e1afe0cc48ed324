// Whole numbers of 4 and 8 bits in words of 32: GPTQ, AWQ and what compressed-tensors packs. Where
// they are documented stands in packed_forms.cpp.
#include <array>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/folder/packed_families.h"
#include "hub/folder/packed_grids.h"

namespace moe {
namespace {

constexpr int64_t kWordBits = 32;

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

// Number n of a word's eight, 0 to 7, is at this place.
constexpr int64_t kAwqPlaces[] = {0, 4, 1, 5, 2, 6, 3, 7};

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

}  // namespace

// "X.qweight" [I/N,O], N numbers of a column in a word, "X.qzeros" [G,O/N], N of a row, "X.scales"
// [G,O] and, where columns were taken out of their order, "X.g_idx" [I].
PackedMatrix gptq_matrix(const PackedParts& parts, const Packing& packing) {
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
    grid.group = groups_of_columns(parts, cols, scales.rows(), packing);
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

// "X.qweight" [I,O/8], 8 numbers of a row in a word, "X.qzeros" [G,O/8] and "X.scales" [G,O].
PackedMatrix awq_matrix(const PackedParts& parts, const Packing& packing) {
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
  grid.group = groups_of_columns(parts, cols, scales.rows(), packing);
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

// "X.weight_packed" [O,ceil(I/N)], N numbers of a row in a word, and "X.weight_shape" [2].
PackedMatrix words_matrix(const PackedParts& parts, const Packing& packing) {
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
    ScaleGrid grid = grid_beside(parts, rows, cols, kMiddle, packing);
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

}  // namespace moe
