// Rearranges blocks of GGUF (github ggml-org/ggml, src/ggml-common.h for where their bits lie) into
// panels. Bits move as words of four bytes, one number a byte: those of a chunk lie column by
// column first, and are turned all together.
#include "ops/cpu/quant/quant_panels.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/gemm/pack.h"
#include "tensor/quant_grid.h"
#include "tensor/quant_k.h"
#include "tensor/quant_parts.h"
#include "tensor/quant_ternary.h"

namespace moe::ops {
namespace {

constexpr uint32_t kNibbles = 0x0F0F0F0F;

struct Words {
  uint32_t step[8];  // a block of 32 numbers of one column
};

// Bits 0..3 of `bits` become the lowest bits of four bytes.
uint32_t spread(uint32_t bits) { return ((bits & 0xF) * 0x00204081u) & 0x01010101u; }

// Blocks of a row that are read one after another, whole chunks, before the next row's: memory is
// fast where it is read in order.
constexpr int64_t kBlocksInOrder = 64;
// From one column's words to the next one's; a power of two would put them all in a few sets of the
// cache.
constexpr int64_t kWordsStride = kBlocksInOrder * bytes_of_bits(PanelBits::eight) / 64 + 16;

// Where the scales of column n in block b of a chunk go, and its words.
struct Place {
  uint8_t* scales;
  uint32_t* words;
  int64_t column;

  void put_word(int64_t i, uint32_t w) const { words[i] = w; }
  void put_half(int64_t i, uint16_t h) const { std::memcpy(scales + i * 32 + column * 2, &h, 2); }
  void put_byte(int64_t i, uint8_t b) const { scales[i * 16 + column] = b; }

  void put_nibbles(const Words& v) const {
    for (int i = 0; i < 4; ++i)
      put_word(i, (v.step[i] & kNibbles) | (v.step[4 + i] & kNibbles) << 4);
  }
  void put_pairs(const Words& v) const {
    for (int i = 0; i < 2; ++i) {
      uint32_t w = 0;
      for (int s = 0; s < 4; ++s) w |= (v.step[4 * i + s] & 0x03030303u) << 2 * s;
      put_word(i, w);
    }
  }
  // Bit `bit` of all numbers.
  void put_bits(int64_t i, const Words& v, int bit) const {
    uint32_t w = 0;
    for (int s = 0; s < 8; ++s) w |= (v.step[s] >> bit & 0x01010101u) << s;
    put_word(i, w);
  }
  void put_upper_bits(const Words& v) const {
    for (int half = 0; half < 2; ++half) {
      uint32_t w = 0;
      for (int s = 0; s < 4; ++s) w |= (v.step[4 * half + s] >> 4 & 0x03030303u) << 2 * s;
      put_word(4 + half, w);
    }
  }
};

// One block of 32 of the types without super-blocks.
template <DType kType>
void pack_block(const uint8_t* block, const Place& to) {
  constexpr bool kMin = panel_format(kType).has_min,
                 kExponent = panel_format(kType).scale == PanelScale::exponent;
  if constexpr (kExponent) to.put_byte(0, block[0]);
  else to.put_half(0, u16_at(block));
  if constexpr (kMin) to.put_half(1, u16_at(block + 2));
  const uint8_t* rest = block + (kExponent ? 1 : kMin ? 4 : 2);
  if constexpr (kType == DType::q8_0) {
    for (int s = 0; s < 8; ++s) to.put_word(s, u32_at(rest + 4 * s) ^ 0x80808080u);
  } else {
    constexpr bool kFive = kType == DType::q5_0 || kType == DType::q5_1;
    if constexpr (kFive) {
      const uint32_t fifth = u32_at(rest);
      uint32_t w = 0;
      for (int s = 0; s < 8; ++s) w |= spread(fifth >> 4 * s) << s;
      to.put_word(4, w);
      rest += 4;
    }
    // a nibble's fellow is 16 numbers further in both
    for (int i = 0; i < 4; ++i) to.put_word(i, u32_at(rest + 4 * i));
  }
}

// Six-bit scale and min of sub-block j out of 12 bytes: four of them whole, of the others the upper
// two bits lie above the first four.
void scale_and_min(const uint8_t* packed, int j, uint8_t& scale, uint8_t& min) {
  if (j < 4) {
    scale = packed[j] & 63;
    min = packed[j + 4] & 63;
  } else {
    scale = static_cast<uint8_t>((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
    min = static_cast<uint8_t>(packed[j + 4] >> 4 | (packed[j] >> 6) << 4);
  }
}

// Block j of a super-block of q4_k or q5_k: f16 d, dmin, 12 bytes of scales, (q5_k) 32 bytes of
// fifth bits, 128 bytes of nibbles.
void pack_block_k45(const uint8_t* super, bool five, int j, const Place& to) {
  uint8_t scale, min;
  scale_and_min(super + 4, j, scale, min);
  to.put_byte(0, scale);
  to.put_byte(1, min);
  const uint8_t* fifth = super + 16;
  const uint8_t* nibbles = super + 16 + (five ? 32 : 0) + j / 2 * 32;
  Words v;
  for (int s = 0; s < 8; ++s) {
    v.step[s] = u32_at(nibbles + 4 * s) >> (j % 2 * 4) & kNibbles;
    if (five) v.step[s] |= (u32_at(fifth + 4 * s) >> j & 0x01010101u) << 4;
  }
  to.put_nibbles(v);
  if (five) to.put_bits(4, v, 4);
}

// Block j of a super-block of q6_k: 128 bytes of nibbles, 64 of upper bits, 16 signed scales, f16
// d. Each half of it is four blocks.
void pack_block_k6(const uint8_t* super, int j, const Place& to) {
  to.put_byte(0, super[192 + 2 * j]);
  to.put_byte(1, super[192 + 2 * j + 1]);
  const int in_half = j % 4;
  const uint8_t* nibbles = super + j / 4 * 64 + in_half % 2 * 32;
  const uint8_t* upper = super + 128 + j / 4 * 32;
  Words v;
  for (int s = 0; s < 8; ++s)
    v.step[s] = (u32_at(nibbles + 4 * s) >> (in_half / 2 * 4) & kNibbles) |
                (u32_at(upper + 4 * s) >> 2 * in_half & 0x03030303u) << 4;
  to.put_nibbles(v);
  to.put_upper_bits(v);
}

// Block j of a super-block of iq4_xs (tensor/quant_table.h).
void pack_block_iq4_xs(const uint8_t* super, int j, const Place& to) {
  to.put_byte(0, static_cast<uint8_t>(iq4_xs_scale(u16_at(super + 2), super + 4, j)));
  for (int i = 0; i < 4; ++i) to.put_word(i, u32_at(super + 8 + j * 16 + 4 * i));
}

// Block j of a super-block of q2_k or q3_k (tensor/quant_k.cpp): two bits of 32 numbers each in
// bytes that four blocks share, and of q3_k a third one.
void pack_block_k23(const uint8_t* super, bool three, int j, const Place& to) {
  const uint8_t* low = super + (three ? 32 : 16) + j / 4 * 32;
  Words v;
  for (int s = 0; s < 8; ++s) {
    v.step[s] = u32_at(low + 4 * s) >> 2 * (j % 4) & 0x03030303u;
    if (three) v.step[s] |= (u32_at(super + 4 * s) >> j & 0x01010101u) << 2;
  }
  to.put_pairs(v);
  if (three) to.put_bits(2, v, 2);
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * j + half;
    if (three) {
      to.put_byte(half, static_cast<uint8_t>(q3_k_scale(super + 96, group)));
    } else {
      to.put_byte(half, super[group] & 15);
      to.put_byte(2 + half, super[group] >> 4);
    }
  }
}

// Numbers 32 half.. of a block of 64 of q2_0. A byte of it holds the four numbers of a step, a byte
// of a panel one number of four steps: four bytes are four by four pairs of bits, which change
// places across the diagonal, first within each two by two, then these.
void pack_block_q2_0(const uint8_t* block, int half, const Place& to) {
  to.put_half(0, u16_at(block));
  for (int i = 0; i < 2; ++i) {
    uint32_t w = u32_at(block + 2 + 8 * half + 4 * i);
    const uint32_t near = (w ^ w >> 6) & 0x00CC00CCu;
    w ^= near ^ near << 6;
    const uint32_t far = (w ^ w >> 12) & 0x0000F0F0u;
    to.put_word(i, w ^ far ^ far << 12);
  }
}

// Run r of a block of iq1_*, iq2_* or iq3_*.
template <DType kType>
void pack_block_grid(const uint8_t* super, int r, const Place& to) {
  const GridRun run = read_grid_run(kType, super, r);
  to.put_byte(0, run.scale[0]);
  if (panel_format(kType).halves) to.put_byte(1, run.scale[1]);
  Words v;
  std::memcpy(v.step, run.code, sizeof run.code);
  if (panel_format(kType).bits == PanelBits::four) return to.put_nibbles(v);
  to.put_pairs(v);
  to.put_bits(2, v, 2);
}

// Run r of a block of tq1_0, tq2_0 or q1_0.
template <DType kType>
void pack_block_ternary(const uint8_t* block, int r, const Place& to) {
  const TernaryRun run = read_ternary_run(kType, block, r);
  to.put_half(0, ternary_scale(kType, block));
  Words v;
  std::memcpy(v.step, run.q, sizeof run.q);
  to.put_pairs(v);
}

// Where a k-type's half d and, if it has mins, dmin stand in a super-block.
constexpr int d_place(DType dtype) {
  switch (dtype) {
    case DType::q6_k: return 208;
    case DType::q3_k: return 108;
    case DType::q2_k: return 80;
    default: return 0;
  }
}

template <DType kType>
uint16_t d_of(const uint8_t* super) {
  if constexpr (grid_format(kType) != nullptr) return grid_scale(kType, super);
  else return u16_at(super + d_place(kType));
}

// The scales of column n of a chunk of `blocks` blocks, and its words; `source` is where they begin
// in the column's row.
template <DType kType>
void pack_column(uint8_t* scales, uint32_t* words, const uint8_t* source, int64_t column,
                 int64_t blocks) {
  constexpr PanelFormat kFormat = panel_format(kType);
  if constexpr (kFormat.is_k()) {
    const Place super{scales, nullptr, column};
    super.put_half(0, d_of<kType>(source));
    super.put_half(1, kFormat.has_min ? u16_at(source + d_place(kType) + 2) : uint16_t{0});
    scales += kSuperBytes;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const Place to{scales + b * kFormat.scale_bytes, words + b * kFormat.block_bytes() / 64,
                   column};
    constexpr int64_t kRuns = block_of(kType).elements / kQuantBlock;
    if constexpr (is_ternary(kType))
      pack_block_ternary<kType>(source + b / kRuns * block_of(kType).bytes,
                                static_cast<int>(b % kRuns), to);
    else if constexpr (grid_format(kType) != nullptr)
      pack_block_grid<kType>(source, static_cast<int>(b), to);
    else if constexpr (kType == DType::q6_k) pack_block_k6(source, static_cast<int>(b), to);
    else if constexpr (kType == DType::iq4_xs) pack_block_iq4_xs(source, static_cast<int>(b), to);
    else if constexpr (kType == DType::q2_0)
      pack_block_q2_0(source + b / 2 * block_of(kType).bytes, static_cast<int>(b % 2), to);
    else if constexpr (kType == DType::q2_k || kType == DType::q3_k)
      pack_block_k23(source, kType == DType::q3_k, static_cast<int>(b), to);
    else if constexpr (kFormat.is_k())
      pack_block_k45(source, kType == DType::q5_k, static_cast<int>(b), to);
    else pack_block<kType>(source + b * block_of(kType).bytes, to);
  }
}

template <DType kType>
void pack_groups(uint8_t* panels, const uint8_t* rows, int64_t row_bytes, int64_t out, int64_t in,
                 Span groups) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const int64_t blocks = in / kQuantBlock,
                group_bytes = static_cast<int64_t>(quant_group_bytes(kType, in));
  alignas(64) uint32_t words[kQuantColumns][kWordsStride];
  constexpr int64_t kWords = kFormat.block_bytes() / 64;  // of a block
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t first = g * kQuantColumns, columns = std::min(kQuantColumns, out - first);
    uint8_t* chunk = panels + g * group_bytes;
    if (columns < kQuantColumns) {
      std::memset(chunk, 0, static_cast<size_t>(group_bytes));
      std::memset(words, 0, sizeof words);
    }
    for (int64_t b = 0; b < blocks; b += kBlocksInOrder) {
      const int64_t all = std::min(kBlocksInOrder, blocks - b);
      const auto each_chunk = [&](auto&& f) {
        for (int64_t i = 0; i < all; i += kChunkBlocks)
          f(chunk + i / kChunkBlocks * chunk_bytes(kFormat, kChunkBlocks), i,
            std::min(kChunkBlocks, all - i));
      };
      for (int64_t c = 0; c < columns; ++c)
        each_chunk([&](uint8_t* at, int64_t i, int64_t n) {
          pack_column<kType>(
              at, words[c] + i * kWords,
              rows + (first + c) * row_bytes + bytes_of(kType, (b + i) * kQuantBlock), c, n);
        });
      each_chunk([&](uint8_t* at, int64_t i, int64_t n) {
        transpose(at + chunk_scale_bytes(kFormat, n), DType::f32,
                  {words[0] + i * kWords, DType::f32, kWordsStride}, kQuantColumns, n * kWords,
                  kQuantColumns, nullptr);
      });
      chunk += all / kChunkBlocks * chunk_bytes(kFormat, kChunkBlocks);
    }
  }
}

}  // namespace

size_t quant_group_bytes(DType dtype, int64_t in) {
  const PanelFormat format = panel_format(dtype);
  const int64_t blocks = in / kQuantBlock, tail = blocks % kChunkBlocks;
  return static_cast<size_t>(blocks / kChunkBlocks * chunk_bytes(format, kChunkBlocks) +
                             (tail > 0 ? chunk_bytes(format, tail) : 0));
}

void quant_pack(void* panels, DType dtype, const void* rows, int64_t row_bytes, int64_t out,
                int64_t in, Span groups) {
  auto* to = static_cast<uint8_t*>(panels);
  const auto* from = static_cast<const uint8_t*>(rows);
  switch (dtype) {
    case DType::q8_0: return pack_groups<DType::q8_0>(to, from, row_bytes, out, in, groups);
    case DType::q4_0: return pack_groups<DType::q4_0>(to, from, row_bytes, out, in, groups);
    case DType::q4_1: return pack_groups<DType::q4_1>(to, from, row_bytes, out, in, groups);
    case DType::q5_0: return pack_groups<DType::q5_0>(to, from, row_bytes, out, in, groups);
    case DType::q5_1: return pack_groups<DType::q5_1>(to, from, row_bytes, out, in, groups);
    case DType::q4_k: return pack_groups<DType::q4_k>(to, from, row_bytes, out, in, groups);
    case DType::q5_k: return pack_groups<DType::q5_k>(to, from, row_bytes, out, in, groups);
    case DType::q6_k: return pack_groups<DType::q6_k>(to, from, row_bytes, out, in, groups);
    case DType::q3_k: return pack_groups<DType::q3_k>(to, from, row_bytes, out, in, groups);
    case DType::q2_k: return pack_groups<DType::q2_k>(to, from, row_bytes, out, in, groups);
    case DType::q2_0: return pack_groups<DType::q2_0>(to, from, row_bytes, out, in, groups);
    case DType::mxfp4: return pack_groups<DType::mxfp4>(to, from, row_bytes, out, in, groups);
    case DType::iq4_nl: return pack_groups<DType::iq4_nl>(to, from, row_bytes, out, in, groups);
    case DType::iq4_xs: return pack_groups<DType::iq4_xs>(to, from, row_bytes, out, in, groups);
    case DType::iq1_s: return pack_groups<DType::iq1_s>(to, from, row_bytes, out, in, groups);
    case DType::iq1_m: return pack_groups<DType::iq1_m>(to, from, row_bytes, out, in, groups);
    case DType::iq2_xxs: return pack_groups<DType::iq2_xxs>(to, from, row_bytes, out, in, groups);
    case DType::iq2_xs: return pack_groups<DType::iq2_xs>(to, from, row_bytes, out, in, groups);
    case DType::iq2_s: return pack_groups<DType::iq2_s>(to, from, row_bytes, out, in, groups);
    case DType::iq3_xxs: return pack_groups<DType::iq3_xxs>(to, from, row_bytes, out, in, groups);
    case DType::iq3_s: return pack_groups<DType::iq3_s>(to, from, row_bytes, out, in, groups);
    case DType::tq1_0: return pack_groups<DType::tq1_0>(to, from, row_bytes, out, in, groups);
    case DType::tq2_0: return pack_groups<DType::tq2_0>(to, from, row_bytes, out, in, groups);
    case DType::q1_0: return pack_groups<DType::q1_0>(to, from, row_bytes, out, in, groups);
    default: return;
  }
}

}  // namespace moe::ops
