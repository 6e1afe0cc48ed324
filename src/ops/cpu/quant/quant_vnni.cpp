// Products with quantised weights where AVX-512 has integer dot products (VPDPBUSD: 16 lanes of
// four unsigned by signed bytes); Highway 1.0.3 has no name for them. A tile is up to 4 rows by two
// groups of columns (or 8 by one): a step of the weights is unpacked once for all rows, whose bytes
// come as broadcasts of four and serve both groups. Each row and group holds three registers: the
// output, the sum of a half and what the first half gave; a larger tile would not fit. For a block
// a row and a group need 8 dot products, a multiplication and two fmas on the same two units, so
// 8/11 = 73% of the peak of dot products is the bound (8/12 = 67% with a minimum, and for q6_k).
// The law is in quant_product.h.
#include "ops/cpu/quant/quant_tiles.h"

#if defined(__x86_64__)
#include <cstring>
#include <utility>

#include "ops/cpu/isa.h"
#include "ops/cpu/quant/quant_unpack-inl.h"

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")
namespace moe::ops {
namespace {

constexpr int kMostTileRows = 8, kMostPairRows = 4;

template <class T, class P>
HWY_INLINE T load_as(const P* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// What a tile is working on: rows at their block, and weights.
template <class Weights, int kRows, int kGroups>
struct Tile {
  const QuantRecord* x[kRows];
  Weights w;
  __m512 acc[kGroups][kRows];
};

template <int kStep, class Weights, int kRows, int kGroups>
HWY_INLINE void multiply_step(__m512i (&sum)[kGroups][kRows],
                              const Tile<Weights, kRows, kGroups>& tile) {
  __m512i w[kGroups];
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) w[g] = tile.w.template step<kStep>(g);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m512i four = _mm512_set1_epi32(load_as<int32_t>(tile.x[r]->q + 4 * kStep));
    MOE_UNROLL for (int g = 0; g < kGroups; ++g) sum[g][r] =
        _mm512_dpbusd_epi32(sum[g][r], w[g], four);
  }
}

// The sums of half a block: four steps.
template <int kHalf, class Weights, int kRows, int kGroups>
HWY_INLINE void multiply_half(__m512i (&sum)[kGroups][kRows],
                              const Tile<Weights, kRows, kGroups>& tile) {
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m512i start = Weights::start(*tile.x[r], kHalf);
    MOE_UNROLL for (int g = 0; g < kGroups; ++g) sum[g][r] = start;
  }
  multiply_step<4 * kHalf>(sum, tile);
  multiply_step<4 * kHalf + 1>(sum, tile);
  multiply_step<4 * kHalf + 2>(sum, tile);
  multiply_step<4 * kHalf + 3>(sum, tile);
}

// Adds a block to the tile. Its scales are read only when they are needed: until then there is no
// register for them.
template <class Weights, int kRows, int kGroups>
HWY_INLINE void multiply_block(Tile<Weights, kRows, kGroups>& tile) {
  __m512i sum[kGroups][kRows];
  __m512 part[kGroups][kRows];
  Scales w[kGroups];
  multiply_half<0>(sum, tile);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(tile.x[r]->scale[0]);
    MOE_UNROLL for (int g = 0; g < kGroups; ++g) part[g][r] =
        _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum[g][r]));
  }
  multiply_half<1>(sum, tile);
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) w[g] = tile.w.scales_at(g);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(tile.x[r]->scale[1]);
    MOE_UNROLL for (int g = 0; g < kGroups; ++g) {
      const __m512 rest = _mm512_cvtepi32_ps(sum[g][r]);
      if constexpr (Weights::kHalves) {
        tile.acc[g][r] = _mm512_fmadd_ps(w[g].first, part[g][r], tile.acc[g][r]);
        tile.acc[g][r] = _mm512_fmadd_ps(w[g].second, _mm512_mul_ps(scale, rest), tile.acc[g][r]);
      } else {
        tile.acc[g][r] =
            _mm512_fmadd_ps(w[g].first, _mm512_fmadd_ps(scale, rest, part[g][r]), tile.acc[g][r]);
      }
    }
  }
  if constexpr (Weights::kHasMin && Weights::kHalves) {
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const QuantRecord& x = *tile.x[r];
      const __m512 first = _mm512_set1_ps(x.scale[0] * static_cast<float>(-x.minus_sum[0])),
                   second = _mm512_set1_ps(x.scale[1] * static_cast<float>(-x.minus_sum[1]));
      MOE_UNROLL for (int g = 0; g < kGroups; ++g) {
        tile.acc[g][r] = _mm512_fmadd_ps(w[g].min, first, tile.acc[g][r]);
        tile.acc[g][r] = _mm512_fmadd_ps(w[g].second_min, second, tile.acc[g][r]);
      }
    }
  } else if constexpr (Weights::kHasMin) {
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const __m512 scaled_sum = _mm512_set1_ps(tile.x[r]->scaled_sum);
      MOE_UNROLL for (int g = 0; g < kGroups; ++g) tile.acc[g][r] =
          _mm512_fmadd_ps(w[g].min, scaled_sum, tile.acc[g][r]);
    }
  }
}

// As to_bf16 does.
HWY_INLINE __m256i round_to_bf16(__m512 v) {
  const __m512i u = _mm512_castps_si512(v), upper = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

HWY_INLINE void store(const QuantOut& out, int64_t row, int64_t column, __mmask16 columns,
                      __m512 v) {
  if (out.dtype == DType::f32) {
    float* p = static_cast<float*>(out.data) + row * out.stride + column;
    if (out.add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(columns, p), v);
    _mm512_mask_storeu_ps(p, columns, v);
  } else {
    uint16_t* p = static_cast<uint16_t*>(out.data) + row * out.stride + column;
    if (out.add)
      v = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(
                            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, p)), 16)),
                        v);
    _mm256_mask_storeu_epi16(p, columns, round_to_bf16(v));
  }
}

// The output of a tile's rows and groups.
template <int kRows, int kGroups>
HWY_INLINE void store_tile(const QuantTask& task, int64_t row, int64_t group,
                           const __m512 (&acc)[kGroups][kRows]) {
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) {
    const int64_t column = (group + g) * kQuantColumns,
                  columns = smaller(kQuantColumns, task.out_cols - column);
    const auto mask = static_cast<__mmask16>((1u << columns) - 1);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) store(task.out, row + r, column, mask, acc[g][r]);
  }
}

HWY_INLINE const QuantRecord* record_of(const QuantTask& task, int64_t row, int64_t stride) {
  return task.x + (task.row != nullptr ? task.row[row] : row) * stride;
}

template <DType kType, int kRows, int kGroups>
void multiply_tile(const QuantTask& task, const TileTask& at) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const int64_t blocks = task.in / kQuantBlock, stride = record_stride(task.in),
                group_bytes = static_cast<int64_t>(quant_group_bytes(kType, task.in));
  Tile<Packed<kType, kGroups>, kRows, kGroups> tile;
  MOE_UNROLL for (int r = 0; r < kRows; ++r) tile.x[r] = record_of(task, at.row + r, stride);
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) MOE_UNROLL for (int r = 0; r < kRows; ++r)
      tile.acc[g][r] = _mm512_setzero_ps();
  const char *chunk = at.panel, *next = at.next;
  for (int64_t left = blocks; left > 0; left -= kChunkBlocks) {
    const int64_t n = smaller(kChunkBlocks, left), scale_bytes = chunk_scale_bytes(kFormat, n);
    begin_chunk(tile.w, chunk, group_bytes);
    for (int64_t b = 0; b < n; ++b) {
      at_block(tile.w, chunk, group_bytes, scale_bytes, b);
      if (kRows == 1 && task.own_ahead > 0) {
        for (const char* bits : tile.w.bits) fetch<kFormat.block_bytes()>(bits + task.own_ahead);
      } else {
        fetch(next, at.next_step);
        next += at.next_step;
      }
      multiply_block(tile);
      MOE_UNROLL for (int r = 0; r < kRows; ++r)++ tile.x[r];
    }
    chunk += chunk_bytes(kFormat, n);
  }
  store_tile(task, at.row, at.group, tile.acc);
}

// A pair of groups shares the broadcasts, of which a core reads only as many as it multiplies.
template <DType kType, int kGroups, class Rows>
struct Tiles;
template <DType kType, int kGroups, int... kRows>
struct Tiles<kType, kGroups, std::integer_sequence<int, kRows...>> {
  static constexpr TileKernel kOf[] = {&multiply_tile<kType, kRows + 1, kGroups>...};
};

// ---- many rows ----------------------------------------------------------------------------------
// Where the two units that multiply do all other work on 512 bits too (Intel's), unpacking a nibble
// costs as much as a dot product. So weights that many rows meet are unpacked once for all of them:
// two groups, 512 inner numbers at a time, which stay in the first cache. Sums wait in memory
// meanwhile. A block's row and group then need 8 dot products and five other operations, 8/13 = 61%
// of the peak; 44% as nibbles.

constexpr int64_t kUnpackedBlocks = 2 * kChunkBlocks, kFewestUnpacked = 24, kMostUnpacked = 96;

// Bytes q + 128 of types that have an offset, q of the others; scales as Scales has them.
struct Unpacked {
  alignas(64) char q[kUnpackedBlocks][8][2][64];
  alignas(64) float scales[kUnpackedBlocks][2][4][kQuantColumns];
};

template <bool kOffset, bool kOfHalves, bool kWithMin>
struct FromUnpacked {
  static constexpr bool kHalves = kOfHalves, kHasMin = kWithMin;
  const char (*q)[2][64];                   // [8], of a block
  const float (*scales)[4][kQuantColumns];  // [2]

  template <int kStep>
  HWY_INLINE __m512i step(int g) const {
    return _mm512_load_si512(q[kStep][g]);
  }
  HWY_INLINE Scales scales_at(int g) const {
    const __m512 first = _mm512_load_ps(scales[g][0]);
    return {first, kHalves ? _mm512_load_ps(scales[g][1]) : first,
            kHasMin ? _mm512_load_ps(scales[g][2]) : first,
            kHasMin && kHalves ? _mm512_load_ps(scales[g][3]) : first};
  }
  static HWY_INLINE __m512i start(const QuantRecord& x, int half) {
    return kOffset ? _mm512_set1_epi32(x.minus_sum_128[half]) : _mm512_setzero_si512();
  }
};

template <DType kType, int kStep>
HWY_INLINE void unpack_step(char (*to)[2][64], const Packed<kType, 2>& w) {
  constexpr int kShift = panel_format(kType).offset_shift;
  MOE_UNROLL for (int g = 0; g < 2; ++g) {
    __m512i q = w.template step<kStep>(g);
    if constexpr (kShift >= 0 && kShift < 7)
      q = _mm512_add_epi8(q, _mm512_set1_epi8(static_cast<char>(128 - (1 << kShift))));
    _mm512_store_si512(to[kStep][g], q);
  }
}

// Returns what lies behind the chunks.
template <DType kType>
const char* unpack(Unpacked& to, const char* chunk, int64_t group_bytes, int64_t blocks) {
  constexpr PanelFormat kFormat = panel_format(kType);
  Packed<kType, 2> w;
  for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
    const int64_t n = smaller(kChunkBlocks, blocks - begin),
                  scale_bytes = chunk_scale_bytes(kFormat, n);
    begin_chunk(w, chunk, group_bytes);
    for (int64_t b = 0; b < n; ++b) {
      at_block(w, chunk, group_bytes, scale_bytes, b);
      char(*q)[2][64] = to.q[begin + b];
      unpack_step<kType, 0>(q, w);
      unpack_step<kType, 1>(q, w);
      unpack_step<kType, 2>(q, w);
      unpack_step<kType, 3>(q, w);
      unpack_step<kType, 4>(q, w);
      unpack_step<kType, 5>(q, w);
      unpack_step<kType, 6>(q, w);
      unpack_step<kType, 7>(q, w);
      MOE_UNROLL for (int g = 0; g < 2; ++g) {
        const Scales scales = w.scales_at(g);
        float(*at)[kQuantColumns] = to.scales[begin + b][g];
        _mm512_store_ps(at[0], scales.first);
        if constexpr (kFormat.halves) _mm512_store_ps(at[1], scales.second);
        if constexpr (kFormat.has_min) _mm512_store_ps(at[2], scales.min);
        if constexpr (kFormat.has_min && kFormat.halves) _mm512_store_ps(at[3], scales.second_min);
      }
    }
    chunk += chunk_bytes(kFormat, n);
  }
  return chunk;
}

// Rows of a tile, blocks [begin, begin + blocks) of them, of which `weights` are the weights.
// sums [kRows, 2, 16] wait here between one stretch and the next.
struct UnpackedTile {
  const Unpacked* weights;
  int64_t row, group, begin, blocks;
  bool last;
  float* sums;
  const char* next;  // fetched meanwhile, `next_step` bytes a block
  int64_t next_step;
};
template <class Weights, int kRows>
void multiply_unpacked(const QuantTask& task, const UnpackedTile& at) {
  const int64_t stride = record_stride(task.in);
  Tile<Weights, kRows, 2> tile;
  MOE_UNROLL for (int r = 0; r < kRows; ++r) tile.x[r] =
      record_of(task, at.row + r, stride) + at.begin;
  MOE_UNROLL for (int g = 0; g < 2; ++g) MOE_UNROLL for (int r = 0; r < kRows; ++r) tile.acc[g][r] =
      at.begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(at.sums + (2 * r + g) * kQuantColumns);
  const char* next = at.next;
  for (int64_t b = 0; b < at.blocks; ++b) {
    tile.w.q = at.weights->q[b];
    tile.w.scales = at.weights->scales[b];
    fetch(next, at.next_step);
    next += at.next_step;
    multiply_block(tile);
    MOE_UNROLL for (int r = 0; r < kRows; ++r)++ tile.x[r];
  }
  if (at.last) return store_tile(task, at.row, at.group, tile.acc);
  MOE_UNROLL for (int g = 0; g < 2; ++g) MOE_UNROLL for (int r = 0; r < kRows; ++r)
      _mm512_store_ps(at.sums + (2 * r + g) * kQuantColumns, tile.acc[g][r]);
}

// An even number of groups.
template <DType kType>
void multiply_pairs(const QuantTask& task) {
  constexpr PanelFormat kFormat = panel_format(kType);
  using Weights = FromUnpacked<(kFormat.offset_shift >= 0), kFormat.halves, kFormat.has_min>;
  constexpr void (*kTiles[])(const QuantTask&, const UnpackedTile&) = {
      multiply_unpacked<Weights, 1>, multiply_unpacked<Weights, 2>, multiply_unpacked<Weights, 3>,
      multiply_unpacked<Weights, 4>};
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(kType, task.in));
  const int64_t blocks = task.in / kQuantBlock,
                parts = (task.rows + kMostUnpacked - 1) / kMostUnpacked;
  Unpacked weights;
  alignas(64) float sums[kMostUnpacked * 2 * kQuantColumns];
  for (int64_t part = 0; part < parts; ++part) {
    const Span rows = partition(task.rows, static_cast<int>(part), static_cast<int>(parts));
    const int64_t tiles = (rows.end - rows.begin + kMostPairRows - 1) / kMostPairRows;
    for (int64_t g = task.groups.begin; g < task.groups.end; g += 2) {
      const char* panel = task.panels + g * group_bytes;
      const QuantNext ahead = panels_ahead(task, g, 2, part + 1 < parts);
      const int64_t step = (ahead.bytes / tiles / blocks + 63) / 64 * 64;
      int64_t fetched = 0;
      for (int64_t b = 0; b < blocks; b += kUnpackedBlocks) {
        const int64_t n = smaller(kUnpackedBlocks, blocks - b);
        panel = unpack<kType>(weights, panel, group_bytes, n);
        for (int64_t t = 0; t < tiles; ++t, fetched += n * step) {
          const Span mine =
              partition(rows.end - rows.begin, static_cast<int>(t), static_cast<int>(tiles));
          kTiles[mine.end - mine.begin - 1](
              task, {&weights, rows.begin + mine.begin, g, b, n, b + n == blocks,
                     sums + mine.begin * 2 * kQuantColumns, ahead.data + fetched,
                     fetched < ahead.bytes ? step : 0});
        }
      }
    }
  }
}

// All of it but for a last group without a neighbour, which is left.
Span multiply_unpacked_pairs(const QuantTask& task) {
  QuantTask pairs = task;
  const int64_t odd = (task.groups.end - task.groups.begin) % 2;
  pairs.groups.end -= odd;
  if (odd != 0)
    pairs.next = {task.panels + pairs.groups.end *
                                    static_cast<int64_t>(quant_group_bytes(task.dtype, task.in)),
                  static_cast<int64_t>(quant_group_bytes(task.dtype, task.in))};
  with_panel_type(task.dtype, [&](auto type) { multiply_pairs<type.value>(pairs); });
  return {pairs.groups.end, task.groups.end};
}

}  // namespace

void quant_multiply_vnni(const QuantTask& whole, bool unpacked) {
  QuantTask task = whole;
  if (unpacked && task.rows >= kFewestUnpacked) task.groups = multiply_unpacked_pairs(task);
  multiply_tiles(task, with_panel_type(task.dtype, [](auto type) {
                   using One = std::make_integer_sequence<int, kMostTileRows>;
                   using Pair = std::make_integer_sequence<int, kMostPairRows>;
                   return TileKernels{Tiles<type.value, 1, One>::kOf, kMostTileRows,
                                      Tiles<type.value, 2, Pair>::kOf, kMostPairRows};
                 }));
}

int64_t vnni_loop(int64_t rounds, int32_t* sink) {
  const __m512i x = _mm512_set1_epi32(sink[12]), y = _mm512_set1_epi32(sink[13]);
  __m512i a[12];
  for (int j = 0; j < 12; ++j) a[j] = _mm512_set1_epi32(sink[j]);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) a[j] = _mm512_dpbusd_epi32(a[j], x, y);
  }
  __m512i sum = _mm512_setzero_si512();
  for (const __m512i& v : a) sum = _mm512_add_epi32(sum, v);
  _mm512_storeu_si512(sink, sum);
  return rounds * 12 * 2 * 64;
}

}  // namespace moe::ops
HWY_POP_ATTRIBUTES
#else
namespace moe::ops {
void quant_multiply_vnni(const QuantTask&, bool) {}
int64_t vnni_loop(int64_t, int32_t*) { return 0; }
}  // namespace moe::ops
#endif
