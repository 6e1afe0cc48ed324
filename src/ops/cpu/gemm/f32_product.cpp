#include "ops/cpu/gemm/f32_product.h"

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/f32_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/threads.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/ops.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET > HWY_AVX2 && !HWY_ARCH_ARM_A64

void MultiplyColumns(const ProductShape&, const PackLayout&, float*, const float*, const char*,
                     Span) {}
void RunRows(const RowProduct&, int64_t, int64_t) {}

#else

#define MOE_UNROLL _Pragma("GCC unroll 8")

// Six rows by so many vectors of sums leave registers for the weights' vectors and a number of x:
// of 32 registers four, of AVX2's 16 two.
constexpr int kTileRows = kMostTileRows, kTileVectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr int64_t kLine = 64;  // bytes
constexpr int64_t kLanes = hn::MaxLanes(DF32()), kColumns = kTileVectors * kLanes;
// Inner numbers of which a column of blocks (16 or 24 KB in f32) and a tile's rows stay in the
// first-level cache. Sums wait in the output meanwhile, so that a chain goes on where it was. Even.
constexpr int64_t kDepth = HWY_TARGET <= HWY_AVX3 ? 96 : 256;

// ---- many rows ----------------------------------------------------------------------------------

// `in` [kRows, depth], rows in_stride apart; w [depth, kColumns]; out [kRows, kColumns]. From
// `fetched` on so many lines a step are fetched, spread out, for the memory takes no more than a
// few at a time.
struct Tile {
  const float* in;
  int64_t in_stride;
  const float* w;
  int64_t depth;
  float* out;
  int64_t out_stride;
  bool add;
  const char* fetched;
  int64_t lines;
};

template <int kRows>
HWY_NOINLINE void MultiplyTile(const Tile& t) {
  const DF32 d;
  VF32 sum[kRows][kTileVectors];
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kTileVectors; ++v)
      sum[r][v] = t.add ? hn::LoadU(d, t.out + r * t.out_stride + v * kLanes) : hn::Zero(d);
  const float* in = t.in;
  const float* w = t.w;
  const char* fetched = t.fetched;
  for (int64_t k = 0; k < t.depth; ++k, ++in, w += kColumns) {
    for (int64_t line = 0; line < t.lines; ++line, fetched += kLine)
      __builtin_prefetch(fetched, 0, 2);
    VF32 row[kTileVectors];
    MOE_UNROLL for (int v = 0; v < kTileVectors; ++v) row[v] = hn::LoadU(d, w + v * kLanes);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const VF32 x = hn::Set(d, in[r * t.in_stride]);
      MOE_UNROLL for (int v = 0; v < kTileVectors; ++v) sum[r][v] =
          hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kTileVectors; ++v)
      hn::StoreU(sum[r][v], d, t.out + r * t.out_stride + v * kLanes);
}
constexpr void (*kTiles[kTileRows])(const Tile&) = {MultiplyTile<1>, MultiplyTile<2>,
                                                    MultiplyTile<3>, MultiplyTile<4>,
                                                    MultiplyTile<5>, MultiplyTile<6>};

// A tile of which only `columns` exist in the output.
void MultiplyNarrow(const Tile& t, int64_t rows, int64_t columns) {
  float sums[kTileRows * kColumns];
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t r = 0; r < rows && t.add; ++r)
    std::memcpy(sums + r * kColumns, t.out + r * t.out_stride, bytes);
  Tile whole = t;
  whole.out = sums;
  whole.out_stride = kColumns;
  kTiles[rows - 1](whole);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(t.out + r * t.out_stride, sums + r * kColumns, bytes);
}

// What lies in words of two bf16 of neighbouring k, as f32.
using Words = hn::Vec<U32For<DF32> >;
HWY_INLINE Words LoadWords(const char* p) {
  return hn::LoadU(U32For<DF32>(), reinterpret_cast<const uint32_t*>(p));
}
HWY_INLINE VF32 FirstOf(Words pairs) { return hn::BitCast(DF32(), hn::ShiftLeft<16>(pairs)); }
HWY_INLINE VF32 SecondOf(Words pairs) {
  return hn::BitCast(DF32(), hn::And(pairs, hn::Set(U32For<DF32>(), 0xFFFF0000u)));
}

// out [depth, kColumns], of pairs an odd depth with one row more.
void Widen(float* HWY_RESTRICT out, const char* packed, DType dtype, int64_t depth) {
  const DF32 d;
  if (dtype == DType::f16) {
    const Half* halves = reinterpret_cast<const Half*>(packed);
    for (int64_t i = 0; i < depth * kColumns; i += kLanes)
      hn::StoreU(LoadF32(d, halves + i), d, out + i);
    return;
  }
  for (int64_t k = 0; k < depth; k += 2, packed += kColumns * 4, out += 2 * kColumns)
    MOE_UNROLL for (int v = 0; v < kTileVectors; ++v) {
      const Words words = LoadWords(packed + v * kLanes * 4);
      hn::StoreU(FirstOf(words), d, out + v * kLanes);
      hn::StoreU(SecondOf(words), d, out + kColumns + v * kLanes);
    }
}

// ---- a few rows ---------------------------------------------------------------------------------

// What lies this far ahead in each run is fetched: the hardware stops at each page. Zen 3 reads a
// tenth to a fifth more so than a page ahead, which the machines with AVX-512 were tuned with.
constexpr int64_t kAheadBytes = HWY_TARGET == HWY_AVX2 ? 512 : 4096;

// Numbers of k that lie side by side in a column.
template <class W>
constexpr int64_t kStep = std::is_same_v<W, bf16> ? 2 : 1;

// sum += row k of the inner numbers, of pairs k and k + 1; the second only if `both`. w [kRuns]
// leads to kVectors vectors each.
template <class W, int kRows, int kRuns, int kVectors>
HWY_INLINE void AddStep(VF32 (&sum)[kRows][kRuns * kVectors], const char* const* w,
                        const float* const* row, int64_t k, bool both) {
  constexpr int64_t kBytes = kLanes * kStep<W> * static_cast<int64_t>(sizeof(W));  // of a vector
  const DF32 d;
  MOE_UNROLL for (int c = 0; c < kRuns; ++c) {
    MOE_UNROLL for (int64_t line = 0; line < kVectors * kBytes; line += 64)
        __builtin_prefetch(w[c] + kAheadBytes + line, 0, 3);
    MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
      const char* at = w[c] + v * kBytes;
      VF32 first;
      if constexpr (kStep<W> == 2) first = FirstOf(LoadWords(at));
      else first = LoadF32(d, reinterpret_cast<const W*>(at));
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        VF32& s = sum[r][c * kVectors + v];
        s = hn::MulAdd(hn::Set(d, row[r][k]), first, s);
      }
      if (kStep<W> == 1 || !both) continue;
      const VF32 second = SecondOf(LoadWords(at));
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        VF32& s = sum[r][c * kVectors + v];
        s = hn::MulAdd(hn::Set(d, row[r][k + 1]), second, s);
      }
    }
  }
}

// kRuns times kVectors vectors of columns, from `column` on; a run lies in one block.
template <class W, int kRows, int kRuns, int kVectors>
HWY_NOINLINE void RowColumns(const RowProduct& p, int64_t column) {
  constexpr int kAll = kRuns * kVectors;
  constexpr auto kSize = static_cast<int64_t>(sizeof(W));
  const DF32 d;
  const PackLayout& l = *p.layout;
  const float* row[kRows];
  const char* w[kRuns];
  for (int r = 0; r < kRows; ++r) row[r] = static_cast<const float*>(p.row[r]);
  for (int c = 0; c < kRuns; ++c) {
    const int64_t first = column + c * kVectors * kLanes;
    w[c] = static_cast<const char*>(p.packed) +
           (first / l.n_block * l.n_stride + first % l.n_block * kStep<W>)*kSize;
  }
  VF32 total[kRows][kAll], sum[kRows][kAll];
  // g++ for ARM does not see that the first stretch writes them.
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kAll; ++v) total[r][v] =
      hn::Zero(d);
  for (int64_t begin = 0; begin < l.inner; begin += p.stretch) {
    const int64_t end = std::min(begin + p.stretch, l.inner);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kAll; ++v) sum[r][v] =
        hn::Zero(d);
    int64_t k = begin;
    for (; k + kStep<W> <= end; k += kStep<W>) {
      AddStep<W, kRows, kRuns, kVectors>(sum, w, row, k, true);
      MOE_UNROLL for (int c = 0; c < kRuns; ++c) w[c] += l.n_block * kStep<W> * kSize;
    }
    if (k < end) AddStep<W, kRows, kRuns, kVectors>(sum, w, row, k, false);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kAll; ++v)
        total[r][v] = begin == 0 ? sum[r][v] : hn::Add(total[r][v], sum[r][v]);
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kAll; ++v) {
      const int64_t first = column + v * kLanes, left = l.cols - first;
      float* out = static_cast<float*>(p.out) + r * p.out_stride + first;
      if (left >= kLanes) hn::StoreU(total[r][v], d, out);
      else if (left > 0) StoreF32N(total[r][v], d, out, static_cast<size_t>(left));
    }
}

// A tile of rows reads a column of blocks from its first byte to its last and widens it in
// registers: the memory gives long runs fastest, and what one tile alone meets need not be kept.
template <class W>
constexpr void (*kFewRows[kTileRows])(const RowProduct&, int64_t) = {
    RowColumns<W, 1, 1, kTileVectors>, RowColumns<W, 2, 1, kTileVectors>,
    RowColumns<W, 3, 1, kTileVectors>, RowColumns<W, 4, 1, kTileVectors>,
    RowColumns<W, 5, 1, kTileVectors>, RowColumns<W, 6, 1, kTileVectors>};

void MultiplyFew(const ProductShape& s, const PackLayout& l, float* out, const float* in,
                 const char* w, Span columns) {
  RowProduct product{.layout = &l,
                     .dtype = s.weights,
                     .stretch = s.inner,
                     .row = {},
                     .rows = s.rows,
                     .packed = w,
                     .out = out,
                     .out_dtype = DType::f32,
                     .out_stride = s.cols};
  for (int64_t r = 0; r < s.rows; ++r) product.row[r] = in + r * s.inner;
  WithWeight(s.weights, [&](auto weight) {
    for (int64_t c = columns.begin; c < columns.end; ++c)
      kFewRows<decltype(weight)>[s.rows - 1](product, c * kColumns);
  });
}

template <class W, int kRows>
void RowUnits(const RowProduct& p, int64_t begin, int64_t end) {
#if HWY_TARGET <= HWY_AVX3
  // Blocks of 64 columns are read as they lie; a share may begin or end in the middle of one. Of a
  // narrow matrix, such as a router's, only the columns that it has.
  for (int64_t unit = begin; unit < end;) {
    const int64_t column = unit * kRowUnit;
    if (p.layout->cols - column <= kLanes) {
      RowColumns<W, kRows, 1, 1>(p, column);
      ++unit;
    } else if (unit % 2 == 0 && unit + 2 <= end) {
      RowColumns<W, kRows, 1, 4>(p, column);
      unit += 2;
    } else {
      RowColumns<W, kRows, 1, 2>(p, column);
      ++unit;
    }
  }
#else
  // as many sums as registers hold, and enough that none waits for the one before
  constexpr int kRuns = kRows > 2 ? 1 : 2;
  const int64_t last = std::min(end * kRowUnit, p.layout->cols);
  int64_t column = begin * kRowUnit;
  for (; column + (kRuns - 1) * kColumns < last; column += kRuns * kColumns)
    RowColumns<W, kRows, kRuns, kTileVectors>(p, column);
  if (column < last) RowColumns<W, kRows, 1, kTileVectors>(p, column);
#endif
}

void RunRows(const RowProduct& product, int64_t begin, int64_t end) {
  WithWeight(product.dtype, [&](auto weight) {
    with_row_count(product.rows, [&](auto rows) {
      RowUnits<decltype(weight), decltype(rows)::value>(product, begin, end);
    });
  });
}

// ---- more rows ----------------------------------------------------------------------------------

// Where the sums of these rows will be read or written, kColumns of each.
void FetchSums(const float* out, int64_t stride, Span rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < kColumns; c += 16) __builtin_prefetch(out + r * stride + c, 1, 3);
    __builtin_prefetch(out + r * stride + kColumns - 1, 1, 3);
  }
}

// Columns of blocks [begin, end). While a tile is multiplied the next column of weights and the
// next tile's sums are on their way.
void MultiplyColumns(const ProductShape& s, const PackLayout& l, float* out, const float* in,
                     const char* w, Span columns) {
  if (s.rows <= kTileRows && !s.add) return MultiplyFew(s, l, out, in, w, columns);
  const auto size = static_cast<int64_t>(size_of(s.weights));
  const int64_t tiles = (s.rows + kTileRows - 1) / kTileRows;
  alignas(64) float wide[kDepth * kColumns];
  for (int64_t k = 0; k < s.inner; k += kDepth) {
    const int64_t depth = std::min(kDepth, s.inner - k), bytes = depth * kColumns * size,
                  lines = (kColumns * size + tiles * kLine - 1) / (tiles * kLine);
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const char* packed = w + (c * l.n_stride + k * kColumns) * size;
      const char *next = packed + l.n_stride * size, *end = next + bytes;
      if (c + 1 == columns.end) next = end;
      if (s.weights != DType::f32) Widen(wide, packed, s.weights, depth);
      const int64_t left = s.cols - c * kColumns;
      for (int64_t t = 0; t < tiles; ++t, next += depth * lines * kLine) {
        const Span rows = partition(s.rows, static_cast<int>(t), static_cast<int>(tiles));
        FetchSums(out + c * kColumns, s.cols, {rows.end, std::min(s.rows, rows.end + kTileRows)});
        const Tile tile{
            .in = in + rows.begin * s.inner + k,
            .in_stride = s.inner,
            .w = s.weights != DType::f32 ? wide : reinterpret_cast<const float*>(packed),
            .depth = depth,
            .out = out + rows.begin * s.cols + c * kColumns,
            .out_stride = s.cols,
            .add = s.add || k > 0,
            .fetched = next,
            .lines = next < end ? lines : 0};
        if (left < kColumns) MultiplyNarrow(tile, rows.end - rows.begin, left);
        else kTiles[rows.end - rows.begin - 1](tile);
      }
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(MultiplyColumns);
HWY_EXPORT(RunRows);

constexpr int64_t kBlock = 16;  // of k, in a layout

bool has_avx512() { return (usable_targets() & HWY_AVX3) != 0; }

}  // namespace

bool has_f32_products(DType weights) {
  if (!HWY_ARCH_ARM_A64 && (usable_targets() & (HWY_AVX2 | HWY_AVX3)) == 0) return false;
  switch (weights) {
    case DType::f32: return !has_avx512();
    case DType::bf16: return !has_bf16_products();
    case DType::f16: return true;
    default: return false;
  }
}

PackLayout f32_layout(int64_t inner, int64_t cols, DType weights) {
  const int64_t columns = has_avx512() ? 64 : 16, blocks = (inner + kBlock - 1) / kBlock,
                stride = blocks * kBlock * columns;
  return {.inner = inner,
          .cols = cols,
          .k_block = kBlock,
          .n_block = columns,
          .k_stride = kBlock * columns,
          .n_stride = stride,
          .pair = weights == DType::bf16 ? 2 : 1,
          .bytes = static_cast<size_t>((cols + columns - 1) / columns * stride) * size_of(weights)};
}

void multiply_f32(const ProductShape& shape, const PackLayout& layout, float* out, const float* in,
                  const void* w) {
  const int64_t columns = (shape.cols + layout.n_block - 1) / layout.n_block;
  parallel_for(shape.threads, columns, 1, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(MultiplyColumns)
    (shape, layout, out, in, static_cast<const char*>(w), {begin, end});
  });
}

void run_rows_f32(const RowProduct& product, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RunRows)(product, begin, end);
}

}  // namespace moe::ops
#endif  // HWY_ONCE
