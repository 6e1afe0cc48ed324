// The formats whose numbers come in points of a grid, for quant.cpp and the panels of products:
// IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S of github ggml-org/ggml,
// src/ggml-common.h. A block of 256 is eight runs of 32 numbers. A file names 8 (IQ1, IQ2) or 4
// (IQ3) of them by the place of their sizes in a list of 256 to 2,048 such points, and their signs
// apart. All are of at most 16 values, so a run is read as a code a number, of four bits for IQ3
// and three for the others:
//   x = d unit s v
// d a half of the block, unit a power of two of the format, s odd, of each half of the run, v the
// value of the code in the format's table.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace moe {

struct GridFormat {
  std::array<int8_t, 16> table;
  float unit;
};

// Sizes and then the same with the other sign: the last bit of a code is the sign.
template <size_t kCount>
constexpr std::array<int8_t, 16> with_signs(const int8_t (&sizes)[kCount]) {
  std::array<int8_t, 16> table{};
  for (size_t i = 0; i < kCount; ++i) {
    table[i] = sizes[i];
    table[kCount + i] = static_cast<int8_t>(-sizes[i]);
  }
  return table;
}
// IQ1: -1, 0 or 1, an eighth below or above: code 2 (g + 1) is below, the next one above.
inline constexpr GridFormat kIq1{{-9, -7, -1, 1, 7, 9}, 0.125f};
inline constexpr GridFormat kIq2{with_signs({8, 25, 43, 0}), 0.125f};
inline constexpr GridFormat kIq3Xxs{with_signs({4, 12, 20, 28, 36, 44, 52, 62}), 0.25f};
inline constexpr GridFormat kIq3S{with_signs({1, 3, 5, 7, 9, 11, 13, 15}), 1};

constexpr const GridFormat* grid_format(DType dtype) {
  switch (dtype) {
    case DType::iq1_s:
    case DType::iq1_m: return &kIq1;
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s: return &kIq2;
    case DType::iq3_xxs: return &kIq3Xxs;
    case DType::iq3_s: return &kIq3S;
    default: return nullptr;
  }
}

struct GridRun {
  uint8_t code[32];
  uint8_t scale[2];  // of the first 16 numbers and of the others
};
// Run r of a block of one of these types.
GridRun read_grid_run(DType dtype, const uint8_t* block, int r);
// The bits of the half d.
uint16_t grid_scale(DType dtype, const uint8_t* block);

void read_grid(float* out, DType dtype, const uint8_t* block);

}  // namespace moe
