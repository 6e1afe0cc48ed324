// Where a weight lies in the panels of a product with quantised weights (quant_product.h): what the
// packer writes and the kernels read.
//
// A group is 16 columns. Along the inner numbers it is cut into chunks of 256, the last one perhaps
// shorter, one after another, so that a product reads one stream. A chunk holds its scales, then
// the bits of its blocks of 32 inner numbers. Step s of a block is its numbers 4s..4s+3; 64 bytes
// hold a step of all columns: byte 4n + t is number 4s + t of column n. Bits are q + offset, never
// negative, or where in a table of such numbers they stand (mxfp4, iq*):
//   q8_0: 8 steps of bytes.
//   Of two and three bits: 2 times 64 bytes, step s at bits 2 (s % 4) of the (s / 4)-th; then
//     of three: 64 bytes, bit s of each is the third bit of step s.
//   Others: 4 times 64 bytes of nibbles, the lower four bits of step i below those of step 4 + i;
//   then
//   q5_*: 64 bytes, bit s of each is the fifth bit of step s;
//     q6_k: 2 times 64 bytes, of step s the upper two bits at 2 (s % 4) of the (s / 4)-th.
// Scales: q8_0, q4_0, q5_0, iq4_nl: f16 d[16] for each block; of q2_0, whose blocks are twice as
// long, d stands for each half; q4_1, q5_1: f16 d[16], m[16]; mxfp4: 16 bytes, exponents; k-types,
// iq4_xs and those of a grid, for a chunk: f16 d[16], dmin[16] (where there are no mins: unused),
// then for each block rows of 16 bytes: scale and min; of iq4_xs and iq3_* the scale, signed; of
// q6_k, q3_k, iq2_* and iq1_* the scales of its two halves, signed; of q2_k the scales of its
// halves, then their mins. Some types lie in panels of another one, which can say all that they
// say (panel_type).
#pragma once

#include <cstdint>

#include "ops/cpu/quant/quant_product.h"
#include "tensor/quant_grid.h"
#include "tensor/quant_table.h"
#include "tensor/quant_ternary.h"

namespace moe::ops {

constexpr int64_t kChunkBlocks = 8;

enum class PanelBits : uint8_t { two, three, four, five, six, eight };
// Of a block of all 16 columns.
constexpr int64_t bytes_of_bits(PanelBits bits) {
  constexpr int64_t kBytes[] = {128, 192, 256, 320, 384, 512};
  return kBytes[static_cast<size_t>(bits)];
}

enum class PanelScale { half, exponent, bytes, signed_bytes };

struct PanelFormat {
  PanelBits bits;
  int64_t scale_bytes;  // scales of a block; of a k-type those of a chunk lie behind kSuperBytes
  PanelScale scale;     // bytes, signed_bytes: of a k-type
  bool has_min;
  int offset_shift;     // the offset is 1 << offset_shift; -1: none
  bool halves = false;  // each half of a block has its own scale, and its own min
  const std::array<int8_t, 16>* table = nullptr;
  float unit = 1;  // of a k-type: what d is multiplied by, a power of two

  constexpr int64_t block_bytes() const { return bytes_of_bits(bits); }
  constexpr bool is_k() const {
    return scale == PanelScale::bytes || scale == PanelScale::signed_bytes;
  }
};
// What a type's panels are laid out as.
constexpr DType panel_type(DType dtype) {
  if (is_ternary(dtype)) return DType::q2_0;
  switch (dtype) {
    case DType::iq1_s: return DType::iq1_m;
    case DType::iq2_xxs:
    case DType::iq2_s: return DType::iq2_xs;
    default: return dtype;
  }
}
constexpr int64_t kSuperBytes = 64;

// Codes of which a table makes the numbers, as of iq4_xs.
constexpr PanelFormat of_grid(const GridFormat& grid, PanelBits bits, int offset_shift,
                              bool halves) {
  return {bits,        halves ? 32 : 16, PanelScale::signed_bytes, false, offset_shift, halves,
          &grid.table, grid.unit};
}

constexpr PanelFormat panel_format(DType dtype) {
  using Bits = PanelBits;
  using Scale = PanelScale;
  switch (panel_type(dtype)) {
    case DType::q8_0: return {Bits::eight, 32, Scale::half, false, 7};
    case DType::q4_0: return {Bits::four, 32, Scale::half, false, 3};
    case DType::q2_0: return {Bits::two, 32, Scale::half, false, 0};
    case DType::q4_1: return {Bits::four, 64, Scale::half, true, -1};
    case DType::q5_0: return {Bits::five, 32, Scale::half, false, 4};
    case DType::q5_1: return {Bits::five, 64, Scale::half, true, -1};
    case DType::q4_k: return {Bits::four, 32, Scale::bytes, true, -1};
    case DType::q5_k: return {Bits::five, 32, Scale::bytes, true, -1};
    case DType::q6_k: return {Bits::six, 32, Scale::signed_bytes, false, 5, true};
    case DType::q3_k: return {Bits::three, 32, Scale::signed_bytes, false, 2, true};
    case DType::q2_k: return {Bits::two, 64, Scale::bytes, true, -1, true};
    case DType::mxfp4: return {Bits::four, 16, Scale::exponent, false, 4, false, &kFp4Doubled};
    case DType::iq4_nl: return {Bits::four, 32, Scale::half, false, 7, false, &kIq4Values};
    case DType::iq4_xs: return {Bits::four, 16, Scale::signed_bytes, false, 7, false, &kIq4Values};
    case DType::iq1_m: return of_grid(kIq1, Bits::three, 4, true);
    case DType::iq2_xs: return of_grid(kIq2, Bits::three, 7, true);
    case DType::iq3_xxs: return of_grid(kIq3Xxs, Bits::four, 7, false);
    case DType::iq3_s: return of_grid(kIq3S, Bits::four, 4, false);
    default: return {};
  }
}

// Bytes before the bits of a chunk of so many blocks: whole cache lines.
constexpr int64_t chunk_scale_bytes(const PanelFormat& f, int64_t blocks) {
  return ((f.is_k() ? kSuperBytes : 0) + blocks * f.scale_bytes + 63) / 64 * 64;
}
// The table as bits name its numbers, with the offset.
constexpr std::array<uint8_t, 16> table_bits(const PanelFormat& f) {
  std::array<uint8_t, 16> bits{};
  for (size_t i = 0; i < bits.size(); ++i)
    bits[i] = static_cast<uint8_t>((*f.table)[i] + (1 << f.offset_shift));
  return bits;
}
constexpr int64_t chunk_bytes(const PanelFormat& f, int64_t blocks) {
  return chunk_scale_bytes(f, blocks) + blocks * f.block_bytes();
}

// A block of a row of x, each half of 16 numbers with its own scale and sum.
struct alignas(64) QuantRecord {
  int8_t q[32];
  float scale[2];
  int32_t minus_sum[2];
  float scaled_sum;
  int32_t minus_sum_128[2];  // minus_sum times 128
  int32_t unused;
};
static_assert(sizeof(QuantRecord) == 64);
// One record more than there are blocks: rows a power of two apart would fall into the same few
// sets of the cache.
constexpr int64_t record_stride(int64_t in) { return in / kQuantBlock + 1; }

// The kernels by instruction set, one meaning; quant_multiply chooses.
struct QuantTask {
  QuantOut out;
  const QuantRecord* x;
  const int32_t* row;
  int64_t rows;
  const char* panels;
  DType dtype;
  int64_t out_cols, in;
  Span groups;
  QuantNext next;
  // Bytes that a single row fetches ahead in its own panels; 0: it fetches those behind them.
  int64_t own_ahead = 0;
};
bool has_vnni();  // AVX-512 with VNNI, and no cap below it
bool has_avx2();  // with FMA and conversions of halves, likewise
// Whether the two units that multiply 512 bits do all other work on as many, as Intel's do; AMD's
// cores have others for that.
bool has_two_vector_units();
// `unpacked`: weights that many rows meet are unpacked once for all of them.
void quant_multiply_vnni(const QuantTask& task, bool unpacked);
void quant_multiply_avx2(const QuantTask& task);
void quant_multiply_plain(const QuantTask& task);
// Operations of a loop of integer products out of registers, of bytes into sums of 32 bits and of
// 16; `sink` (16 numbers) keeps them alive.
int64_t vnni_loop(int64_t rounds, int32_t* sink);
int64_t avx2_loop(int64_t rounds, int32_t* sink);

}  // namespace moe::ops
