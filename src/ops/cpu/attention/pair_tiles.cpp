#include "ops/cpu/attention/pair_tiles.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {

#if defined(__x86_64__)
namespace {

// Of sums of 16 or 32 rows by 16 or 32 columns, held in tiles 0 to 3, the depth [begin, end).
template <bool kTwoRows, bool kTwoCols>
__attribute__((target("amx-tile,amx-bf16"))) void sum_tiles(const PairTiles& p, int64_t begin,
                                                            int64_t end, int64_t depth) {
  const long a_row = p.lda * 4, b_row = p.ldb * 4, c_row = p.ldc * 4;
  const auto* a = reinterpret_cast<const char*>(p.a + begin);
  const auto* b = reinterpret_cast<const char*>(p.b + begin * p.ldb);
  auto* c = reinterpret_cast<char*>(p.c);
  // GCC's tile intrinsics are statements.
  // clang-format off
  if (begin == 0) {
    if (p.add) {
      _tile_loadd(0, c, c_row);
      if constexpr (kTwoCols) { _tile_loadd(1, c + 64, c_row); }
      if constexpr (kTwoRows) { _tile_loadd(2, c + 16 * c_row, c_row); }
      if constexpr (kTwoRows && kTwoCols) { _tile_loadd(3, c + 16 * c_row + 64, c_row); }
    } else {
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    }
  }
  for (int64_t k = begin; k < end; k += kPairTile, a += 64, b += kPairTile * b_row) {
    _tile_loadd(4, a, a_row); _tile_loadd(6, b, b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoCols) { _tile_loadd(7, b + 64, b_row); _tile_dpbf16ps(1, 4, 7); }
    if constexpr (kTwoRows) { _tile_loadd(5, a + 16 * a_row, a_row); _tile_dpbf16ps(2, 5, 6); }
    if constexpr (kTwoRows && kTwoCols) { _tile_dpbf16ps(3, 5, 7); }
  }
  if (end < depth) return;
  _tile_stored(0, c, c_row);
  if constexpr (kTwoCols) { _tile_stored(1, c + 64, c_row); }
  if constexpr (kTwoRows) { _tile_stored(2, c + 16 * c_row, c_row); }
  if constexpr (kTwoRows && kTwoCols) { _tile_stored(3, c + 16 * c_row + 64, c_row); }
  // clang-format on
}

// The same of 16 rows by 64 columns. A tile of sums is 52 cycles in the making for the 16 that its
// products take: with few rows, four beside each other keep the unit busy.
__attribute__((target("amx-tile,amx-bf16"))) void sum_row_of_tiles(const PairTiles& p,
                                                                   int64_t begin, int64_t end,
                                                                   int64_t depth) {
  const long a_row = p.lda * 4, b_row = p.ldb * 4, c_row = p.ldc * 4;
  const auto* a = reinterpret_cast<const char*>(p.a + begin);
  const auto* b = reinterpret_cast<const char*>(p.b + begin * p.ldb);
  auto* c = reinterpret_cast<char*>(p.c);
  // clang-format off
  if (begin == 0) {
    if (p.add) {
      _tile_loadd(0, c, c_row); _tile_loadd(1, c + 64, c_row);
      _tile_loadd(2, c + 128, c_row); _tile_loadd(3, c + 192, c_row);
    } else {
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    }
  }
  for (int64_t k = begin; k < end; k += kPairTile, a += 64, b += kPairTile * b_row) {
    _tile_loadd(4, a, a_row);
    _tile_loadd(5, b, b_row); _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + 64, b_row); _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b + 128, b_row); _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b + 192, b_row); _tile_dpbf16ps(3, 4, 5);
  }
  if (end < depth) return;
  _tile_stored(0, c, c_row); _tile_stored(1, c + 64, c_row);
  _tile_stored(2, c + 128, c_row); _tile_stored(3, c + 192, c_row);
  // clang-format on
}

// Where a part of the sums stands, and how many columns it has: what is left of a part's room, 16
// rows by 64 columns of few rows, else 32 by 32.
struct PartOfSums {
  int64_t row, col, cols;
};
PartOfSums part_of_sums(int64_t m, int64_t n, int64_t row, int64_t col) {
  const bool wide = m <= kPairTile && n - col >= 4 * kPairTile;
  return {row, col, wide ? 4 * kPairTile : std::min(n - col, 2 * kPairTile)};
}

// The part's sums of a product with m rows, over [begin, end) of `depth`.
void sum_part(const PairTiles& p, int64_t m, const PartOfSums& at, int64_t begin, int64_t end,
              int64_t depth) {
  const PairTiles part{p.a + at.row * p.lda,          p.b + at.col, p.lda, p.ldb,
                       p.c + at.row * p.ldc + at.col, p.ldc,        p.add};
  const bool rows = at.row + kPairTile<m, cols = at.cols> kPairTile;
  if (at.cols > 2 * kPairTile) sum_row_of_tiles(part, begin, end, depth);
  else if (rows && cols) sum_tiles<true, true>(part, begin, end, depth);
  else if (rows) sum_tiles<true, false>(part, begin, end, depth);
  else if (cols) sum_tiles<false, true>(part, begin, end, depth);
  else sum_tiles<false, false>(part, begin, end, depth);
}

}  // namespace

void PairTiles::run(int64_t m, int64_t n, int64_t depth) const {
  TileSteps steps;
  steps.add(*this, m, n, depth);
  steps.finish();
}

void TileSteps::work(bool one) {
  const Work& w = work_[done_];
  const PartOfSums part = part_of_sums(w.m, w.n, row_, col_);
  const int64_t end = one ? at_ + kPairTile : w.depth;
  sum_part(w.product, w.m, part, at_, end, w.depth);
  at_ = end;
  if (at_ < w.depth) return;
  at_ = 0;
  row_ += 2 * kPairTile;
  if (row_ < w.m) return;
  row_ = 0;
  col_ += part.cols;
  if (col_ < w.n) return;
  col_ = 0;
  ++done_;
}

#else
void PairTiles::run(int64_t, int64_t, int64_t) const {}
void TileSteps::work(bool) { ++done_; }
#endif

void TileSteps::add(const PairTiles& product, int64_t m, int64_t n, int64_t depth) {
  work_[added_++] = {product, m, n, (depth + kPairTile - 1) / kPairTile * kPairTile};
}

void TileSteps::finish() {
  while (done_ < added_) work(false);
  added_ = done_ = 0;
}

}  // namespace moe::ops
