#include "ops/cpu/attention/pair_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {

#if defined(__x86_64__)
namespace {

// GCC's tile intrinsics are statements.
// clang-format off

constexpr int64_t kWord = 4;  // bytes

// 32 rows by 32 columns of sums, in tiles 0 to 3.
struct FourSums {
  char* at = nullptr;
  int64_t row, down, right;  // bytes
};

__attribute__((target("amx-tile"))) void store_sums(FourSums& sums) {
  if (sums.at == nullptr) return;
  _tile_stored(0, sums.at, sums.row);
  _tile_stored(1, sums.at + sums.right, sums.row);
  _tile_stored(2, sums.at + sums.down, sums.row);
  _tile_stored(3, sums.at + sums.down + sums.right, sums.row);
  sums.at = nullptr;
}

// Sums of 32 rows by 32 columns, which stay in tiles 0 to 3 for `before` to say where they belong.
// A sum is 52 cycles in the making: each tile of those before is stored just before it is used
// again, so that the unit multiplies into the other three meanwhile. All four stored at the end of
// their depth took a quarter more time at a depth of 64 pairs, half as much again at 32.
__attribute__((target("amx-tile,amx-bf16"))) void sum_four(const PairTiles& p, int64_t depth,
                                                           FourSums& before) {
  const auto* a = reinterpret_cast<const char*>(p.a);
  const auto* b = reinterpret_cast<const char*>(p.b);
  const int64_t a_row = p.a_at.row * kWord, a_down = p.a_at.down * kWord,
                a_right = p.a_at.right * kWord, b_row = p.b_at.row * kWord,
                b_down = p.b_at.down * kWord, b_right = p.b_at.right * kWord;
  const FourSums next{reinterpret_cast<char*>(p.c), p.c_at.row * kWord, p.c_at.down * kWord,
                      p.c_at.right * kWord};
  const bool some = before.at != nullptr, add = p.add;
  _tile_loadd(4, a, a_row); _tile_loadd(6, b, b_row);
  if (some) { _tile_stored(0, before.at, before.row); }
  if (add) { _tile_loadd(0, next.at, next.row); } else { _tile_zero(0); }
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + b_right, b_row);
  if (some) { _tile_stored(1, before.at + before.right, before.row); }
  if (add) { _tile_loadd(1, next.at + next.right, next.row); } else { _tile_zero(1); }
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + a_down, a_row);
  if (some) { _tile_stored(2, before.at + before.down, before.row); }
  if (add) { _tile_loadd(2, next.at + next.down, next.row); } else { _tile_zero(2); }
  _tile_dpbf16ps(2, 5, 6);
  if (some) { _tile_stored(3, before.at + before.down + before.right, before.row); }
  if (add) { _tile_loadd(3, next.at + next.down + next.right, next.row); } else { _tile_zero(3); }
  _tile_dpbf16ps(3, 5, 7);
  for (int64_t k = kPairTile; k < depth; k += kPairTile) {
    a += a_right;
    b += b_down;
    _tile_loadd(4, a, a_row); _tile_loadd(6, b, b_row); _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + b_right, b_row); _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + a_down, a_row); _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  before = next;
}

// 16 or 32 rows by 16 or 32 columns, to the end.
template <bool kTwoRows, bool kTwoCols>
__attribute__((target("amx-tile,amx-bf16"))) void sum_tiles(const PairTiles& p, int64_t depth) {
  const auto* a = reinterpret_cast<const char*>(p.a);
  const auto* b = reinterpret_cast<const char*>(p.b);
  auto* c = reinterpret_cast<char*>(p.c);
  const int64_t a_row = p.a_at.row * kWord, a_down = p.a_at.down * kWord,
                b_row = p.b_at.row * kWord, b_right = p.b_at.right * kWord,
                c_row = p.c_at.row * kWord, c_down = p.c_at.down * kWord,
                c_right = p.c_at.right * kWord;
  if (p.add) {
    _tile_loadd(0, c, c_row);
    if constexpr (kTwoCols) { _tile_loadd(1, c + c_right, c_row); }
    if constexpr (kTwoRows) { _tile_loadd(2, c + c_down, c_row); }
  } else {
    _tile_zero(0); _tile_zero(1); _tile_zero(2);
  }
  for (int64_t k = 0; k < depth; k += kPairTile, a += p.a_at.right * kWord,
               b += p.b_at.down * kWord) {
    _tile_loadd(4, a, a_row); _tile_loadd(6, b, b_row); _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoCols) { _tile_loadd(7, b + b_right, b_row); _tile_dpbf16ps(1, 4, 7); }
    if constexpr (kTwoRows) { _tile_loadd(5, a + a_down, a_row); _tile_dpbf16ps(2, 5, 6); }
  }
  _tile_stored(0, c, c_row);
  if constexpr (kTwoCols) { _tile_stored(1, c + c_right, c_row); }
  if constexpr (kTwoRows) { _tile_stored(2, c + c_down, c_row); }
}

// 16 rows by 64 columns: with few rows, four tiles of sums beside each other keep the unit busy.
__attribute__((target("amx-tile,amx-bf16"))) void sum_row_of_tiles(const PairTiles& p,
                                                                   int64_t depth) {
  const auto* a = reinterpret_cast<const char*>(p.a);
  const auto* b = reinterpret_cast<const char*>(p.b);
  auto* c = reinterpret_cast<char*>(p.c);
  const int64_t a_row = p.a_at.row * kWord, b_row = p.b_at.row * kWord,
                b_right = p.b_at.right * kWord, c_row = p.c_at.row * kWord,
                c_right = p.c_at.right * kWord;
  if (p.add) {
    _tile_loadd(0, c, c_row); _tile_loadd(1, c + c_right, c_row);
    _tile_loadd(2, c + 2 * c_right, c_row); _tile_loadd(3, c + 3 * c_right, c_row);
  } else {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kPairTile, a += p.a_at.right * kWord,
               b += p.b_at.down * kWord) {
    _tile_loadd(4, a, a_row);
    _tile_loadd(5, b, b_row); _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + b_right, b_row); _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b + 2 * b_right, b_row); _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b + 3 * b_right, b_row); _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, c, c_row); _tile_stored(1, c + c_right, c_row);
  _tile_stored(2, c + 2 * c_right, c_row); _tile_stored(3, c + 3 * c_right, c_row);
}
// clang-format on

}  // namespace

void PairTiles::run(int64_t m, int64_t n, int64_t depth) const {
  FourSums before;
  for (int64_t col = 0; col < n;) {
    const bool wide = m <= kPairTile && n - col >= 4 * kPairTile, two = n - col > kPairTile;
    for (int64_t row = 0; row < m; row += 2 * kPairTile) {
      PairTiles part = *this;
      part.a += row / kPairTile * a_at.down;
      part.b += col / kPairTile * b_at.right;
      part.c += row / kPairTile * c_at.down + col / kPairTile * c_at.right;
      const bool both = row + kPairTile < m;
      if (both && two) {
        sum_four(part, depth, before);
        continue;
      }
      store_sums(before);
      if (wide) sum_row_of_tiles(part, depth);
      else if (both) sum_tiles<true, false>(part, depth);
      else if (two) sum_tiles<false, true>(part, depth);
      else sum_tiles<false, false>(part, depth);
    }
    col += wide ? 4 * kPairTile : 2 * kPairTile;
  }
  store_sums(before);
}

#else
void PairTiles::run(int64_t, int64_t, int64_t) const {}
#endif

}  // namespace moe::ops
