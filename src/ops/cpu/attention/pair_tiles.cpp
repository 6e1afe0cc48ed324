#include "ops/cpu/attention/pair_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {

#if defined(__x86_64__)
namespace {

// Sums of 16 or 32 rows by 16 or 32 columns.
template <bool kTwoRows, bool kTwoCols>
__attribute__((target("amx-tile,amx-bf16"))) void sum_tiles(const PairTiles& p, int64_t depth) {
  const long a_row = p.lda * 4, b_row = p.ldb * 4, c_row = p.ldc * 4;
  const auto* a = reinterpret_cast<const char*>(p.a);
  const auto* b = reinterpret_cast<const char*>(p.b);
  auto* c = reinterpret_cast<char*>(p.c);
  // GCC's tile intrinsics are statements.
  // clang-format off
  if (p.add) {
    _tile_loadd(0, c, c_row);
    if constexpr (kTwoCols) { _tile_loadd(1, c + 64, c_row); }
    if constexpr (kTwoRows) { _tile_loadd(2, c + 16 * c_row, c_row); }
    if constexpr (kTwoRows && kTwoCols) { _tile_loadd(3, c + 16 * c_row + 64, c_row); }
  } else {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kPairTile, a += 64, b += kPairTile * b_row) {
    _tile_loadd(4, a, a_row); _tile_loadd(6, b, b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoCols) { _tile_loadd(7, b + 64, b_row); _tile_dpbf16ps(1, 4, 7); }
    if constexpr (kTwoRows) { _tile_loadd(5, a + 16 * a_row, a_row); _tile_dpbf16ps(2, 5, 6); }
    if constexpr (kTwoRows && kTwoCols) { _tile_dpbf16ps(3, 5, 7); }
  }
  _tile_stored(0, c, c_row);
  if constexpr (kTwoCols) { _tile_stored(1, c + 64, c_row); }
  if constexpr (kTwoRows) { _tile_stored(2, c + 16 * c_row, c_row); }
  if constexpr (kTwoRows && kTwoCols) { _tile_stored(3, c + 16 * c_row + 64, c_row); }
  // clang-format on
}

}  // namespace

void PairTiles::run(int64_t m, int64_t n, int64_t depth) const {
  for (int64_t j = 0; j < n; j += 2 * kPairTile)
    for (int64_t i = 0; i < m; i += 2 * kPairTile) {
      const PairTiles part{a + i * lda, b + j, lda, ldb, c + i * ldc + j, ldc, add};
      const bool rows = i + kPairTile < m, cols = j + kPairTile < n;
      if (rows && cols) sum_tiles<true, true>(part, depth);
      else if (rows) sum_tiles<true, false>(part, depth);
      else if (cols) sum_tiles<false, true>(part, depth);
      else sum_tiles<false, false>(part, depth);
    }
}

#else
void PairTiles::run(int64_t, int64_t, int64_t) const {}
#endif

}  // namespace moe::ops
