// Inner products with a few rows of weights, and sums of them, for each type that is read as it
// lies: floats, and GGUF's q8_0, q4_0 and q4_1 (tensor/quant.h), whose integers become f32. What a
// row gives does not depend on the rows beside it. While rows are read, so are as many others into
// the cache, a line at a time: the memory takes no more than a few at once.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_KEPT_KEPT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_KEPT_KEPT_ROWS_INL_H_
#undef MOE_OPS_CPU_KEPT_KEPT_ROWS_INL_H_
#else
#define MOE_OPS_CPU_KEPT_KEPT_ROWS_INL_H_
#endif

#include <cstring>

#include "ops/cpu/kept/kept_task.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

#define MOE_UNROLL _Pragma("GCC unroll 8")

// row [D] each; next: rows that will be needed.
struct KeptRows {
  const char* row[kKeptRows];
  const char* next[kKeptRows];
};

template <int kRows>
HWY_INLINE void FetchNext(const KeptRows& rows, int64_t at) {
  MOE_UNROLL for (int r = 0; r < kRows; ++r) __builtin_prefetch(rows.next[r] + at, 0, 3);
}

// ---- floats -------------------------------------------------------------------------------------

template <class W>
struct FloatRows {
  static constexpr int64_t kSize = sizeof(W), kStep = kKeptLine / kSize;  // numbers of a line

  static const W* At(const char* row, int64_t c) { return reinterpret_cast<const W*>(row) + c; }

  // add(c, part) of all columns in order, while the same lines of the rows that come are fetched.
  template <int kRows, class F>
  static HWY_INLINE void ByLines(const KeptRows& rows, int64_t cols, const F& add) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(DF32()));
    int64_t c = 0;
    for (; c + kStep <= cols; c += kStep) {
      FetchNext<kRows>(rows, c * kSize);
      for (int64_t i = 0; i < kStep; i += lanes) add(c + i, Whole());
    }
    FetchNext<kRows>(rows, cols * kSize - 1);
    for (; c + lanes <= cols; c += lanes) add(c, Whole());
    if (c < cols) add(c, Tail{static_cast<size_t>(cols - c)});
  }

  // out[r] = <row r, x>.  x [cols]
  template <int kRows>
  static void Dot(float* out, const KeptRows& rows, const float* x, int64_t cols) {
    const DF32 d;
    VF32 sum[kRows];
    MOE_UNROLL for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
    const auto add = [&](int64_t c, auto part) HWY_ATTR {
      const VF32 numbers = Load(d, x + c, part);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) sum[r] =
          hn::MulAdd(Load(d, At(rows.row[r], c), part), numbers, sum[r]);
    };
    ByLines<kRows>(rows, cols, add);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) out[r] = SumLanesFixed(d, sum[r]);
  }

  // y += sum over r of a[r] row r, in that order.  y [cols]
  template <int kRows>
  static void Add(float* y, const KeptRows& rows, const float* a, int64_t cols) {
    const DF32 d;
    VF32 factor[kRows];
    MOE_UNROLL for (int r = 0; r < kRows; ++r) factor[r] = hn::Set(d, a[r]);
    const auto add = [&](int64_t c, auto part) HWY_ATTR {
      VF32 sum = Load(d, y + c, part);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) sum =
          hn::MulAdd(factor[r], Load(d, At(rows.row[r], c), part), sum);
      Store(sum, d, y + c, part);
    };
    ByLines<kRows>(rows, cols, add);
  }
};

// ---- blocks -------------------------------------------------------------------------------------

constexpr int64_t kKeptBlock = 32, kKeptHalf = kKeptBlock / 2;

template <class T>
HWY_INLINE T LoadAs(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HWY_INLINE VF32 HalfAt(const char* p) {
  const U16For<DF32> du16;
  const hn::Rebind<hwy::float16_t, DF32> d16;
  return hn::PromoteTo(DF32(), hn::BitCast(d16, hn::Set(du16, LoadAs<uint16_t>(p))));
}

// The integers of a block from place i of each of its halves on, as f32.
struct TwoHalves {
  VF32 first, second;
};
HWY_INLINE TwoHalves NibblesAt(const char* p, int64_t i) {
  const DF32 d;
  const I32For<DF32> di32;
  const hn::Rebind<uint8_t, DF32> du8;
  const auto both = hn::PromoteTo(di32, hn::LoadU(du8, reinterpret_cast<const uint8_t*>(p) + i));
  return {hn::ConvertTo(d, hn::And(both, hn::Set(di32, 15))),
          hn::ConvertTo(d, hn::ShiftRight<4>(both))};
}
HWY_INLINE VF32 BytesAt(const char* p) {
  const hn::Rebind<int8_t, DF32> di8;
  return hn::ConvertTo(
      DF32(), hn::PromoteTo(I32For<DF32>(), hn::LoadU(di8, reinterpret_cast<const int8_t*>(p))));
}

// A number is scale (q - kOffset) + min; a block begins with them, halves both.
struct Q8Block {
  static constexpr int64_t kBytes = 34;
  static constexpr float kOffset = 0;
  static constexpr bool kHasMin = false;
  static HWY_INLINE TwoHalves At(const char* block, int64_t i) {
    return {BytesAt(block + 2 + i), BytesAt(block + 2 + kKeptHalf + i)};
  }
};
struct Q4Block {
  static constexpr int64_t kBytes = 18;
  static constexpr float kOffset = 8;
  static constexpr bool kHasMin = false;
  static HWY_INLINE TwoHalves At(const char* block, int64_t i) { return NibblesAt(block + 2, i); }
};
struct Q41Block {
  static constexpr int64_t kBytes = 20;
  static constexpr float kOffset = 0;
  static constexpr bool kHasMin = true;
  static HWY_INLINE TwoHalves At(const char* block, int64_t i) { return NibblesAt(block + 4, i); }
};

// Of a block of each row, the scale, or with kHasMin scale and min one after the other.
template <class Q, int kRows>
struct BlockScales {
  static constexpr int kEach = Q::kHasMin ? 2 : 1;

  BlockScales(const KeptRows& rows, int64_t at) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    // all of them in one conversion
    if constexpr (Q::kHasMin) {
      const auto pair = [&](int r) { return r < kRows ? LoadAs<int32_t>(rows.row[r] + at) : 0; };
      _mm256_store_ps(all, _mm256_cvtph_ps(_mm_setr_epi32(pair(0), pair(1), pair(2), pair(3))));
    } else {
      const auto one = [&](int r) {
        return r < kRows ? LoadAs<int16_t>(rows.row[r] + at) : int16_t{0};
      };
      _mm_store_ps(all, _mm_cvtph_ps(_mm_setr_epi16(one(0), one(1), one(2), one(3), 0, 0, 0, 0)));
    }
    // Reading one number into all lanes is free, moving it there between registers is not, which
    // the compiler would do.
    asm("" : "+m"(all));
#else
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kEach; ++i)
        all[r * kEach + i] = hn::GetLane(HalfAt(rows.row[r] + at + 2 * i));
#endif
  }
  VF32 Scale(int r) const { return hn::Set(DF32(), all[r * kEach]); }
  VF32 Min(int r) const { return hn::Set(DF32(), all[r * kEach + kEach - 1]); }

  alignas(32) float all[2 * kKeptRows];
};

template <int kRows>
HWY_INLINE void FetchLines(const KeptRows& rows, int64_t at, int64_t* fetched) {
  if (at < *fetched) return;
  FetchNext<kRows>(rows, *fetched);
  *fetched += kKeptLine;
}

template <class Q>
struct BlockRows {
  // As FloatRows::Dot. Of a block: scale (sum of q x - kOffset sum of x) + min sum of x, lane by
  // lane.
  template <int kRows>
  static void Dot(float* out, const KeptRows& rows, const float* x, int64_t cols) {
    const DF32 d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    VF32 sum[kRows];
    MOE_UNROLL for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
    int64_t at = 0, fetched = 0;
    for (; cols > 0; cols -= kKeptBlock, at += Q::kBytes, x += kKeptBlock) {
      FetchLines<kRows>(rows, at, &fetched);
      const BlockScales<Q, kRows> scales(rows, at);
      VF32 of_x = hn::Zero(d);
      if constexpr (Q::kHasMin || Q::kOffset != 0)
        for (int64_t i = 0; i < kKeptHalf; i += lanes)
          of_x = hn::Add(of_x, hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, x + kKeptHalf + i)));
      const VF32 start = hn::Mul(of_x, hn::Set(d, -Q::kOffset));
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        VF32 product = start;
        for (int64_t i = 0; i < kKeptHalf; i += lanes) {
          const TwoHalves q = Q::At(rows.row[r] + at, i);
          product = hn::MulAdd(q.first, hn::LoadU(d, x + i), product);
          product = hn::MulAdd(q.second, hn::LoadU(d, x + kKeptHalf + i), product);
        }
        sum[r] = hn::MulAdd(scales.Scale(r), product, sum[r]);
        if constexpr (Q::kHasMin) sum[r] = hn::MulAdd(scales.Min(r), of_x, sum[r]);
      }
    }
    FetchNext<kRows>(rows, at - 1);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) out[r] = SumLanesFixed(d, sum[r]);
  }

  // As FloatRows::Add.
  template <int kRows>
  static void Add(float* y, const KeptRows& rows, const float* a, int64_t cols) {
    const DF32 d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t at = 0, fetched = 0;
    for (; cols > 0; cols -= kKeptBlock, at += Q::kBytes, y += kKeptBlock) {
      FetchLines<kRows>(rows, at, &fetched);
      const BlockScales<Q, kRows> scales(rows, at);
      VF32 scale[kRows], start[kRows];
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        const VF32 factor = hn::Set(d, a[r]);
        scale[r] = hn::Mul(factor, scales.Scale(r));
        if constexpr (Q::kHasMin) start[r] = hn::Mul(factor, scales.Min(r));
        else start[r] = hn::Mul(scale[r], hn::Set(d, -Q::kOffset));
      }
      for (int64_t i = 0; i < kKeptHalf; i += lanes) {
        VF32 first = hn::LoadU(d, y + i), second = hn::LoadU(d, y + kKeptHalf + i);
        MOE_UNROLL for (int r = 0; r < kRows; ++r) {
          const TwoHalves q = Q::At(rows.row[r] + at, i);
          if constexpr (Q::kHasMin || Q::kOffset != 0) {
            first = hn::Add(first, start[r]);
            second = hn::Add(second, start[r]);
          }
          first = hn::MulAdd(scale[r], q.first, first);
          second = hn::MulAdd(scale[r], q.second, second);
        }
        hn::StoreU(first, d, y + i);
        hn::StoreU(second, d, y + kKeptHalf + i);
      }
    }
    FetchNext<kRows>(rows, at - 1);
  }
};

#if HWY_TARGET == HWY_AVX3
// Numbers of four bits where a register holds all sixteen that they may stand for.
template <class Q>
struct NibbleRows {
  static constexpr int64_t kHeader = Q::kBytes - kKeptHalf;

  // The numbers of a block whose scale and min these are.
  static HWY_INLINE TwoHalves At(const char* block, VF32 scale, VF32 min) {
    const DF32 d;
    const VF32 integers = hn::Iota(d, -Q::kOffset),
               table = Q::kHasMin ? hn::MulAdd(integers, scale, min) : hn::Mul(integers, scale);
    // of an index the lowest four bits count
    const __m512i both =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + kHeader)));
    return {VF32{_mm512_permutexvar_ps(both, table.raw)},
            VF32{_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table.raw)}};
  }

  // As FloatRows::Dot.
  template <int kRows>
  static void Dot(float* out, const KeptRows& rows, const float* x, int64_t cols) {
    const DF32 d;
    VF32 first[kRows], second[kRows];
    MOE_UNROLL for (int r = 0; r < kRows; ++r) first[r] = second[r] = hn::Zero(d);
    int64_t at = 0, fetched = 0;
    for (; cols > 0; cols -= kKeptBlock, at += Q::kBytes, x += kKeptBlock) {
      FetchLines<kRows>(rows, at, &fetched);
      const BlockScales<Q, kRows> scales(rows, at);
      const VF32 first_x = hn::LoadU(d, x), second_x = hn::LoadU(d, x + kKeptHalf);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        const TwoHalves w = At(rows.row[r] + at, scales.Scale(r), scales.Min(r));
        first[r] = hn::MulAdd(w.first, first_x, first[r]);
        second[r] = hn::MulAdd(w.second, second_x, second[r]);
      }
    }
    FetchNext<kRows>(rows, at - 1);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) out[r] =
        SumLanesFixed(d, hn::Add(first[r], second[r]));
  }

  // As FloatRows::Add.
  template <int kRows>
  static void Add(float* y, const KeptRows& rows, const float* a, int64_t cols) {
    const DF32 d;
    VF32 factor[kRows];
    MOE_UNROLL for (int r = 0; r < kRows; ++r) factor[r] = hn::Set(d, a[r]);
    int64_t at = 0, fetched = 0;
    for (; cols > 0; cols -= kKeptBlock, at += Q::kBytes, y += kKeptBlock) {
      FetchLines<kRows>(rows, at, &fetched);
      const BlockScales<Q, kRows> scales(rows, at);
      VF32 first = hn::LoadU(d, y), second = hn::LoadU(d, y + kKeptHalf);
      MOE_UNROLL for (int r = 0; r < kRows; ++r) {
        const TwoHalves w = At(rows.row[r] + at, scales.Scale(r), scales.Min(r));
        first = hn::MulAdd(factor[r], w.first, first);
        second = hn::MulAdd(factor[r], w.second, second);
      }
      hn::StoreU(first, d, y);
      hn::StoreU(second, d, y + kKeptHalf);
    }
    FetchNext<kRows>(rows, at - 1);
  }
};
#else
template <class Q>
using NibbleRows = BlockRows<Q>;
#endif

// ---- by type ------------------------------------------------------------------------------------

// By the number of rows, from one on.
struct KeptKernels {
  void (*dot[kKeptRows])(float*, const KeptRows&, const float*, int64_t);
  void (*add[kKeptRows])(float*, const KeptRows&, const float*, int64_t);
};
template <class Rows>
constexpr KeptKernels kKernelsOf = {
    {Rows::template Dot<1>, Rows::template Dot<2>, Rows::template Dot<3>, Rows::template Dot<4>},
    {Rows::template Add<1>, Rows::template Add<2>, Rows::template Add<3>, Rows::template Add<4>}};

// Null for a type whose rows have to be decoded.
HWY_INLINE const KeptKernels* KernelsOf(DType dtype) {
  switch (dtype) {
    case DType::f32: return &kKernelsOf<FloatRows<float>>;
    case DType::bf16: return &kKernelsOf<FloatRows<bf16>>;
    case DType::f16: return &kKernelsOf<FloatRows<Half>>;
    case DType::q8_0: return &kKernelsOf<BlockRows<Q8Block>>;
    case DType::q4_0: return &kKernelsOf<NibbleRows<Q4Block>>;
    case DType::q4_1: return &kKernelsOf<NibbleRows<Q41Block>>;
    default: return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
