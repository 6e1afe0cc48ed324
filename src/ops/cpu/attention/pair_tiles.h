// Products of blocks of bf16 pairs in AMX tiles, for attention (bf16.cpp). A sum adds up what each
// sixteen pairs come to, in ascending order: its bits depend on its own row of A and column of B
// alone.
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

// Up to two products worked off a step at a time. Tiles are multiplied beside what the thread does
// between two steps, as long as that uses no tiles.
class TileSteps {
 public:
  // PairTiles::run(), to be done.
  void add(const PairTiles& product, int64_t m, int64_t n, int64_t depth);
  // One tile's depth of 32 x 32 sums, some 64 cycles. Nothing where all is done.
  void step() {
    if (done_ < added_) work(true);
  }
  // All that is left. Must be called before what the products gave is read.
  void finish();

 private:
  struct Work {
    PairTiles product;
    int64_t m, n, depth;
  };
  // Of the sums that are next, one tile's depth or all that is left of it.
  void work(bool one);

  Work work_[2];
  int added_ = 0, done_ = 0;
  int64_t row_ = 0, col_ = 0, at_ = 0;  // where work_[done_] stands
};

}  // namespace moe::ops
