// Products of blocks of bf16 pairs in AMX tiles, for attention (bf16.cpp). A sum adds up what each
// sixteen pairs come to, in ascending order: its bits depend on its own row of A and column of B
// alone.
#pragma once

#include <cstdint>

namespace moe::ops {

// Rows and columns that a tile has, and pairs that one of its products sums over.
constexpr int64_t kPairTile = 16;

// Where the tiles of a matrix of words of four bytes lie, in words: the rows of a tile `row` apart,
// the tile below it `down` behind it, the one beside it `right`.
struct TilesAt {
  int64_t row, down, right;

  // Of a matrix whose rows lie `ld` apart.
  static TilesAt rows(int64_t ld) { return {ld, kPairTile * ld, kPairTile}; }
};

// C = A B, or C += A B, summed over pairs, `depth` of them in whole tiles: what lies beyond it is
// read and must be zero in one of the two and finite in the other. run() is called where TilesInUse
// (gemm/tile_product.h) lives.  A [m, depth]; B [depth, n]; C [m, n] f32; m and n multiples of 16
struct PairTiles {
  const uint32_t *a, *b;
  float* c;
  TilesAt a_at, b_at, c_at;
  bool add;

  void run(int64_t m, int64_t n, int64_t depth) const;
};

}  // namespace moe::ops
