// Products with quantised weights on AVX2, which multiplies unsigned by signed bytes into sums of
// two in 16 bits (VPMADDUBSW). Weights as q + offset up to 31 let the four such sums of half a
// block be added in 16 bits (4 * 2 * 31 * 127 < 2^15), up to 63 two of them; then they are widened
// once. Weights of eight bits fill the 16 bits at once, and are taken as |q| times x with q's sign.
// A group of 16 columns is two vectors; a tile is up to 4 rows, whose sums are registers. More rows
// take a block of weights unpacked into the cache once. The law is in quant_product.h.
#include "ops/cpu/quant/quant_tiles.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of vectors that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <hwy/highway.h>
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/isa.h"

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2")
namespace moe::ops {
namespace {

constexpr int kTileRows = 4;   // whose sums are registers
constexpr int kMostRows = 16;  // for which a block is unpacked once
constexpr int kVectors = 2;    // of 8 columns
#define MOE_UNROLL _Pragma("GCC unroll 8")

// Nothing of the standard library that is no template of this file's types: the linker could keep
// the copy made here for machines without these instructions.
HWY_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <class T, class P>
HWY_INLINE T load_as(const P* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HWY_INLINE __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
HWY_INLINE __m128i bytes(const char* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
HWY_INLINE __m256 halves(const char* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Eight bits: weights are multiplied by magnitude and sign, with no offset.
template <DType kType>
constexpr bool kSigned = panel_format(kType).offset_shift == 7;
// Sums of two that 16 bits hold.
template <DType kType>
constexpr int kSumsHeld = kSigned<kType>                               ? 1
                          : panel_format(kType).bits == PanelBits::six ? 2
                                                                       : 4;

// Of a type with a table: its numbers, as step_of gives them.
struct alignas(16) Table {
  int8_t of[16];
};
template <DType kType>
constexpr Table make_table() {
  Table table{};
  const int offset = kSigned<kType> ? 0 : 1 << panel_format(kType).offset_shift;
  for (size_t i = 0; i < 16; ++i)
    table.of[i] = static_cast<int8_t>((*panel_format(kType).table)[i] + offset);
  return table;
}

// Bits of `from` from kFrom on come to stand at kTo and go into `lower` by the mask.
template <int kFrom, int kTo>
HWY_INLINE __m256i with_upper(__m256i lower, __m256i from, char mask) {
  const __m256i moved = _mm256_srli_epi16(_mm256_slli_epi16(from, kFrom < kTo ? kTo - kFrom : 0),
                                          kFrom > kTo ? kFrom - kTo : 0);
  return _mm256_or_si256(_mm256_and_si256(moved, _mm256_set1_epi8(mask)), lower);
}

// The bits of step kStep of a block as they are stored; `bits` are those of 8 columns.
template <PanelBits kBits, int kStep>
HWY_INLINE __m256i stored_step(const char* bits) {
  if constexpr (kBits == PanelBits::eight) return load(bits + kStep * 64);
  if constexpr (kBits == PanelBits::two || kBits == PanelBits::three) {
    const __m256i lower = _mm256_and_si256(
        _mm256_srli_epi16(load(bits + kStep / 4 * 64), kStep % 4 * 2), _mm256_set1_epi8(0x03));
    if constexpr (kBits == PanelBits::three)
      return with_upper<kStep, 2>(lower, load(bits + 128), 0x04);
    return lower;
  }
  const __m256i both = load(bits + kStep % 4 * 64);
  const __m256i lower =
      _mm256_and_si256(kStep < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(0x0F));
  if constexpr (kBits == PanelBits::five)
    return with_upper<kStep, 4>(lower, load(bits + 256), 0x10);
  if constexpr (kBits == PanelBits::six)
    return with_upper<kStep % 4 * 2, 4>(lower, load(bits + 256 + kStep / 4 * 64), 0x30);
  return lower;
}

// The weights of step kStep of a block, 8 columns: as q + offset, or if kSigned as q.
template <DType kType, int kStep>
HWY_INLINE __m256i step_of(const char* bits, int vector) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const __m256i stored = stored_step<kFormat.bits, kStep>(bits + 32 * vector);
  if constexpr (kFormat.table != nullptr) {
    static constexpr Table kTable = make_table<kType>();
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kTable.of))),
        stored);
  }
  if constexpr (kType == DType::q8_0) return _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
  return stored;
}

// Where a tile reads weights: out of the panel, or of a block that was unpacked for many rows.
template <DType kType>
struct Packed {
  const char* bits;
  template <int kStep>
  HWY_INLINE __m256i step(int vector) const {
    return step_of<kType, kStep>(bits, vector);
  }
};
struct alignas(32) Unpacked {
  char bits[8 * 64];
  template <int kStep>
  HWY_INLINE __m256i step(int vector) const {
    return load(bits + kStep * 64 + 32 * vector);
  }
};
template <DType kType, int kStep = 0>
HWY_INLINE void unpack(Unpacked& to, const char* bits) {
  MOE_UNROLL for (int v = 0; v < kVectors; ++v) _mm256_store_si256(
      reinterpret_cast<__m256i*>(to.bits + kStep * 64 + 32 * v), step_of<kType, kStep>(bits, v));
  if constexpr (kStep < 7) unpack<kType, kStep + 1>(to, bits);
}

// Of a block: `first` and, where they have their own, `second` for its halves; mins likewise, with
// their sign. What a type lacks is left as it is.
struct Scales {
  __m256 first[kVectors], second[kVectors], min[kVectors], second_min[kVectors];
};
// 2^(e - 128), as half_power has it.
HWY_INLINE __m256 half_powers(__m128i exponents) {
  const __m256i e = _mm256_cvtepu8_epi32(exponents), one = _mm256_set1_epi32(1);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23),
                small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
}
// p: the block's scales; chunk: those of its chunk, of a k-type.
template <DType kType>
HWY_INLINE void read_scales(Scales& to, const char* p, const char* chunk) {
  constexpr PanelFormat kFormat = panel_format(kType);
  MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
    if constexpr (kFormat.scale == PanelScale::exponent) {
      to.first[v] = half_powers(bytes(p + 8 * v));
    } else if constexpr (kFormat.is_k()) {
      const auto row = [p, v](int i, __m256 unit) HWY_ATTR {
        const __m128i b = bytes(p + 16 * i + 8 * v);
        return _mm256_mul_ps(unit, _mm256_cvtepi32_ps(kFormat.scale == PanelScale::signed_bytes
                                                          ? _mm256_cvtepi8_epi32(b)
                                                          : _mm256_cvtepu8_epi32(b)));
      };
      __m256 d = halves(chunk + 16 * v);
      if constexpr (kFormat.unit != 1) d = _mm256_mul_ps(d, _mm256_set1_ps(kFormat.unit));
      to.first[v] = row(0, d);
      if constexpr (kFormat.halves) to.second[v] = row(1, d);
      if constexpr (kFormat.has_min) {
        const __m256 minus = _mm256_sub_ps(_mm256_setzero_ps(), halves(chunk + 32 + 16 * v));
        to.min[v] = row(kFormat.halves ? 2 : 1, minus);
        if constexpr (kFormat.halves) to.second_min[v] = row(3, minus);
      }
    } else {
      to.first[v] = halves(p + 16 * v);
      if constexpr (kFormat.has_min) to.min[v] = halves(p + 32 + 16 * v);
    }
  }
}

template <int kRows>
using Sums = __m256i[kRows][kVectors];

// sum = or += step kStep, as sums of two in 16 bits, and if kSigned of four in 32.
template <DType kType, int kStep, bool kFirst, int kRows, class Weights>
HWY_INLINE void multiply_step(Sums<kRows>& sum, const Weights& w, const QuantRecord* const* x) {
  __m256i weights[kVectors], magnitude[kVectors];
  MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
    weights[v] = w.template step<kStep>(v);
    if constexpr (kSigned<kType>) magnitude[v] = _mm256_abs_epi8(weights[v]);
  }
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m256i four = _mm256_set1_epi32(load_as<int32_t>(x[r]->q + 4 * kStep));
    MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
      __m256i pairs;
      if constexpr (kSigned<kType>)
        pairs = _mm256_madd_epi16(
            _mm256_maddubs_epi16(magnitude[v], _mm256_sign_epi8(four, weights[v])),
            _mm256_set1_epi16(1));
      else pairs = _mm256_maddubs_epi16(weights[v], four);
      if constexpr (kFirst) sum[r][v] = pairs;
      else if constexpr (kSigned<kType>) sum[r][v] = _mm256_add_epi32(sum[r][v], pairs);
      else sum[r][v] = _mm256_add_epi16(sum[r][v], pairs);
      // Left to itself GCC 12 adds the steps in pairs, whose sums find no registers.
      __asm__("" : "+x"(sum[r][v]));
    }
  }
}

// sum[r][v] = what the first or second half of a block gives, in f32.
template <DType kType, int kHalf, int kRows, class Weights>
HWY_INLINE void multiply_half(__m256 (&sum)[kRows][kVectors], const Weights& w,
                              const QuantRecord* const* x) {
  constexpr int kStep = 4 * kHalf, kShift = panel_format(kType).offset_shift;
  const __m256i one = _mm256_set1_epi16(1);
  Sums<kRows> total, late;
  multiply_step<kType, kStep, true, kRows>(total, w, x);
  multiply_step<kType, kStep + 1, false, kRows>(total, w, x);
  constexpr bool kApart = kSumsHeld<kType> == 2;
  multiply_step<kType, kStep + 2, kApart, kRows>(kApart ? late : total, w, x);
  multiply_step<kType, kStep + 3, false, kRows>(kApart ? late : total, w, x);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    [[maybe_unused]] const __m256i start =
        _mm256_slli_epi32(_mm256_set1_epi32(x[r]->minus_sum[kHalf]), kShift & 31);
    MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
      __m256i all = total[r][v];
      if constexpr (!kSigned<kType>) {
        all = _mm256_madd_epi16(all, one);
        if constexpr (kApart) all = _mm256_add_epi32(all, _mm256_madd_epi16(late[r][v], one));
        if constexpr (kShift >= 0) all = _mm256_add_epi32(all, start);
      }
      sum[r][v] = _mm256_cvtepi32_ps(all);
    }
  }
}

using Acc = float[kQuantColumns];

// acc += a block of kRows rows. x: their records.
template <DType kType, int kRows, class Weights>
HWY_INLINE void multiply_block(Acc* acc, const Weights& w, const Scales& scales,
                               const QuantRecord* const* x) {
  constexpr PanelFormat kFormat = panel_format(kType);
  __m256 part[kRows][kVectors], rest[kRows][kVectors];
  multiply_half<kType, 0>(part, w, x);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) MOE_UNROLL for (int v = 0; v < kVectors; ++v)
      part[r][v] = _mm256_mul_ps(_mm256_set1_ps(x[r]->scale[0]), part[r][v]);
  multiply_half<kType, 1>(rest, w, x);
  MOE_UNROLL for (int r = 0; r < kRows; ++r) {
    const __m256 scale = _mm256_set1_ps(x[r]->scale[1]);
    MOE_UNROLL for (int v = 0; v < kVectors; ++v) {
      __m256 sum = _mm256_loadu_ps(acc[r] + 8 * v);
      if constexpr (kFormat.halves) {
        sum = _mm256_fmadd_ps(scales.first[v], part[r][v], sum);
        sum = _mm256_fmadd_ps(scales.second[v], _mm256_mul_ps(scale, rest[r][v]), sum);
      } else {
        sum = _mm256_fmadd_ps(scales.first[v], _mm256_fmadd_ps(scale, rest[r][v], part[r][v]), sum);
      }
      if constexpr (kFormat.has_min && kFormat.halves) {
        sum = _mm256_fmadd_ps(
            scales.min[v], _mm256_set1_ps(x[r]->scale[0] * static_cast<float>(-x[r]->minus_sum[0])),
            sum);
        sum = _mm256_fmadd_ps(
            scales.second_min[v],
            _mm256_set1_ps(x[r]->scale[1] * static_cast<float>(-x[r]->minus_sum[1])), sum);
      } else if constexpr (kFormat.has_min) {
        sum = _mm256_fmadd_ps(scales.min[v], _mm256_set1_ps(x[r]->scaled_sum), sum);
      }
      _mm256_storeu_ps(acc[r] + 8 * v, sum);
    }
  }
}

// As to_bf16 does; 8 numbers of 16 bits.
HWY_INLINE __m128i round_to_bf16(__m256 v) {
  const __m256i u = _mm256_castps_si256(v), upper = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i bits =
      _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

// `columns` of acc to row `row`, from column `column` on. A tail goes through a buffer, so that
// nothing beyond it is read or written.
HWY_INLINE void store_row(const QuantOut& out, int64_t row, int64_t column, int64_t columns,
                          const Acc& acc) {
  const auto size = static_cast<int64_t>(out.dtype == DType::f32 ? sizeof(float) : sizeof(bf16));
  char* to = static_cast<char*>(out.data) + (row * out.stride + column) * size;
  alignas(32) char buffer[kQuantColumns * sizeof(float)];
  char* p = columns == kQuantColumns ? to : buffer;
  const auto tail = static_cast<size_t>(columns * size);
  if (p == buffer && out.add) std::memcpy(p, to, tail);
  for (int v = 0; v < kVectors; ++v) {
    __m256 sum = _mm256_loadu_ps(acc + 8 * v);
    if (out.dtype == DType::f32) {
      float* at = reinterpret_cast<float*>(p) + 8 * v;
      if (out.add) sum = _mm256_add_ps(_mm256_loadu_ps(at), sum);
      _mm256_storeu_ps(at, sum);
    } else {
      __m128i* at = reinterpret_cast<__m128i*>(p) + v;
      if (out.add)
        sum = _mm256_add_ps(
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16)),
            sum);
      _mm_storeu_si128(at, round_to_bf16(sum));
    }
  }
  if (p == buffer) std::memcpy(to, p, tail);
}

// f(bits, scales) for each block of a panel, in order.
template <DType kType, class F>
HWY_INLINE void each_block(const QuantTask& task, const TileTask& at, F&& f) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const bool own = at.rows == 1 && task.own_ahead > 0;
  const char *chunk = at.panel, *next = at.next;
  for (int64_t left = task.in / kQuantBlock; left > 0; left -= kChunkBlocks) {
    const int64_t n = smaller(kChunkBlocks, left);
    const char *bits = chunk + chunk_scale_bytes(kFormat, n),
               *scales = chunk + (kFormat.is_k() ? kSuperBytes : 0);
    for (int64_t b = 0; b < n; ++b) {
      const char* block_bits = bits + b * kFormat.block_bytes();
      if (own) {
        fetch<kFormat.block_bytes()>(block_bits + task.own_ahead);
      } else {
        fetch(next, at.next_step);
        next += at.next_step;
      }
      Scales block;
      read_scales<kType>(block, scales + b * kFormat.scale_bytes, chunk);
      f(block_bits, block);
    }
    chunk += chunk_bytes(kFormat, n);
  }
}

HWY_INLINE const QuantRecord* record_of(const QuantTask& task, int64_t row) {
  return task.x + (task.row != nullptr ? task.row[row] : row) * record_stride(task.in);
}
HWY_INLINE void store_rows(const QuantTask& task, const TileTask& at, const Acc* acc) {
  const int64_t column = at.group * kQuantColumns,
                columns = smaller(kQuantColumns, task.out_cols - column);
  for (int64_t r = 0; r < at.rows; ++r) store_row(task.out, at.row + r, column, columns, acc[r]);
}

template <DType kType, int kRows>
void multiply_few(const QuantTask& task, const TileTask& at) {
  const QuantRecord* x[kRows];
  alignas(32) Acc acc[kRows] = {};
  MOE_UNROLL for (int r = 0; r < kRows; ++r) x[r] = record_of(task, at.row + r);
  each_block<kType>(task, at, [&](const char* bits, const Scales& scales) HWY_ATTR {
    multiply_block<kType, kRows>(acc, Packed<kType>{bits}, scales, x);
    MOE_UNROLL for (int r = 0; r < kRows; ++r)++ x[r];
  });
  store_rows(task, at, acc);
}

template <DType kType>
void multiply_many(const QuantTask& task, const TileTask& at) {
  const QuantRecord* x[kMostRows];
  alignas(32) Acc acc[kMostRows] = {};
  for (int64_t r = 0; r < at.rows; ++r) x[r] = record_of(task, at.row + r);
  each_block<kType>(task, at, [&](const char* bits, const Scales& scales) HWY_ATTR {
    Unpacked w;
    unpack<kType>(w, bits);
    int64_t r = 0;
    for (; r + kTileRows <= at.rows; r += kTileRows)
      multiply_block<kType, kTileRows>(acc + r, w, scales, x + r);
    switch (at.rows - r) {
      case 3: multiply_block<kType, 3>(acc + r, w, scales, x + r); break;
      case 2: multiply_block<kType, 2>(acc + r, w, scales, x + r); break;
      case 1: multiply_block<kType, 1>(acc + r, w, scales, x + r); break;
      default: break;
    }
    for (r = 0; r < at.rows; ++r) ++x[r];
  });
  store_rows(task, at, acc);
}

// By rows - 1.
template <DType kType>
struct Kernels {
  TileKernel of[kMostRows] = {&multiply_few<kType, 1>, &multiply_few<kType, 2>,
                              &multiply_few<kType, 3>, &multiply_few<kType, kTileRows>};
  constexpr Kernels() {
    for (int i = kTileRows; i < kMostRows; ++i) of[i] = &multiply_many<kType>;
  }
};
template <DType kType>
constexpr Kernels<kType> kKernels;

}  // namespace

void quant_multiply_avx2(const QuantTask& task) {
  multiply_tiles(task, with_panel_type(task.dtype, [](auto type) {
                   return TileKernels{kKernels<type.value>.of, kMostRows};
                 }));
}

int64_t avx2_loop(int64_t rounds, int32_t* sink) {
  const __m256i x = _mm256_set1_epi32(sink[12]), y = _mm256_set1_epi32(sink[13]);
  __m256i a[8];
  for (int j = 0; j < 8; ++j) a[j] = _mm256_set1_epi32(sink[j]);
  for (int64_t i = 0; i < rounds; ++i) {
    // Not told apart from its last round, the compiler would multiply once for all.
    __m256i weights = x;
    __asm__ volatile("" : "+x"(weights));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) a[j] = _mm256_add_epi16(a[j], _mm256_maddubs_epi16(weights, a[j]));
  }
  __m256i sum = y;
  for (const __m256i& v : a) sum = _mm256_add_epi16(sum, v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sink), sum);
  return rounds * 8 * 2 * 32;
}

}  // namespace moe::ops
HWY_POP_ATTRIBUTES
#else
namespace moe::ops {
void quant_multiply_avx2(const QuantTask&) {}
int64_t avx2_loop(int64_t, int32_t*) { return 0; }
}  // namespace moe::ops
#endif
