#include "ops/cpu/gemm/tile_product.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/gemm/products.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moe::ops {
namespace {

constexpr int64_t kRows = kTiledRows, kInner = kTiledInner;
// Steps of 32 numbers whose columns stay in the caches while all rows meet them; sums wait in
// scratch meanwhile.
constexpr int64_t kSteps = 64;
// A matrix of fewer bytes may lie in the core's second cache still, from its last rows.
constexpr size_t kLargeMatrix = size_t{1} << 20;

#if defined(__x86_64__)

__attribute__((target("amx-tile,amx-bf16"))) void two_by_two(const TileStep& s) {
  const auto stride = static_cast<long>(s.c_stride);
  // GCC's tile intrinsics are statements.
  // clang-format off
  if (s.first) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  } else {
    _tile_loadd(0, s.c, stride); _tile_loadd(1, s.c + 64, stride);
    _tile_loadd(2, s.c + kRows * stride, stride); _tile_loadd(3, s.c + kRows * stride + 64, stride);
  }
  const char *a0 = s.a0, *a1 = s.a1, *b = s.b;
  for (int64_t i = 0; i < s.steps; ++i, a0 += kTiledBytes, a1 += kTiledBytes, b += s.b_block) {
    _tile_loadd(4, a0, 64); _tile_loadd(6, b, s.b_row);
    _tile_loadd(7, b + 64, s.b_row); _tile_loadd(5, a1, 64);
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, s.c, stride); _tile_stored(1, s.c + 64, stride);
  _tile_stored(2, s.c + kRows * stride, stride); _tile_stored(3, s.c + kRows * stride + 64, stride);
  // clang-format on
}

__attribute__((target("amx-tile,amx-bf16"))) void one_by_two(const TileStep& s) {
  const auto stride = static_cast<long>(s.c_stride);
  // clang-format off
  if (s.first) {
    _tile_zero(0); _tile_zero(1);
  } else {
    _tile_loadd(0, s.c, stride); _tile_loadd(1, s.c + 64, stride);
  }
  const char *a0 = s.a0, *b = s.b;
  for (int64_t i = 0; i < s.steps; ++i, a0 += kTiledBytes, b += s.b_block) {
    _tile_loadd(4, a0, 64); _tile_loadd(6, b, s.b_row); _tile_loadd(7, b + 64, s.b_row);
    _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, s.c, stride); _tile_stored(1, s.c + 64, stride);
  // clang-format on
}

// Reads a panel from memory in order. Loads of tiles, 16 lines far apart, get 11 GB/s of the 16
// that a core of a Xeon with AMX gets so.
__attribute__((target("avx512f"))) void fetch_panel(const char* panel, int64_t bytes) {
  for (const char* end = panel + bytes; panel < end; panel += 256) {
    const __m512i a = _mm512_loadu_si512(panel), b = _mm512_loadu_si512(panel + 64),
                  c = _mm512_loadu_si512(panel + 128), d = _mm512_loadu_si512(panel + 192);
    asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d));
  }
}

__attribute__((target("amx-tile"))) void begin_tiles() { _tile_loadconfig(&kFullTiles); }
__attribute__((target("amx-tile"))) void end_tiles() { _tile_release(); }

// Sums [rows, n_block] of one block of columns, `rows` a multiple of 16.
void sum_block(char* sums, const char* tiles, const char* panel, const PackLayout& l,
               int64_t rows) {
  const int64_t steps = round_up(l.inner, kInner) / kInner, row_of_tiles = steps * kTiledBytes,
                c_stride = l.n_block * 4;
  for (int64_t step = 0; step < steps; step += kSteps)
    for (int64_t n = 0; n < l.n_block; n += 32)
      for (int64_t r = 0; r < rows; r += 2 * kRows) {
        const char* a0 = tiles + r / kRows * row_of_tiles + step * kTiledBytes;
        sum_tiles({.a0 = a0,
                   .a1 = r + kRows < rows ? a0 + row_of_tiles : nullptr,
                   .b = panel + step * l.k_stride * 2 + n * 4,
                   .b_block = l.k_stride * 2,
                   .b_row = l.n_block * 4,
                   .steps = std::min(kSteps, steps - step),
                   .c = sums + r * c_stride + n * 4,
                   .c_stride = c_stride,
                   .first = step == 0});
      }
}

#else
void two_by_two(const TileStep&) {}
void one_by_two(const TileStep&) {}
void begin_tiles() {}
void end_tiles() {}
void fetch_panel(const char*, int64_t) {}
void sum_block(char*, const char*, const char*, const PackLayout&, int64_t) {}
#endif

}  // namespace

void sum_tiles(const TileStep& step) {
  // GCC's tile intrinsics do not say that they read and write memory.
  asm volatile("" ::: "memory");
  step.a1 != nullptr ? two_by_two(step) : one_by_two(step);
  asm volatile("" ::: "memory");
}

TilesInUse::TilesInUse() { begin_tiles(); }
TilesInUse::~TilesInUse() { end_tiles(); }

bool has_tiles() {
  static const bool has =
      has_bf16_products() &&
      find_product({16, 64, 64, DType::bf16, DType::bf16, DType::f32, false, 1}).in_tiles();
  return has;
}

const PackLayout* tile_layout(int64_t inner, int64_t cols, DType dtype) {
  if (dtype != DType::bf16 || !has_tiles()) return nullptr;
  const PackLayout& l = weights_layout(inner, cols, dtype);
  return l.pair == 2 && l.k_block == kInner && l.n_block % 32 == 0 ? &l : nullptr;
}

int64_t tiled_bytes(int64_t rows, int64_t inner) {
  return round_up(rows, kRows) * round_up(inner, kInner) * 2;
}

void tile_rows(void* tiles, const Source& source, int64_t rows, int64_t inner) {
  const int64_t steps = round_up(inner, kInner) / kInner, whole = inner / kInner,
                tail = inner % kInner;
  for (int64_t r = 0; r < round_up(rows, kRows); ++r) {
    char* to = static_cast<char*>(tiles) + r / kRows * steps * kTiledBytes + r % kRows * 64;
    if (r >= rows) {
      for (int64_t i = 0; i < steps; ++i) std::memset(to + i * kTiledBytes, 0, 64);
      continue;
    }
    const int64_t row = source.row == nullptr ? r : source.row[r];
    const char* from =
        static_cast<const char*>(source.data) + bytes_of(source.dtype, row * source.stride);
    if (source.dtype == DType::bf16)
      for (int64_t i = 0; i < whole; ++i) std::memcpy(to + i * kTiledBytes, from + i * 64, 64);
    else
      convert_matrix(to, DType::bf16, kTiledBytes / 2, {from, source.dtype, kInner}, whole, kInner,
                     false);
    if (tail == 0) continue;
    char* last = to + whole * kTiledBytes;
    std::memset(last, 0, 64);
    convert_matrix(last, DType::bf16, kInner,
                   {from + bytes_of(source.dtype, whole * kInner), source.dtype, tail}, 1, tail,
                   false);
  }
}

int64_t TileProduct::sums_bytes() const { return round_up(rows, kRows) * layout->n_block * 4; }

void TileProduct::run_block(void* to, int64_t stride, const void* tiles, const void* panel,
                            int64_t block, void* sums) const {
  const PackLayout& l = *layout;
  const int64_t n = block * l.n_block;
  sum_block(static_cast<char*>(sums), static_cast<const char*>(tiles),
            static_cast<const char*>(panel), l, round_up(rows, kRows));
  convert_matrix(static_cast<char*>(to) + bytes_of(out, n), out, stride,
                 {sums, DType::f32, l.n_block}, rows, std::min(l.n_block, l.cols - n), add);
}

void TileProduct::run(void* to, int64_t stride, const void* tiles, const void* packed,
                      Arena& scratch, int threads) const {
  const ArenaScope scope(scratch);
  auto* sums = static_cast<char*>(
      scratch.alloc_bytes(static_cast<size_t>(threads) * static_cast<size_t>(sums_bytes())));
  parallel_for(threads, column_blocks(*layout), 1, [&](int64_t begin, int64_t end, int thread) {
    const TilesInUse in_use;
    for (int64_t block = begin; block < end; ++block) {
      const char* panel = static_cast<const char*>(packed) + block * panel_bytes();
      if (layout->bytes >= kLargeMatrix) fetch_panel(panel, panel_bytes());
      run_block(to, stride, tiles, panel, block, sums + thread * sums_bytes());
    }
  });
}

}  // namespace moe::ops
