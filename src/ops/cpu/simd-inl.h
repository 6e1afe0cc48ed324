// What the kernels share, compiled once for each instruction set: loads and stores of f32 and bf16
// as f32 vectors, tails, exp, erf, tanh, sigmoid, sums. Everything lives inside HWY_NAMESPACE, so
// that the linker can never merge one instruction set's copy with another's. Polynomials are
// Chebyshev fits made for this file over the intervals named beside them.

// Per-target include guard: undefined again each time foreach_target.h comes round.
#if defined(MOE_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE_OPS_CPU_SIMD_INL_H_
#undef MOE_OPS_CPU_SIMD_INL_H_
#else
#define MOE_OPS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<DF32>;

template <class D>
using U16For = hn::Rebind<uint16_t, D>;
template <class D>
using U32For = hn::Rebind<uint32_t, D>;
template <class D>
using I32For = hn::Rebind<int32_t, D>;

// ---- loads and stores ---------------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> WidenBf16(D d, hn::Vec<U16For<D>> half) {
  const U32For<D> du32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, half)));
}

// Round to nearest even in integers: adding 0x7FFF plus the lowest kept bit carries into the upper
// half exactly when rounding goes up. A NaN keeps its upper half with the quiet bit set, since the
// carry could turn it into infinity.
template <class D>
HWY_INLINE hn::Vec<U32For<D>> RoundBf16(D, hn::Vec<D> v) {
  const U32For<D> du32;
  const auto u = hn::BitCast(du32, v);
  const auto upper = hn::ShiftRight<16>(u);
  const auto odd = hn::And(upper, hn::Set(du32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(du32, 0x7FFF)), odd));
  const auto quiet = hn::Or(upper, hn::Set(du32, 0x40));
  // not Ne: Highway's is an ordered comparison, false for NaN
  const auto is_number = hn::RebindMask(du32, hn::Eq(v, v));
  return hn::IfThenElse(is_number, rounded, quiet);
}
template <class D>
HWY_INLINE hn::Vec<U16For<D>> NarrowBf16(D d, hn::Vec<D> v) {
  return hn::DemoteTo(U16For<D>(), hn::BitCast(I32For<D>(), RoundBf16(d, v)));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const bf16* p) {
  return WidenBf16(d, hn::LoadU(U16For<D>(), reinterpret_cast<const uint16_t*>(p)));
}

// Half precision is only read, where weights are packed.
struct Half {
  uint16_t bits;
};
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const Half* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

template <class D>
HWY_INLINE void StoreF32(hn::Vec<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}
template <class D>
HWY_INLINE void StoreF32(hn::Vec<D> v, D d, bf16* p) {
  hn::StoreU(NarrowBf16(d, v), U16For<D>(), reinterpret_cast<uint16_t*>(p));
}

// Tails: the first `count` lanes, 0 < count < Lanes(d); the others load as zero. Nothing beyond
// `count` is read or written: where the instruction set has no masked access of that width, the
// tail goes through a buffer on the stack.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadTailBuffered(D d, const T* p, size_t count) {
  T lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, p, count * sizeof(T));
  return LoadF32(d, lanes);
}
template <class D, class T>
HWY_INLINE void StoreTailBuffered(hn::Vec<D> v, D d, T* p, size_t count) {
  T lanes[hn::MaxLanes(D())];
  StoreF32(v, d, lanes);
  std::memcpy(p, lanes, count * sizeof(T));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF32N(D d, const float* p, size_t count) {
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
#else
  return LoadTailBuffered(d, p, count);
#endif
}
template <class D>
HWY_INLINE hn::Vec<D> LoadF32N(D d, const bf16* p, size_t count) {
#if HWY_TARGET <= HWY_AVX3
  const U16For<D> du16;
  return WidenBf16(
      d, hn::MaskedLoad(hn::FirstN(du16, count), du16, reinterpret_cast<const uint16_t*>(p)));
#else
  return LoadTailBuffered(d, p, count);
#endif
}
template <class D>
HWY_INLINE hn::Vec<D> LoadF32N(D d, const Half* p, size_t count) {
  return LoadTailBuffered(d, p, count);
}
template <class D>
HWY_INLINE void StoreF32N(hn::Vec<D> v, D d, float* p, size_t count) {
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
#else
  StoreTailBuffered(v, d, p, count);
#endif
}
template <class D>
HWY_INLINE void StoreF32N(hn::Vec<D> v, D d, bf16* p, size_t count) {
#if HWY_TARGET <= HWY_AVX3
  const U16For<D> du16;
  hn::BlendedStore(NarrowBf16(d, v), hn::FirstN(du16, count), du16, reinterpret_cast<uint16_t*>(p));
#else
  StoreTailBuffered(v, d, p, count);
#endif
}

// A piece of a row: a whole vector, or its tail. Kernels are written once over `part` and compiled
// for both.
struct Whole {};
struct Tail {
  size_t count;
};
template <class D, class T>
HWY_INLINE hn::Vec<D> Load(D d, const T* p, Whole) {
  return LoadF32(d, p);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> Load(D d, const T* p, Tail tail) {
  return LoadF32N(d, p, tail.count);
}
template <class D, class T>
HWY_INLINE void Store(hn::Vec<D> v, D d, T* p, Whole) {
  StoreF32(v, d, p);
}
template <class D, class T>
HWY_INLINE void Store(hn::Vec<D> v, D d, T* p, Tail tail) {
  StoreF32N(v, d, p, tail.count);
}

// Zero in the lanes that lie beyond the row.
template <class D>
HWY_INLINE hn::Vec<D> Keep(D, hn::Vec<D> v, Whole) {
  return v;
}
template <class D>
HWY_INLINE hn::Vec<D> Keep(D d, hn::Vec<D> v, Tail tail) {
  return hn::IfThenElseZero(hn::FirstN(d, tail.count), v);
}

// f(c, part) for each piece of [0, cols).
template <class D, class F>
HWY_INLINE void ForColumns(D d, int64_t cols, F&& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= cols; c += lanes) f(c, Whole());
  if (c < cols) f(c, Tail{static_cast<size_t>(cols - c)});
}

// ---- sums ---------------------------------------------------------------------------------------

// Always the same tree for the same instruction set, whatever surrounds the call.
template <class D>
HWY_INLINE float SumLanesFixed(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}
template <class D>
HWY_INLINE float MaxLanesFixed(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

// Sum of f(c, part) over the pieces of [0, cols), in four running vectors so that additions do not
// wait for each other. f returns 0 beyond the row.
template <class D, class F>
HWY_INLINE float SumColumns(D d, int64_t cols, F&& f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t c = 0;
  for (; c + 4 * lanes <= cols; c += 4 * lanes) {
    s0 = hn::Add(s0, f(c, Whole()));
    s1 = hn::Add(s1, f(c + lanes, Whole()));
    s2 = hn::Add(s2, f(c + 2 * lanes, Whole()));
    s3 = hn::Add(s3, f(c + 3 * lanes, Whole()));
  }
  for (; c + lanes <= cols; c += lanes) s0 = hn::Add(s0, f(c, Whole()));
  if (c < cols) s1 = hn::Add(s1, f(c, Tail{static_cast<size_t>(cols - c)}));
  return SumLanesFixed(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

// The largest of x[0, cols); a NaN may be passed over.
HWY_INLINE float MaxColumns(DF32 d, const float* x, int64_t cols) {
  VF32 running = hn::Set(d, -std::numeric_limits<float>::infinity());
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 v = Load(d, x + c, part);
    if constexpr (std::is_same_v<decltype(part), Tail>)
      running = hn::IfThenElse(hn::FirstN(d, part.count), hn::Max(running, v), running);
    else running = hn::Max(running, v);
  });
  return MaxLanesFixed(d, running);
}

// ---- functions ----------------------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, hn::Vec<I32For<D>> n) {
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(I32For<D>(), 127))));
}

// e^r = 1 + r + r^2 g(r), g a polynomial for (e^r - 1 - r) / r^2 on [-0.347, 0.347], to 8e-9 of
// e^r.
template <class D>
HWY_INLINE hn::Vec<D> ExpReduced(D d, hn::Vec<D> r) {
  auto g = hn::Set(d, 0.00139262680526f);
  g = hn::MulAdd(g, r, hn::Set(d, 0.00836324666975f));
  g = hn::MulAdd(g, r, hn::Set(d, 0.0416665541093f));
  g = hn::MulAdd(g, r, hn::Set(d, 0.166665765832f));
  g = hn::MulAdd(g, r, hn::Set(d, 0.5f));
  return hn::Add(hn::MulAdd(hn::Mul(r, r), g, r), hn::Set(d, 1.0f));
}

// e^x to 1 ulp, subnormal results included; above the range infinity, below it 0, NaN kept.
// x = n ln 2 + r with |r| <= ln(2)/2, ln 2 split so that n * high is exact; 2^n in two factors, so
// that neither leaves the range.
template <class D>
HWY_INLINE hn::Vec<D> Exp(D d, hn::Vec<D> x) {
  const auto clamped = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const auto n = hn::NearestInt(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  const auto nf = hn::ConvertTo(d, n);
  auto r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  const auto e = ExpReduced(d, r);
  const auto half = hn::ShiftRight<1>(n);
  const auto scaled = hn::Mul(hn::Mul(e, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(n, half)));
  return hn::IfThenElse(hn::Eq(x, x), scaled, x);
}

// The same for x up to 89, less what softmax and the sigmoid do not need: 0 below -86, where a
// result could be subnormal (slow to multiply with on some machines) and no sum with a term of 1
// would feel it; infinity from 88.4 on; exact for 0 and -infinity; NaN kept. Adding 1.5 * 2^23 +
// 127 leaves n + 127, the biased exponent of 2^n, in the lowest bits.
template <class D>
HWY_INLINE hn::Vec<D> ExpNormal(D d, hn::Vec<D> x) {
  const auto shifter = hn::Set(d, 12582912.0f + 127.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const auto n = hn::Sub(shifted, shifter);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  const auto e = ExpReduced(d, r);
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(U32For<D>(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.0f)), hn::Mul(e, power));
}

// erf to 2 ulp. Below 0.92: x + x p(x^2), p fitted on [0, 0.9]; above: 1 - e^q(|x|), q = log erfc
// fitted on [0.92, 4]; beyond 4 it is 1 in f32.
template <class D>
HWY_INLINE hn::Vec<D> Erf(D d, hn::Vec<D> x) {
  const auto a = hn::Abs(x);
  const auto s = hn::Mul(x, x);
  auto p = hn::Set(d, 8.21278053306e-5f);
  p = hn::MulAdd(p, s, hn::Set(d, -0.000810505451081f));
  p = hn::MulAdd(p, s, hn::Set(d, 0.00519768491446f));
  p = hn::MulAdd(p, s, hn::Set(d, -0.0268580424829f));
  p = hn::MulAdd(p, s, hn::Set(d, 0.112836710415f));
  p = hn::MulAdd(p, s, hn::Set(d, -0.37612632154f));
  p = hn::MulAdd(p, s, hn::Set(d, 0.128379166476f));
  const auto small = hn::MulAdd(p, x, x);
  const auto t = hn::Min(a, hn::Set(d, 4.0f));
  auto q = hn::Set(d, -2.1364878812e-5f);
  q = hn::MulAdd(q, t, hn::Set(d, 0.000437462022836f));
  q = hn::MulAdd(q, t, hn::Set(d, -0.00418502794821f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.025154746918f));
  q = hn::MulAdd(q, t, hn::Set(d, -0.108332528656f));
  q = hn::MulAdd(q, t, hn::Set(d, -0.63330116804f));
  q = hn::MulAdd(q, t, hn::Set(d, -1.1295366485f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.000179019196586f));
  const auto large = hn::CopySign(hn::Sub(hn::Set(d, 1.0f), Exp(d, q)), x);
  // The comparison is false for NaN on the side that carries it through `small`.
  return hn::IfThenElse(hn::Ge(a, hn::Set(d, 0.92f)), large, small);
}

// tanh to 3 ulp. Below 0.6: x + x^3 h(x^2), h fitted on [0, 0.37]; above: 1 - 2 / (e^(2|x|) + 1),
// which goes to 1 as e^(2|x|) overflows.
template <class D>
HWY_INLINE hn::Vec<D> Tanh(D d, hn::Vec<D> x) {
  const auto a = hn::Abs(x);
  const auto s = hn::Mul(x, x);
  auto h = hn::Set(d, 0.00234493122118f);
  h = hn::MulAdd(h, s, hn::Set(d, -0.00838877367178f));
  h = hn::MulAdd(h, s, hn::Set(d, 0.0217822466882f));
  h = hn::MulAdd(h, s, hn::Set(d, -0.053960854432f));
  h = hn::MulAdd(h, s, hn::Set(d, 0.133333101164f));
  h = hn::MulAdd(h, s, hn::Set(d, -0.333333332143f));
  const auto small = hn::MulAdd(hn::Mul(x, s), h, x);
  const auto one = hn::Set(d, 1.0f);
  const auto large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(Exp(d, hn::Add(a, a)), one)));
  return hn::IfThenElse(hn::Ge(a, hn::Set(d, 0.6f)), hn::CopySign(large, x), small);
}

// 1 / (1 + e^-x)
template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f), highest = hn::Set(d, 89.0f), minus = hn::Neg(x);
  return hn::Div(
      one, hn::Add(one, ExpNormal(d, hn::IfThenElse(hn::Gt(minus, highest), highest, minus))));
}

// ---- element types ------------------------------------------------------------------------------

// Calls f with a value of the element type that `dtype` names; entry points have checked that it is
// f32 or bf16.
template <class F>
HWY_INLINE void WithFloat(DType dtype, F&& f) {
  if (dtype == DType::bf16) f(bf16{});
  else f(float{});
}
// The same where a weight may also be of half precision.
template <class F>
HWY_INLINE void WithWeight(DType dtype, F&& f) {
  if (dtype == DType::f16) f(Half{});
  else WithFloat(dtype, f);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
