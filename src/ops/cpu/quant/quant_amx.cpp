// Products of many rows with quantised weights in AMX tiles. Weights become bf16 in the shape of
// tiles, two groups of columns and 256 inner numbers at a time, which stay in the first cache until
// all rows have met them; sums wait in memory meanwhile. The vector units take some 85 cycles to
// make a block of a group bf16, the tiles another 20 to 35 for each 16 rows; as bytes, which
// quant_vnni.cpp multiplies, 16 rows take 100 to 140. The law is in quant_product.h.
#include <algorithm>

#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/tile_product.h"
#include "ops/cpu/quant/quant_tiles.h"

#if defined(__x86_64__)
#include "ops/cpu/quant/quant_unpack-inl.h"

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")
namespace moe::ops {
namespace {

// What weights are multiplied by before they are cut to bf16 (quant_product.h).
constexpr float kCut = 1 + 11 / 4096.0f;
constexpr int64_t kGroupBytes = 64, kPairBytes = 2 * kGroupBytes,
                  kBlockBytes = kTiledInner / 2 * kPairBytes,
                  kUnpackedBytes = kChunkBlocks * kBlockBytes;

// The upper halves of `odd` beside those of `even`, which are so cut to bf16.
HWY_INLINE __m512i pair_of(__m512 even, __m512 odd) {
  constexpr __mmask64 kLower = 0x3333333333333333;  // bytes of the lower halves
  const __m512i lower = _mm512_castps_si512(even);
  return _mm512_mask_alignr_epi8(_mm512_castps_si512(odd), kLower, lower, lower, 2);
}

// What a half of a block's bytes are multiplied by, where they stand in their words, and what is
// added: w = scale * (q + offset) + rest.
struct HalfScales {
  __m512 first, second, third, rest;  // second, third: of bytes 8 and 16 bits up
};
template <DType kType>
HWY_INLINE HalfScales half_scales(__m512 scale, __m512 min) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const __m512 enlarged = _mm512_set1_ps(kCut);
  scale = _mm512_mul_ps(scale, enlarged);
  __m512 rest = _mm512_setzero_ps();
  if constexpr (kFormat.has_min) rest = _mm512_mul_ps(min, enlarged);
  if constexpr (kFormat.offset_shift >= 0)
    rest = _mm512_mul_ps(scale, _mm512_set1_ps(-static_cast<float>(1 << kFormat.offset_shift)));
  return {scale, _mm512_mul_ps(scale, _mm512_set1_ps(0x1p-8f)),
          _mm512_mul_ps(scale, _mm512_set1_ps(0x1p-16f)), rest};
}

// Step kStep of a group, four numbers of each column, to two rows of pairs.
template <DType kType, int kStep>
HWY_INLINE void unpack_step(char* to, __m512i q, const HalfScales& s) {
  const auto number = [&](uint32_t mask, __m512 scale) HWY_ATTR {
    const __m512i bits = _mm512_and_si512(q, _mm512_set1_epi32(static_cast<int>(mask)));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(bits), scale, s.rest);
  };
  const __m512 last =
      _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(q, 24)), s.first, s.rest);
  _mm512_store_si512(to + 2 * kStep * kPairBytes,
                     pair_of(number(0xFF, s.first), number(0xFF00, s.second)));
  _mm512_store_si512(to + (2 * kStep + 1) * kPairBytes, pair_of(number(0xFF0000, s.third), last));
}

// A block of two groups as 16 pairs of 32 columns.
template <DType kType>
HWY_INLINE void unpack_block(char* to, const Packed<kType, 2>& w) {
  MOE_UNROLL for (int g = 0; g < 2; ++g) {
    const Scales scales = w.scales_at(g);
    char* group = to + g * kGroupBytes;
    HalfScales half = half_scales<kType>(scales.first, scales.min);
    unpack_step<kType, 0>(group, w.template step<0>(g), half);
    unpack_step<kType, 1>(group, w.template step<1>(g), half);
    unpack_step<kType, 2>(group, w.template step<2>(g), half);
    unpack_step<kType, 3>(group, w.template step<3>(g), half);
    if constexpr (panel_format(kType).halves)
      half = half_scales<kType>(scales.second, scales.second_min);
    unpack_step<kType, 4>(group, w.template step<4>(g), half);
    unpack_step<kType, 5>(group, w.template step<5>(g), half);
    unpack_step<kType, 6>(group, w.template step<6>(g), half);
    unpack_step<kType, 7>(group, w.template step<7>(g), half);
  }
}

// The next blocks of two groups whose panels lie `group_bytes` apart.
struct Unpacking {
  const char* chunk;
  int64_t blocks, group_bytes;
  const char* next;  // fetched meanwhile
  char* to;
};
template <DType kType>
void unpack(const Unpacking& u) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const int64_t scale_bytes = chunk_scale_bytes(kFormat, u.blocks),
                lines = (chunk_bytes(kFormat, u.blocks) / u.blocks + 63) / 64;
  Packed<kType, 2> w;
  const char* next = u.next;
  begin_chunk(w, u.chunk, u.group_bytes);
  for (int64_t b = 0; b < u.blocks; ++b) {
    at_block(w, u.chunk, u.group_bytes, scale_bytes, b);
    for (int64_t line = 0; line < lines; ++line, next += 64) {
      _mm_prefetch(next, _MM_HINT_T1);
      _mm_prefetch(next + u.group_bytes, _MM_HINT_T1);
    }
    unpack_block<kType>(u.to + b * kBlockBytes, w);
  }
}

}  // namespace
}  // namespace moe::ops
HWY_POP_ATTRIBUTES

namespace moe::ops {
namespace {

// Rows whose tiles stay in the second cache while all columns pass, in tiles.
constexpr int64_t kMostTogether = 16;

// Two groups of columns, from `panel` on, of rows that stay in the cache.
struct TiledPair {
  const char *tiles, *panel, *next;  // next: the panels that are multiplied behind these
  int64_t rows, blocks, group_bytes;
  char *unpacked, *sums;
};

void multiply_pair(const TiledPair& p, const PanelFormat& format,
                   void (*unpack)(const Unpacking&)) {
  constexpr auto kRow = static_cast<int64_t>(2 * kQuantColumns * sizeof(float));
  const int64_t row_of_tiles = p.blocks * kTiledBytes;
  const char* panel = p.panel;
  for (int64_t b = 0; b < p.blocks; b += kChunkBlocks) {
    const int64_t n = std::min(kChunkBlocks, p.blocks - b);
    const char* behind = panel + chunk_bytes(format, n);
    unpack({panel, n, p.group_bytes, b + n < p.blocks ? behind : p.next, p.unpacked});
    for (int64_t r = 0; r < p.rows; r += 2 * kTiledRows) {
      const char* a0 = p.tiles + r / kTiledRows * row_of_tiles + b * kTiledBytes;
      sum_tiles({.a0 = a0,
                 .a1 = r + kTiledRows < p.rows ? a0 + row_of_tiles : nullptr,
                 .b = p.unpacked,
                 .b_block = kBlockBytes,
                 .b_row = kPairBytes,
                 .steps = n,
                 .c = p.sums + r * kRow,
                 .c_stride = kRow,
                 .first = b == 0});
    }
    panel = behind;
  }
}

// Where the sums of a pair of groups go, a few lines of each of many rows, is on its way while they
// are made.
void fetch_rows(const char* to, int64_t row_bytes, int64_t rows, int64_t bytes) {
  for (int64_t r = 0; r < rows; ++r, to += row_bytes)
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(to + line, _MM_HINT_T1);
}

// `rows` rows from row `first` on, a multiple of 16, and all columns.
void multiply_rows(const QuantTask& t, const char* tiles, int64_t first, int64_t rows, bool again,
                   char* scratch) {
  const auto unpack_type = with_panel_type(t.dtype, [](auto type) { return &unpack<type.value>; });
  const int64_t group_bytes = static_cast<int64_t>(quant_group_bytes(t.dtype, t.in)),
                row_bytes = bytes_of(t.out.dtype, t.out.stride);
  char* sums = scratch + kUnpackedBytes;
  for (int64_t g = t.groups.begin; g < t.groups.end; g += 2) {
    const char* panel = t.panels + g * group_bytes;
    const QuantNext ahead = panels_ahead(t, g, 2, again);
    // A last group without a neighbour meets the rows twice.
    const bool lone = g + 1 == t.groups.end;
    const int64_t column = g * kQuantColumns,
                  columns = std::min((lone ? 1 : 2) * kQuantColumns, t.out_cols - column);
    char* to = static_cast<char*>(t.out.data) + first * row_bytes + bytes_of(t.out.dtype, column);
    fetch_rows(to, row_bytes, rows, bytes_of(t.out.dtype, columns));
    multiply_pair({tiles, panel, ahead.data != nullptr ? ahead.data : panel, rows,
                   t.in / kQuantBlock, lone ? 0 : group_bytes, scratch, sums},
                  panel_format(t.dtype), unpack_type);
    convert_matrix(to, t.out.dtype, t.out.stride, {sums, DType::f32, 2 * kQuantColumns}, rows,
                   columns, t.out.add);
  }
}

}  // namespace

size_t quant_tiles_scratch_bytes() {
  return static_cast<size_t>(kUnpackedBytes) +
         kMostTogether * kTiledRows * 2 * kQuantColumns * sizeof(float);
}

void quant_multiply_tiles(const QuantOut& out, const void* tiles, int64_t rows, const void* panels,
                          DType dtype, int64_t out_cols, int64_t in, Span groups, QuantNext next,
                          void* scratch) {
  const QuantTask task{out,   nullptr,  nullptr, rows,   static_cast<const char*>(panels),
                       dtype, out_cols, in,      groups, next};
  const int64_t all = round_up(rows, kTiledRows) / kTiledRows,
                parts = (all + kMostTogether - 1) / kMostTogether;
  for (int64_t part = 0; part < parts; ++part) {
    const Span mine = partition(all, static_cast<int>(part), static_cast<int>(parts));
    const int64_t first = mine.begin * kTiledRows;
    multiply_rows(task,
                  static_cast<const char*>(tiles) + mine.begin * (in / kTiledInner) * kTiledBytes,
                  first, std::min(mine.end * kTiledRows, rows) - first, part + 1 < parts,
                  static_cast<char*>(scratch));
  }
}

}  // namespace moe::ops
#else
namespace moe::ops {
size_t quant_tiles_scratch_bytes() { return 0; }
void quant_multiply_tiles(const QuantOut&, const void*, int64_t, const void*, DType, int64_t,
                          int64_t, Span, QuantNext, void*) {}
}  // namespace moe::ops
#endif
