// Products of bf16 rows in AMX tiles, where the machine has them. A tile holds 16 rows of 64 bytes;
// one instruction adds 32 products to each of 16 x 16 sums. A sum is one chain in the order of k,
// 32 at a time, whatever rows stand beside it: the law of rows holds to the bit.
#pragma once

#include <cstdint>

#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/primitives.h"
#include "tensor/arena.h"

namespace moe::ops {

constexpr int64_t kTiledRows = 16, kTiledInner = 32;  // of a tile of the left operand
constexpr int64_t kTiledBytes = kTiledRows * kTiledInner * 2;

// What the tiles are set to: eight of 16 rows of 64 bytes. Intel's manual of instruction set
// extensions, LDTILECFG: byte 0 is the palette, 16 to 47 are the bytes of a row of each tile, 48 to
// 63 its rows. A constant in memory, since GCC 12's intrinsic names only its first bytes as read.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileShapes kFullTiles;

// The tiles of the calling thread are set so as long as this lives. Where there are none nothing
// happens.
class TilesInUse {
 public:
  TilesInUse();
  ~TilesInUse();
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

// Whether bf16 is multiplied in tiles here: oneDNN does so, and has asked the system for them.
bool has_tiles();
// The layout of these weights where they are multiplied in tiles, else null.
const PackLayout* tile_layout(int64_t inner, int64_t cols, DType dtype);

// Rows in the shape of tiles: blocks of 16 rows, in each blocks of 32 numbers, zeros where either
// ends before its block does.
int64_t tiled_bytes(int64_t rows, int64_t inner);
// rows: bf16, or f32, which are rounded
void tile_rows(void* tiles, const Source& source, int64_t rows, int64_t inner);

// Sums of 32 rows by 32 columns, or of 16 by 32 where a1 is null, from f32 at c, `c_stride` bytes a
// row, or from zero if `first`, back to c. a0, a1: tiles that follow each other along k; b: of each
// 32 numbers of k, `b_block` bytes apart, 16 pairs of 32 columns, `b_row` bytes a pair.
struct TileStep {
  const char *a0, *a1, *b;
  int64_t b_block, b_row, steps;
  char* c;
  int64_t c_stride;
  bool first;
};
void sum_tiles(const TileStep& step);

struct TileProduct {
  const PackLayout* layout;  // tile_layout()
  int64_t rows;
  DType out;  // f32 or bf16
  bool add;   // out += instead of out =; rounded once

  // to [rows, cols], whose rows lie `stride` elements apart; scratch: of the calling thread, and
  // threads' own where `threads` share the columns.
  void run(void* to, int64_t stride, const void* tiles, const void* packed, Arena& scratch,
           int threads) const;
  // One block of columns, whose panel this is: column 0 of `to` is the product's own. sums:
  // sums_bytes(). The caller's thread has TilesInUse.
  void run_block(void* to, int64_t stride, const void* tiles, const void* panel, int64_t block,
                 void* sums) const;
  int64_t sums_bytes() const;
  int64_t panel_bytes() const { return layout->n_stride * 2; }
};

}  // namespace moe::ops
