// Products of small f32 blocks that lie in a thread's scratch, and the ways in and out of it: what
// attention is made of, compiled once for each instruction set. Every element is one chain of fused
// multiply-adds over k in ascending order. Its bits depend on its own row of A and column of B
// alone, not on m, n, the tiling, or the rows beside it: from this the law of rows follows. No
// tails: the columns of B and C are padded to whole vectors (padded_width).

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_ATTENTION_BLOCKS_INL_H_
#undef MOE_OPS_CPU_ATTENTION_BLOCKS_INL_H_
#else
#define MOE_OPS_CPU_ATTENTION_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/simd-inl.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

inline int64_t lanes_f32() { return static_cast<int64_t>(hn::Lanes(DF32())); }
// The smallest whole number of vectors that holds `cols`.
inline int64_t padded_width(int64_t cols) {
  return (cols + lanes_f32() - 1) / lanes_f32() * lanes_f32();
}

template <class T>
T* alloc(Arena& arena, int64_t count) {
  return static_cast<T*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(T)));
}

// Element (m, k) of A lies at data[m * row + k * step]; a transposed block needs no copy. T is
// float, or a pair of bf16 (bf16.cpp).
template <class T>
struct BlockA {
  const T* data;
  int64_t row;
  int64_t step;
};

// What a product does with what C holds: C = A B, C += A B, or C = factor C + A B with a factor for
// each row. start() is of a vector in row `row` of a tile, skip() goes on to the tile below.
struct Written {
  HWY_INLINE VF32 start(const float*, int) const { return hn::Zero(DF32()); }
  void skip(int) {}
};
struct Added {
  HWY_INLINE VF32 start(const float* c, int) const { return hn::LoadU(DF32(), c); }
  void skip(int) {}
};
struct Scaled {
  const float* factor;
  HWY_INLINE VF32 start(const float* c, int row) const {
    return hn::Mul(hn::Set(DF32(), factor[row]), hn::LoadU(DF32(), c));
  }
  void skip(int rows) { factor += rows; }
};

// What a product does beside multiplying: a pair product for each row of B that a tile meets,
// others once for so many of them as kRows says.
struct NothingElse {
  void operator()() const {}
};

// Accumulators that fit the registers: 24 of 32 with AVX-512, 12 of 16 below.
constexpr int kTileRows = 6;
constexpr int kTileVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// sum += a column of A, [kRows], times a row of B, [kVectors * lanes]. Of the two the one is held
// that takes fewer registers.
template <int kRows, int kVectors, class T>
HWY_INLINE void add_row(VF32 (&sum)[kRows][kVectors], const float* HWY_RESTRICT a, int64_t a_row,
                        const T* HWY_RESTRICT b) {
  const DF32 d;
  const int64_t lanes = lanes_f32();
  if constexpr (kRows < kVectors) {
    VF32 x[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) x[i] = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const VF32 row = LoadF32(d, b + j * lanes);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) sum[i][j] = hn::MulAdd(x[i], row, sum[i][j]);
    }
  } else {
    VF32 row[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row[j] = LoadF32(d, b + j * lanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const VF32 x = hn::Set(d, a[i * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(x, row[j], sum[i][j]);
    }
  }
}

// C[0..kRows, 0..kVectors * lanes); B in any type that LoadF32 reads
template <int kRows, int kVectors, class T, class Into, class Else = NothingElse>
HWY_INLINE void tile_product(const BlockA<float>& a, const T* HWY_RESTRICT b, int64_t ldb,
                             float* HWY_RESTRICT c, int64_t ldc, int64_t depth, Into into,
                             Else&& beside = Else()) {
  const DF32 d;
  const int64_t lanes = lanes_f32();
  VF32 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sum[i][j] = into.start(c + i * ldc + j * lanes, i);
  const float* HWY_RESTRICT at = a.data;
  if constexpr (std::is_same_v<std::decay_t<Else>, NothingElse>) {
    for (int64_t k = 0; k < depth; ++k, at += a.step, b += ldb) add_row(sum, at, a.row, b);
  } else {
    for (int64_t left = depth; left > 0; left -= std::decay_t<Else>::kRows) {
      beside();
      const int64_t some = std::min(left, std::decay_t<Else>::kRows);
      for (int64_t k = 0; k < some; ++k, at += a.step, b += ldb) add_row(sum, at, a.row, b);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, c + i * ldc + j * lanes);
}

template <int kVectors, class T, class Into>
HWY_NOINLINE void panel_product(int64_t m, BlockA<float> a, const T* b, int64_t ldb, float* c,
                                int64_t ldc, int64_t depth, Into into) {
  const auto next = [&](int rows) {
    m -= rows;
    a.data += rows * a.row;
    c += rows * ldc;
    into.skip(rows);
  };
  // A chain of fused multiply-adds waits for itself: where a row has one vector only, twice the
  // rows keep the units busy.
  if constexpr (kVectors == 1)
    for (; m >= 2 * kTileRows; next(2 * kTileRows))
      tile_product<2 * kTileRows, 1>(a, b, ldb, c, ldc, depth, into);
  for (; m >= kTileRows; next(kTileRows))
    tile_product<kTileRows, kVectors>(a, b, ldb, c, ldc, depth, into);
  switch (m) {
    case 5: return tile_product<5, kVectors>(a, b, ldb, c, ldc, depth, into);
    case 4: return tile_product<4, kVectors>(a, b, ldb, c, ldc, depth, into);
    case 3: return tile_product<3, kVectors>(a, b, ldb, c, ldc, depth, into);
    case 2: return tile_product<2, kVectors>(a, b, ldb, c, ldc, depth, into);
    case 1: return tile_product<1, kVectors>(a, b, ldb, c, ldc, depth, into);
    default: return;
  }
}

// C = A B into what C holds.  A [m, depth]; B [depth, n]; C [m, n]; n a multiple of the vector's
// lanes.
template <class T, class Into>
inline void block_product(int64_t m, int64_t n, int64_t depth, BlockA<float> a, const T* b,
                          int64_t ldb, float* c, int64_t ldc, Into into) {
  const int64_t lanes = lanes_f32();
  int64_t j = 0;
  for (; j + kTileVectors * lanes <= n; j += kTileVectors * lanes)
    panel_product<kTileVectors>(m, a, b + j, ldb, c + j, ldc, depth, into);
#if HWY_TARGET <= HWY_AVX3
  if (n - j == 3 * lanes) return panel_product<3>(m, a, b + j, ldb, c + j, ldc, depth, into);
  if (n - j == 2 * lanes) return panel_product<2>(m, a, b + j, ldb, c + j, ldc, depth, into);
#endif
  if (j < n) panel_product<1>(m, a, b + j, ldb, c + j, ldc, depth, into);
}

// So many vectors of a tile that the chains of few rows do not wait for themselves.
constexpr int few_rows_vectors(int64_t rows) {
  if (rows == 1) return 8;
  return rows == 2 ? 4 : kTileVectors;
}
// Rows of the next tile where `rows` are left: as even as can be.
constexpr int64_t few_rows_step(int64_t rows) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  return (rows + tiles - 1) / tiles;
}
// Tiles of few_rows_product().
inline int64_t few_rows_tiles(int64_t m, int64_t n) {
  int64_t tiles = 0;
  for (int64_t rows; m > 0; m -= rows) {
    rows = few_rows_step(m);
    const int64_t vectors = n / lanes_f32(), wide = few_rows_vectors(rows);
    tiles += vectors / wide + vectors % wide;
  }
  return tiles;
}

template <int kRows, class T, class Into, class Else>
HWY_NOINLINE void few_rows_panel(int64_t n, int64_t depth, BlockA<float> a, const T* b, int64_t ldb,
                                 float* c, int64_t ldc, Into into, Else& beside) {
  const int64_t lanes = lanes_f32();
  int64_t j = 0;
  for (constexpr int kVectors = few_rows_vectors(kRows); j + kVectors * lanes <= n;
       j += kVectors * lanes)
    tile_product<kRows, kVectors>(a, b + j, ldb, c + j, ldc, depth, into, beside);
  for (; j < n; j += lanes) tile_product<kRows, 1>(a, b + j, ldb, c + j, ldc, depth, into, beside);
}

// As block_product(), with the same bits, of so few rows that B is what takes time: it is read from
// memory.
template <class T, class Into, class Else>
inline void few_rows_product(int64_t m, int64_t n, int64_t depth, BlockA<float> a, const T* b,
                             int64_t ldb, float* c, int64_t ldc, Into into, Else&& beside) {
  for (int64_t rows; m > 0; m -= rows) {
    rows = few_rows_step(m);
    switch (rows) {
      case 1: few_rows_panel<1>(n, depth, a, b, ldb, c, ldc, into, beside); break;
      case 2: few_rows_panel<2>(n, depth, a, b, ldb, c, ldc, into, beside); break;
      case 3: few_rows_panel<3>(n, depth, a, b, ldb, c, ldc, into, beside); break;
      case 4: few_rows_panel<4>(n, depth, a, b, ldb, c, ldc, into, beside); break;
      case 5: few_rows_panel<5>(n, depth, a, b, ldb, c, ldc, into, beside); break;
      default: few_rows_panel<6>(n, depth, a, b, ldb, c, ldc, into, beside);
    }
    a.data += rows * a.row;
    c += rows * ldc;
    into.skip(static_cast<int>(rows));
  }
}

// C = outer tanh(inner C).  C [m, n]; n a multiple of the vector's lanes
HWY_NOINLINE inline void hold_back(int64_t m, int64_t n, float* c, int64_t ldc, float inner,
                                   float outer) {
  const DF32 d;
  const VF32 before = hn::Set(d, inner), after = hn::Set(d, outer);
  for (int64_t i = 0; i < m; ++i, c += ldc)
    for (int64_t j = 0; j < n; j += lanes_f32())
      hn::StoreU(hn::Mul(after, Tanh(d, hn::Mul(hn::LoadU(d, c + j), before))), d, c + j);
}

// dst[c] = scale * src[c] in f32, zero from `cols` to `padded`.
template <class T>
HWY_INLINE void load_row(float* HWY_RESTRICT dst, const T* HWY_RESTRICT src, int64_t cols,
                         int64_t padded, float scale) {
  const DF32 d;
  const VF32 factor = hn::Set(d, scale);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    hn::StoreU(hn::Mul(factor, Load(d, src + c, part)), d, dst + c);
  });
  for (int64_t c = padded_width(cols); c < padded; c += lanes_f32())
    hn::StoreU(hn::Zero(d), d, dst + c);
}

// The same of q8_0 blocks, as dequantise() reads them; cols is whole blocks and so whole vectors.
inline void load_blocks(float* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT block, int64_t cols,
                        float scale) {
  const DF32 d;
  const I32For<DF32> di;
  const hn::Rebind<int8_t, DF32> d8;
  constexpr BlockFormat format = block_of(DType::q8_0);
  const VF32 factor = hn::Set(d, scale);
  for (int64_t c = 0; c < cols; c += format.elements, block += format.bytes) {
    uint16_t half;
    std::memcpy(&half, block, sizeof half);
    const VF32 step = hn::Set(d, f16_to_f32(half));
    for (int64_t i = 0; i < format.elements; i += lanes_f32()) {
      const auto q = hn::ConvertTo(
          d, hn::PromoteTo(
                 di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(block) + sizeof half + i)));
      hn::StoreU(hn::Mul(factor, hn::Mul(step, q)), d, dst + c + i);
    }
  }
}

// Columns [col, col + cols) of row r of t.
inline void load_row(float* dst, const Tensor& t, int64_t r, int64_t col, int64_t cols,
                     int64_t padded, float scale) {
  switch (t.dtype) {
    case DType::bf16: return load_row(dst, t.row<bf16>(r) + col, cols, padded, scale);
    case DType::f16:
      return load_row(
          dst,
          reinterpret_cast<const Half*>(static_cast<const char*>(t.data) + r * t.row_bytes) + col,
          cols, padded, scale);
    case DType::q8_0:
      return load_blocks(
          dst, static_cast<const uint8_t*>(t.data) + r * t.row_bytes + bytes_of(DType::q8_0, col),
          cols, scale);
    default: return load_row(dst, t.row<float>(r) + col, cols, padded, scale);
  }
}

// Columns [col, col + cols) of row r of t = factor * src, rounded once. Adding 0 turns -0 into +0:
// whether a sum of underflowing terms ends as -0 depends on how many exact zeros were added behind
// it, and that may differ between calls.
template <class T>
HWY_INLINE void store_row(T* HWY_RESTRICT dst, const float* HWY_RESTRICT src, int64_t cols,
                          float factor) {
  const DF32 d;
  const VF32 scale = hn::Set(d, factor);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::Add(hn::Mul(scale, hn::LoadU(d, src + c)), hn::Zero(d)), d, dst + c, part);
  });
}
inline void store_row(const Tensor& t, int64_t r, int64_t col, int64_t cols, const float* src,
                      float factor) {
  if (t.dtype == DType::bf16) store_row(t.row<bf16>(r) + col, src, cols, factor);
  else store_row(t.row<float>(r) + col, src, cols, factor);
}

// A block as f32: in place where it can be, else in a scratch copy padded with zeros.
struct BlockB {
  const float* data;
  int64_t ld;
};

// Rows [begin, end) of those from `row` on, columns [col, col + cols) of t; row i lies at data[i *
// ld]. `copy` holds end * padded_width(cols) floats. A block that is used more than a few times is
// better copied: rows of a wide matrix that lie a power of two apart fall on the same few cache
// sets.
inline BlockB view_block(const Tensor& t, int64_t row, int64_t begin, int64_t end, int64_t col,
                         int64_t cols, float* copy, bool used_once) {
  const int64_t padded = padded_width(cols);
  if (used_once && t.dtype == DType::f32 && cols == padded)
    return {t.row<float>(row) + col, t.row_bytes / static_cast<int64_t>(sizeof(float))};
  for (int64_t i = begin; i < end; ++i)
    load_row(copy + i * padded, t, row + i, col, cols, padded, 1.0f);
  return {copy, padded};
}

// dst[c, r] = src[r, c]; rows and cols are whole vectors. In 4 x 4 pieces where a vector holds four
// lanes.  src [rows, cols]; dst [cols, rows]
inline void transpose_block(float* HWY_RESTRICT dst, int64_t ld_dst, const float* HWY_RESTRICT src,
                            int64_t ld_src, int64_t rows, int64_t cols) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) dst[c * ld_dst + r] = src[r * ld_src + c];
#else
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> dd;
  const auto pairs_lower = [dd, d](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(dd, hn::BitCast(dd, a), hn::BitCast(dd, b)));
  };
  const auto pairs_upper = [dd, d](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(dd, hn::BitCast(dd, a), hn::BitCast(dd, b)));
  };
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < cols; c += 4) {
      const float* from = src + r * ld_src + c;
      float* to = dst + c * ld_dst + r;
      const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + ld_src),
                 r2 = hn::LoadU(d, from + 2 * ld_src), r3 = hn::LoadU(d, from + 3 * ld_src);
      const auto low01 = hn::InterleaveLower(d, r0, r1), low23 = hn::InterleaveLower(d, r2, r3);
      const auto high01 = hn::InterleaveUpper(d, r0, r1), high23 = hn::InterleaveUpper(d, r2, r3);
      hn::StoreU(pairs_lower(low01, low23), d, to);
      hn::StoreU(pairs_upper(low01, low23), d, to + ld_dst);
      hn::StoreU(pairs_lower(high01, high23), d, to + 2 * ld_dst);
      hn::StoreU(pairs_upper(high01, high23), d, to + 3 * ld_dst);
    }
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
