// Reading panels of quantised weights (quant_panels.h) with AVX-512: a step's bytes of 16 columns,
// and the scales of a block. For quant_vnni.cpp, which multiplies these bytes, and quant_amx.cpp,
// which makes bf16 of them.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of vectors that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <hwy/highway.h>
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/quant/quant_panels.h"

HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")
namespace moe::ops {
namespace {

// Loops over rows and groups are unrolled: what they index are registers.
#define MOE_UNROLL _Pragma("GCC unroll 8")

// Nothing of the standard library that is no template of this file's types: the linker could keep
// the copy made here for machines without these instructions.
HWY_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Bits of `from` from kFrom on come to stand at kTo and go into `lower` by the mask.
template <int kFrom, int kTo>
HWY_INLINE __m512i with_upper(__m512i lower, __m512i from, char mask) {
  constexpr int kAndOr = 0xEA;  // (a & b) | c
  const __m512i moved = _mm512_srli_epi16(_mm512_slli_epi16(from, kFrom < kTo ? kTo - kFrom : 0),
                                          kFrom > kTo ? kFrom - kTo : 0);
  return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(mask), lower, kAndOr);
}

// The bits of step kStep of a block as they are stored.
template <PanelBits kBits, int kStep>
HWY_INLINE __m512i stored_step(const char* bits) {
  const auto load = [bits](int64_t i) HWY_ATTR { return _mm512_loadu_si512(bits + i * 64); };
  if constexpr (kBits == PanelBits::eight) return load(kStep);
  if constexpr (kBits == PanelBits::two || kBits == PanelBits::three) {
    const __m512i lower =
        _mm512_and_si512(_mm512_srli_epi16(load(kStep / 4), kStep % 4 * 2), _mm512_set1_epi8(0x03));
    if constexpr (kBits == PanelBits::three) return with_upper<kStep, 2>(lower, load(2), 0x04);
    return lower;
  }
  const __m512i both = load(kStep % 4);
  const __m512i lower =
      _mm512_and_si512(kStep < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(0x0F));
  if constexpr (kBits == PanelBits::five) return with_upper<kStep, 4>(lower, load(4), 0x10);
  if constexpr (kBits == PanelBits::six)
    return with_upper<kStep % 4 * 2, 4>(lower, load(4 + kStep / 4), 0x30);
  return lower;
}

// Weights of step kStep of a block, as bytes q + offset.
template <DType kType, int kStep>
HWY_INLINE __m512i step_of(const char* bits) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const __m512i stored = stored_step<kFormat.bits, kStep>(bits);
  if constexpr (kFormat.table != nullptr) {
    alignas(16) static constexpr std::array<uint8_t, 16> kTable = table_bits(kFormat);
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTable.data()))),
        stored);
  }
  return stored;
}

HWY_INLINE __m512 halves(const char* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HWY_INLINE __m128i bytes(const char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// 2^(e - 128), as half_power has it.
HWY_INLINE __m512 half_powers(__m128i exponents) {
  const __m512i e = _mm512_cvtepu8_epi32(exponents), one = _mm512_set1_epi32(1);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
                small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return _mm512_castsi512_ps(
      _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(e, one), small, normal));
}

// Of a block: `first` and, where they have their own, `second` for its halves; mins likewise, with
// their sign.
struct Scales {
  __m512 first, second, min, second_min;
};
template <DType kType>
HWY_INLINE Scales scales_of(const char* p, __m512 d, __m512 minus_dmin) {
  constexpr PanelFormat kFormat = panel_format(kType);
  const auto row = [p](int i, __m512 unit) {
    const __m128i b = bytes(p + 16 * i);
    return _mm512_mul_ps(unit, _mm512_cvtepi32_ps(kFormat.scale == PanelScale::signed_bytes
                                                      ? _mm512_cvtepi8_epi32(b)
                                                      : _mm512_cvtepu8_epi32(b)));
  };
  if constexpr (kFormat.scale == PanelScale::exponent) {
    return {half_powers(bytes(p)), d, d, d};
  } else if constexpr (kFormat.is_k()) {
    constexpr int kMin = kFormat.halves ? 2 : 1;
    Scales scales{row(0, d), d, d, d};
    if constexpr (kFormat.halves) scales.second = row(1, d);
    if constexpr (kFormat.has_min) scales.min = row(kMin, minus_dmin);
    if constexpr (kFormat.has_min && kFormat.halves) scales.second_min = row(3, minus_dmin);
    return scales;
  } else {
    return {halves(p), d, kFormat.has_min ? halves(p + 32) : d, d};
  }
}

// Weights of a tile as they lie in their panels: groups at the bits and scales of a block (d and
// minus_dmin: a k-type's of the chunk).
template <DType kType, int kGroups>
struct Packed {
  static constexpr PanelFormat kFormat = panel_format(kType);
  static constexpr bool kHalves = kFormat.halves, kHasMin = kFormat.has_min;
  const char *bits[kGroups], *scales[kGroups];
  __m512 d[kGroups], minus_dmin[kGroups];

  template <int kStep>
  HWY_INLINE __m512i step(int g) const {
    return step_of<kType, kStep>(bits[g]);
  }
  HWY_INLINE Scales scales_at(int g) const {
    return scales_of<kType>(scales[g], d[g], minus_dmin[g]);
  }
  // where the sums of a row's half begin, since weights are bytes q + offset
  static HWY_INLINE __m512i start(const QuantRecord& x, int half) {
    if constexpr (kFormat.offset_shift < 0) return _mm512_setzero_si512();
    else return _mm512_slli_epi32(_mm512_set1_epi32(x.minus_sum[half]), kFormat.offset_shift);
  }
};

// The weights of blocks of one chunk, which begins at `chunk` and has `n` of them.
template <DType kType, int kGroups>
HWY_INLINE void begin_chunk(Packed<kType, kGroups>& w, const char* chunk, int64_t group_bytes) {
  constexpr PanelFormat kFormat = panel_format(kType);
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) {
    w.d[g] = w.minus_dmin[g] = _mm512_setzero_ps();
    if constexpr (kFormat.is_k()) w.d[g] = halves(chunk + g * group_bytes);
    if constexpr (kFormat.unit != 1) w.d[g] = _mm512_mul_ps(w.d[g], _mm512_set1_ps(kFormat.unit));
    if constexpr (kFormat.is_k() && kFormat.has_min)
      w.minus_dmin[g] = _mm512_sub_ps(_mm512_setzero_ps(), halves(chunk + g * group_bytes + 32));
  }
}
template <DType kType, int kGroups>
HWY_INLINE void at_block(Packed<kType, kGroups>& w, const char* chunk, int64_t group_bytes,
                         int64_t scale_bytes, int64_t block) {
  constexpr PanelFormat kFormat = panel_format(kType);
  MOE_UNROLL for (int g = 0; g < kGroups; ++g) {
    w.bits[g] = chunk + g * group_bytes + scale_bytes + block * kFormat.block_bytes();
    w.scales[g] =
        chunk + g * group_bytes + (kFormat.is_k() ? kSuperBytes : 0) + block * kFormat.scale_bytes;
  }
}

}  // namespace
}  // namespace moe::ops
HWY_POP_ATTRIBUTES
