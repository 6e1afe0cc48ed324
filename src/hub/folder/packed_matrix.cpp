#include "hub/folder/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/nearest.h"
#include "core/threads.h"

namespace moe {
namespace {

// Columns that are read at once: a block of q4_0, q4_1 and q8_0. A tile of as many rows stays in
// L1, as numbers may lie column by column.
constexpr int64_t kSide = 32;
constexpr float kMiddle4 = 8, kMiddle8 = 128;  // of 4 and of 8 bits, which q4_0 and q8_0 have as 0

bool is_f16(float x) { return f16_to_f32(f32_to_f16(x)) == x; }
bool is_finite_f16(float x) { return std::isfinite(f16_to_f32(f32_to_f16(x))); }

bool blocks_share_scales(const PackedMatrix& m) {
  if (m.cols % kSide != 0) return false;
  for (int64_t c = 0; c < m.cols; ++c)
    if (m.grid.group[static_cast<size_t>(c)] !=
        m.grid.group[static_cast<size_t>(c / kSide * kSide)])
      return false;
  return true;
}

// The number 0 of a block of q4_1.
float lowest(const PackedMatrix& m, size_t at) {
  return (m.least - m.grid.zero[at]) * m.grid.scale[at];
}

// Zero points lie among the numbers: further off they would be rounded by more and more of a step.
bool are_held_by_q4_1(const PackedMatrix& m) {
  const float most = m.least + 15;
  for (size_t i = 0; i < m.grid.scale.size(); ++i) {
    const float zero = m.grid.zero[i];
    if (!(m.least <= zero && zero <= most) || !is_finite_f16(lowest(m, i))) return false;
  }
  return true;
}

// Calls write(r, c, n, codes) for stretches of at most a block's columns, which never lie in two.
template <class Write>
void each_stretch(const PackedMatrix& m, Write&& write) {
  parallel_for(available_threads(), (m.rows + kSide - 1) / kSide, 1,
               [&](int64_t begin, int64_t end, int) {
                 uint8_t codes[kSide];
                 for (int64_t tile = begin; tile < end; ++tile)
                   for (int64_t c = 0; c < m.cols; c += kSide)
                     for (int64_t r = tile * kSide; r < std::min((tile + 1) * kSide, m.rows); ++r) {
                       const int64_t n = std::min(kSide, m.cols - c);
                       m.read(codes, r, c, n);
                       write(r, c, n, codes);
                     }
               });
}

void put_half(uint8_t* to, float x) {
  const uint16_t half = f32_to_f16(x);
  std::memcpy(to, &half, sizeof(half));
}

// Writes blocks of one type, and knows of each code the bits that it has there.
class BlockWriter {
 public:
  BlockWriter(const PackedMatrix& m, DType as) : m_(m), as_(as) {
    const float zero = as == DType::q8_0 ? m.least + kMiddle8 : m.least;
    for (size_t code = 0; code < bits_.size(); ++code)
      bits_[code] = static_cast<uint8_t>(static_cast<int>(m.q[code] - zero));
  }

  void write(uint8_t* to, size_t at, const uint8_t* codes) const {
    constexpr int64_t kHalf = 2;
    put_half(to, m_.grid.scale[at]);
    to += kHalf;
    if (as_ == DType::q8_0) {
      for (int64_t j = 0; j < kSide; ++j) to[j] = bits_[codes[j]];
      return;
    }
    if (as_ == DType::q4_1) {
      put_half(to, lowest(m_, at));
      to += kHalf;
    }
    for (int64_t j = 0; j < kSide / 2; ++j)  // byte j holds numbers j and j + 16
      to[j] = static_cast<uint8_t>(bits_[codes[j]] | bits_[codes[j + kSide / 2]] << 4);
  }

 private:
  const PackedMatrix& m_;
  DType as_;
  std::array<uint8_t, 256> bits_;
};

}  // namespace

DType least_type(const PackedMatrix& m) {
  const ScaleGrid& grid = m.grid;
  if ((m.bits != 4 && m.bits != 8) || m.factor != 1 || !blocks_share_scales(m) ||
      !std::ranges::all_of(grid.scale, is_f16))
    return m.wide;
  const auto zeros_are = [&](float number) {
    return std::ranges::all_of(grid.zero, [&](float zero) { return zero == number; });
  };
  if (m.bits == 8) return zeros_are(m.least + kMiddle8) ? DType::q8_0 : m.wide;
  // What is q4_0 alone may come to be q4_1 for another matrix of its bank.
  if (!are_held_by_q4_1(m)) return m.wide;
  return zeros_are(m.least + kMiddle4) ? DType::q4_0 : DType::q4_1;
}

DType common_type(DType a, DType b, DType wide) {
  if (a == b) return a;
  const auto is_of_four = [](DType t) { return t == DType::q4_0 || t == DType::q4_1; };
  return is_of_four(a) && is_of_four(b) ? DType::q4_1 : wide;
}

Tensor weight_of(const PackedMatrix& m, DType as) {
  if (m.matrices > 0) return Tensor(nullptr, as, {m.matrices, m.rows / m.matrices, m.cols});
  return Tensor(nullptr, as, {m.rows / m.row_parts, m.cols * m.row_parts});
}

Tensor unpack(const PackedMatrix& m, DType as, const MemoryOfWeights& memory) {
  const int64_t row_bytes = bytes_of(as, m.cols);
  auto* to = static_cast<uint8_t*>(memory(m.rows * row_bytes));
  if (is_quantised(as)) {
    const BlockWriter blocks(m, as);
    each_stretch(m, [&](int64_t r, int64_t c, int64_t, const uint8_t* codes) {
      blocks.write(to + r * row_bytes + bytes_of(as, c), m.grid.at(m.grid.first(r), c), codes);
    });
  } else {
    each_stretch(m, [&](int64_t r, int64_t c, int64_t n, const uint8_t* codes) {
      auto* out = reinterpret_cast<uint16_t*>(to + r * row_bytes) + c;
      const int64_t first = m.grid.first(r);  // divided once, not for every number
      for (int64_t j = 0; j < n; ++j) {
        const size_t at = m.grid.at(first, c + j);
        const float x = (m.q[codes[j]] - m.grid.zero[at]) * m.grid.scale[at] * m.factor;
        out[j] = as == DType::f16 ? f32_to_f16(x) : to_bf16(x).bits;
      }
    });
  }
  Tensor weight = weight_of(m, as);
  weight.data = to;
  return weight;
}

}  // namespace moe
