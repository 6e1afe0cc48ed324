// Dropout. Element i = r * D + c keeps its value when u(i) >= p, where u(i) is word i mod 4 of
// Philox at counter i / 4, its upper 24 bits read as a number in [0, 1). So a draw depends on (key,
// i) alone: the backward and a recomputation meet the same mask, for any number of threads.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/dropout.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "core/rng.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
using DU32 = hn::ScalableTag<uint32_t>;
using VU32 = hn::Vec<DU32>;

// The two halves of the 64-bit products of all lanes with `m`.
HWY_INLINE void Multiply(DU32 d, VU32 a, VU32 m, VU32& high, VU32& low) {
  const hn::Repartition<uint64_t, DU32> wide;
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), m);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

// Words 4 * Lanes of consecutive counters, in the order of elements; the same bits as philox() of
// core/rng.h gives.
HWY_INLINE void DrawWords(DU32 d, uint64_t key, uint64_t counter, uint32_t* HWY_RESTRICT words) {
  const VU32 m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  const uint32_t first = static_cast<uint32_t>(counter),
                 upper = static_cast<uint32_t>(counter >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  VU32 c0 = hn::Add(hn::Set(d, first), hn::Iota(d, 0)), c2 = hn::Zero(d), c3 = c2;
  // the lower word may wrap within the vector
  VU32 c1 = hn::IfThenElse(hn::Lt(c0, hn::Set(d, first)), hn::Set(d, upper + 1), hn::Set(d, upper));
  for (int round = 0; round < 10; ++round) {
    VU32 high0, low0, high1, low1;
    Multiply(d, c0, m0, high0, low0);
    Multiply(d, c2, m1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}
#endif

template <class X, class Y>
void DropoutRange(Y* y, const X* x, int64_t index, int64_t count, uint32_t threshold, float scale,
                  RngKey key) noexcept {
  const auto one = [&](int64_t c) HWY_ATTR {
    const uint64_t i = static_cast<uint64_t>(index + c);
    const float kept = (philox(key, i / 4)[i % 4] >> 8) >= threshold ? to_f32(x[c]) * scale : 0.0f;
    if constexpr (std::is_same_v<Y, bf16>) y[c] = to_bf16(kept);
    else y[c] = kept;
  };
  int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const DU32 du;
  const DF32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(du)), block = 4 * lanes;
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(DU32())];
  for (; c < count && (index + c) % 4 != 0; ++c) one(c);
  for (; c + block <= count; c += block) {
    DrawWords(du, key.value, static_cast<uint64_t>(index + c) / 4, words);
    for (int64_t i = 0; i < block; i += lanes) {
      const auto keep =
          hn::Not(hn::Lt(hn::ShiftRight<8>(hn::Load(du, words + i)), hn::Set(du, threshold)));
      StoreF32(hn::IfThenElseZero(hn::RebindMask(d, keep),
                                  hn::Mul(LoadF32(d, x + c + i), hn::Set(d, scale))),
               d, y + c + i);
    }
  }
#endif
  for (; c < count; ++c) one(c);
}

void DropoutSpan(Tensor y, Tensor x, int64_t row, int64_t col, int64_t count, uint32_t threshold,
                 float scale, RngKey key) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      DropoutRange(y.row<decltype(of_y)>(row) + col, x.row<decltype(of_x)>(row) + col,
                   row * x.cols() + col, count, threshold, scale, key);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(DropoutSpan);

}  // namespace

void dropout(Run& run, Tensor y, Tensor x, float p, RngKey key) {
  choose_isa();
  check_dropout(y, x, p);
  if (p == 0 || key.empty()) {
    if (x.data != y.data || x.dtype != y.dtype) cast(run, y, x);
    return;
  }
  const uint32_t threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 0x1p24));
  for_spans(run, x, x.dense() && y.dense(), [&](int64_t row, int64_t col, int64_t count) {
    HWY_DYNAMIC_DISPATCH(DropoutSpan)(y, x, row, col, count, threshold, 1.0f / (1.0f - p), key);
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
