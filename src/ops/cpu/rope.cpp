// Rotary positions (Su et al., RoFormer, 2021) on the half-split pairs (c, c + C/2) that Hugging Face models use.
// Angles are taken in double, once for each distinct position of the batch and not for each head, and only their cosines and sines are rounded to f32.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/check.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/ops.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// (a, b) -> (a cos - b sin, b cos + a sin); turning back takes -sin.
template <class X>
void RopeRow(X* x, const float* cosine, const float* sine, int64_t heads, int64_t half, float sign) noexcept {
  const DF32 d;
  const VF32 turn = hn::Set(d, sign);
  for (int64_t h = 0; h < heads; ++h) {
    X *low = x + h * 2 * half, *high = low + half;
    ForColumns(d, half, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 a = Load(d, low + c, part), b = Load(d, high + c, part);
      const VF32 cs = Load(d, cosine + c, part), sn = hn::Mul(turn, Load(d, sine + c, part));
      Store(hn::NegMulAdd(b, sn, hn::Mul(a, cs)), d, low + c, part);
      Store(hn::MulAdd(a, sn, hn::Mul(b, cs)), d, high + c, part);
    });
  }
}

// turns [U, 2, C/2]: cosines, then sines, of each distinct position; slot [N] says which is a row's.
void RopeRows(Tensor x, const float* turns, const int32_t* slot, int64_t half, bool inverse, int64_t begin, int64_t end) {
  const int64_t heads = x.cols() / (2 * half);
  const float sign = inverse ? -1.0f : 1.0f;
  WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      const float* turn = turns + slot[r] * 2 * half;
      RopeRow(x.row<decltype(of_x)>(r), turn, turn + half, heads, half, sign);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {
namespace {

HWY_EXPORT(RopeRows);

}  // namespace

void rope_acc(Run& run, Tensor x, std::span<const int32_t> positions, const RopeTable& table, bool inverse) {
  choose_isa();
  need(!x.empty() && is_float(x) && x.rows() == static_cast<int64_t>(positions.size()), "rope", "x [N, H*C] f32 or bf16 with a position for each row",
       {{"x", x}});
  const int64_t rows = x.rows(), half = static_cast<int64_t>(table.frequency.size());
  need(half > 0 && x.cols() % (2 * half) == 0, "rope", "two numbers of each head for every frequency", {{"x", x}});
  const ArenaScope scope(run.scratch);
  int32_t* distinct = run.scratch.alloc(DType::i32, {rows}).as<int32_t>();
  int32_t* slot = run.scratch.alloc(DType::i32, {rows}).as<int32_t>();
  std::copy(positions.begin(), positions.end(), distinct);
  std::sort(distinct, distinct + rows);
  const int64_t count = std::unique(distinct, distinct + rows) - distinct;
  for (int64_t r = 0; r < rows; ++r) slot[r] = static_cast<int32_t>(std::lower_bound(distinct, distinct + count, positions[static_cast<size_t>(r)]) - distinct);

  float* turns = run.scratch.alloc(DType::f32, {count, 2 * half}).as<float>();
  parallel_for(run.threads, count, std::max<int64_t>(1, 512 / half), [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; ++u) {
      for (int64_t c = 0; c < half; ++c) {
        const double angle = distinct[u] * table.frequency[static_cast<size_t>(c)];
        turns[u * 2 * half + c] = static_cast<float>(table.factor * std::cos(angle));
        turns[u * 2 * half + half + c] = static_cast<float>(table.factor * std::sin(angle));
      }
    }
  });
  parallel_for(run.threads, rows, row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(RopeRows)(x, turns, slot, half, inverse, begin, end);
  });
}

}  // namespace moe::ops
#endif  // HWY_ONCE
