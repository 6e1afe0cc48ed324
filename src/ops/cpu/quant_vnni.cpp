// Products with quantised weights where AVX-512 has integer dot products (VPDPBUSD: 16 lanes of four unsigned by signed bytes); Highway 1.0.3 has no name for
// them. A tile is up to 12 rows by 16 columns: a step of the weights is unpacked once for all rows, whose bytes come as broadcasts of four. Each row needs 8
// dot products, a conversion, a multiplication and an fma for a block, so 80% of the peak of dot products is the bound. The law is in quant_product.h.
#include "ops/cpu/quant_panels.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of vectors that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <hwy/highway.h>
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "ops/cpu/isa.h"

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")
namespace moe::ops {
namespace {

constexpr int kMostTileRows = 12;
// Rows whose records stay in the second cache while all columns pass.
constexpr int64_t kCachedBytes = int64_t{400} << 10;
// How far ahead of the product weights are fetched. The caches fetch ahead themselves, but not past the end of a page.
constexpr int64_t kFetchAhead = 4096;

// Nothing of the standard library that is no template of this file's types: the linker could keep the copy made here for machines without these instructions.
HWY_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <class T, class P>
HWY_INLINE T load_as(const P* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Weights of step kStep and of step 4 + kStep of a block, as bytes q + offset.
template <DType kType, int kStep>
HWY_INLINE void unpack(const char* bits, __m512i& low, __m512i& high) {
  if constexpr (kType == DType::q8_0) {
    low = _mm512_loadu_si512(bits + kStep * 64);
    high = _mm512_loadu_si512(bits + (4 + kStep) * 64);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(0x0F), both = _mm512_loadu_si512(bits + kStep * 64);
  low = _mm512_and_si512(both, nibble);
  high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
  constexpr int kAndOr = 0xEA;  // (a & b) | c
  if constexpr (kType == DType::q5_0 || kType == DType::q5_1 || kType == DType::q5_k) {
    const __m512i bit = _mm512_set1_epi8(0x10), fifth = _mm512_loadu_si512(bits + 256);
    low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(fifth, 4 - kStep), bit, low, kAndOr);
    high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(fifth, kStep), bit, high, kAndOr);
  }
  if constexpr (kType == DType::q6_k) {
    constexpr int kLeft = kStep < 3 ? 4 - 2 * kStep : 0, kRight = kStep < 3 ? 0 : 2;
    const __m512i two = _mm512_set1_epi8(0x30), a = _mm512_loadu_si512(bits + 256), b = _mm512_loadu_si512(bits + 320);
    low = _mm512_ternarylogic_epi32(_mm512_srli_epi16(_mm512_slli_epi16(a, kLeft), kRight), two, low, kAndOr);
    high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(_mm512_slli_epi16(b, kLeft), kRight), two, high, kAndOr);
  }
}

HWY_INLINE __m512 halves(const char* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
HWY_INLINE __m128i bytes(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Of a block: `first` and, of q6_k, `second` for its halves; `min` with its sign.
struct Scales {
  __m512 first, second, min;
};
template <DType kType>
HWY_INLINE Scales scales_of(const char* chunk, __m512 d, __m512 minus_dmin, int64_t block) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const char* p = chunk + (kFormat.is_k ? kSuperBytes : 0) + block * kFormat.scale_bytes;
  if constexpr (kType == DType::q6_k) {
    const __m512 second = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(p + 16))));
    return {_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(p)))), second, d};
  } else if constexpr (kFormat.is_k) {
    const __m512 min = _mm512_mul_ps(minus_dmin, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(p + 16))));
    return {_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(p)))), d, min};
  } else {
    return {halves(p), d, kFormat.has_min ? halves(p + 32) : d};
  }
}

template <int kRows>
struct Tile {
  const QuantRecord* x[kRows];
};

template <DType kType>
HWY_INLINE __m512i start_at(int32_t minus_sum) {
  constexpr int kShift = panel_format(kType).offset_shift;
  if constexpr (kShift < 0) return _mm512_setzero_si512();
  else return _mm512_slli_epi32(_mm512_set1_epi32(minus_sum), kShift);
}

// Steps kStep and 4 + kStep of all rows, each into its own sums, which may be the same.
template <DType kType, int kRows, int kStep>
HWY_INLINE void multiply_step(__m512i (&low_sum)[kRows], __m512i (&high_sum)[kRows], const Tile<kRows>& tile, int64_t at, const char* bits) {
  __m512i low, high;
  unpack<kType, kStep>(bits, low, high);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) low_sum[r] = _mm512_dpbusd_epi32(low_sum[r], low, _mm512_set1_epi32(load_as<int32_t>(tile.x[r][at].q + 4 * kStep)));
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) high_sum[r] = _mm512_dpbusd_epi32(high_sum[r], high, _mm512_set1_epi32(load_as<int32_t>(tile.x[r][at].q + 16 + 4 * kStep)));
}
template <DType kType, int kRows>
HWY_INLINE void multiply_steps(__m512i (&low_sum)[kRows], __m512i (&high_sum)[kRows], const Tile<kRows>& tile, int64_t at, const char* bits) {
  multiply_step<kType, kRows, 0>(low_sum, high_sum, tile, at, bits);
  multiply_step<kType, kRows, 1>(low_sum, high_sum, tile, at, bits);
  multiply_step<kType, kRows, 2>(low_sum, high_sum, tile, at, bits);
  multiply_step<kType, kRows, 3>(low_sum, high_sum, tile, at, bits);
}

// Adds block `at` of the rows to the tile.
template <DType kType, int kRows>
HWY_INLINE void multiply_block(__m512 (&acc)[kRows], const Tile<kRows>& tile, int64_t at, const char* bits, const Scales& scales) {
  __m512i sum[kRows];
  if constexpr (kType == DType::q6_k) {
    __m512i rest[kRows];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[r] = start_at<kType>(tile.x[r][at].minus_half), rest[r] = start_at<kType>(tile.x[r][at].minus_rest);
    multiply_steps<kType, kRows>(sum, rest, tile, at, bits);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_set1_ps(tile.x[r][at].scale);
      acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(scales.first, scale), _mm512_cvtepi32_ps(sum[r]), acc[r]);
      acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(scales.second, scale), _mm512_cvtepi32_ps(rest[r]), acc[r]);
    }
  } else {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[r] = start_at<kType>(tile.x[r][at].minus_sum);
    multiply_steps<kType, kRows>(sum, sum, tile, at, bits);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(scales.first, _mm512_set1_ps(tile.x[r][at].scale)), _mm512_cvtepi32_ps(sum[r]), acc[r]);
      if constexpr (panel_format(kType).has_min) acc[r] = _mm512_fmadd_ps(scales.min, _mm512_set1_ps(tile.x[r][at].scaled_sum), acc[r]);
    }
  }
}

// As to_bf16 does.
HWY_INLINE __m256i round_to_bf16(__m512 v) {
  const __m512i u = _mm512_castps_si512(v), upper = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

HWY_INLINE void store(const QuantOut& out, int64_t row, int64_t column, __mmask16 columns, __m512 v) {
  if (out.dtype == DType::f32) {
    float* p = static_cast<float*>(out.data) + row * out.stride + column;
    if (out.add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(columns, p), v);
    _mm512_mask_storeu_ps(p, columns, v);
  } else {
    uint16_t* p = static_cast<uint16_t*>(out.data) + row * out.stride + column;
    if (out.add) v = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, p)), 16)), v);
    _mm256_mask_storeu_epi16(p, columns, round_to_bf16(v));
  }
}

// Rows [row, row + kRows) by one group of columns.
template <DType kType, int kRows>
void multiply_tile(const QuantTask& task, int64_t row, int64_t group, const char* panel) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const int64_t blocks = task.in / kQuantBlock, stride = record_stride(task.in);
  Tile<kRows> tile;
  for (int r = 0; r < kRows; ++r) tile.x[r] = task.x + (task.row != nullptr ? task.row[row + r] : row + r) * stride;
  __m512 acc[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  const char* chunk = panel;
  for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks) {
    const int64_t n = smaller(kChunkBlocks, blocks - begin);
    const char* bits = chunk + chunk_scale_bytes(kFormat, n);
    __m512 d = _mm512_setzero_ps(), minus_dmin = d;
    if constexpr (kFormat.is_k) d = halves(chunk);
    if constexpr (kFormat.is_k && kFormat.has_min) minus_dmin = _mm512_sub_ps(_mm512_setzero_ps(), halves(chunk + 32));
    for (int64_t b = 0; b < n; ++b) {
      const char* block = bits + b * kFormat.block_bytes;
      if constexpr (kRows <= 4) {
        for (int64_t line = 0; line < kFormat.block_bytes; line += 64) _mm_prefetch(block + kFetchAhead + line, _MM_HINT_T0);
      }
      multiply_block<kType, kRows>(acc, tile, begin + b, block, scales_of<kType>(chunk, d, minus_dmin, b));
    }
    chunk += chunk_bytes(kFormat, n);
  }
  const int64_t column = group * kQuantColumns, columns = smaller(kQuantColumns, task.out_cols - column);
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) store(task.out, row + r, column, mask, acc[r]);
}

using TileKernel = void (*)(const QuantTask&, int64_t, int64_t, const char*);
struct TileKernels {
  TileKernel by_rows[kMostTileRows + 1];
};

template <DType kType, int... kRows>
constexpr TileKernels kernels(std::integer_sequence<int, kRows...>) {
  return {{nullptr, &multiply_tile<kType, kRows + 1>...}};
}
template <DType kType>
constexpr TileKernels kKernels = kernels<kType>(std::make_integer_sequence<int, kMostTileRows>());

const TileKernels& kernels_of(DType dtype) {
  switch (dtype) {
    case DType::q8_0: return kKernels<DType::q8_0>;
    case DType::q4_0: return kKernels<DType::q4_0>;
    case DType::q4_1: return kKernels<DType::q4_1>;
    case DType::q5_0: return kKernels<DType::q5_0>;
    case DType::q5_1: return kKernels<DType::q5_1>;
    case DType::q4_k: return kKernels<DType::q4_k>;
    case DType::q5_k: return kKernels<DType::q5_k>;
    default: return kKernels<DType::q6_k>;
  }
}

}  // namespace

void quant_multiply_vnni(const QuantTask& task) {
  const TileKernels& tiles = kernels_of(task.dtype);
  const auto group_bytes = static_cast<int64_t>(quant_group_bytes(task.dtype, task.in));
  const int64_t record_bytes = record_stride(task.in) * static_cast<int64_t>(sizeof(QuantRecord));
  const int64_t fit = kCachedBytes / record_bytes, together = fit < kMostTileRows ? kMostTileRows : fit;
  for (int64_t first = 0; first < task.rows; first += together) {
    const int64_t rows = smaller(together, task.rows - first), count = (rows + kMostTileRows - 1) / kMostTileRows;
    for (int64_t g = task.groups.begin; g < task.groups.end; ++g) {
      for (int64_t t = 0; t < count; ++t) {  // tiles of nearly the same size
        const Span mine = partition(rows, static_cast<int>(t), static_cast<int>(count));
        tiles.by_rows[mine.end - mine.begin](task, first + mine.begin, g, task.panels + g * group_bytes);
      }
    }
  }
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
void quant_multiply_vnni(const QuantTask&) {}
int64_t vnni_loop(int64_t, int32_t*) { return 0; }
}  // namespace moe::ops
#endif
