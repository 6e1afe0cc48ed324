// Products of blocks of bf16 pairs in AMX tiles, for attention's backward (bf16.cpp).
#pragma once

#include <cstdint>

namespace moe::ops {

// Rows and columns that a tile has, and pairs that one of its products sums over.
constexpr int64_t kPairTile = 16;

// C = A B, or C += A B, summed over pairs, `depth` of them in whole tiles: what lies beyond it is
// read and must be zero in one of the two and finite in the other. run() is called where TilesInUse
// (gemm/tile_product.h) lives.  A [m, depth]; B [depth, n]; C
// [m, n] f32; m and n multiples of 16; lda, ldb, ldc in elements.
struct PairTiles {
  const uint32_t *a, *b;
  int64_t lda, ldb;
  float* c;
  int64_t ldc;
  bool add;

  void run(int64_t m, int64_t n, int64_t depth) const;
};

}  // namespace moe::ops
