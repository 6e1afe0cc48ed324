// Rotary positions (Su et al., RoFormer, 2021) on the half-split pairs (c, c + R/2) that Hugging
// Face models use. Angles are taken in double, once for each distinct position of the batch and not
// for each head or layer, and only their cosines and sines are rounded to f32. The turn of position
// p = 64 a + b is the turn of 64 a and then that of b, so that cosines are taken for each a and b
// only:
//   cos p = cos 64a cos b - sin 64a sin b;  sin p = sin 64a cos b + cos 64a sin b
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/rope.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// (a, b) -> (a cos - b sin, b cos + a sin); turning back takes -sin.
template <class X>
void RopeRow(X* x, const float* cosine, const float* sine, int64_t heads, int64_t width,
             int64_t half, float sign) noexcept {
  const DF32 d;
  const VF32 turn = hn::Set(d, sign);
  for (int64_t h = 0; h < heads; ++h) {
    X *low = x + h * width, *high = low + half;
    ForColumns(d, half, [&](int64_t c, auto part) HWY_ATTR {
      const VF32 a = Load(d, low + c, part), b = Load(d, high + c, part);
      const VF32 cs = Load(d, cosine + c, part), sn = hn::Mul(turn, Load(d, sine + c, part));
      Store(hn::NegMulAdd(b, sn, hn::Mul(a, cs)), d, low + c, part);
      Store(hn::MulAdd(a, sn, hn::Mul(b, cs)), d, high + c, part);
    });
  }
}

// cos_sin [U, 2, R/2]: cosines, then sines, of each distinct position; slot [N] says which is a
// row's.
void RopeRows(Tensor x, const float* cos_sin, const int32_t* slot, int64_t width, int64_t half,
              bool inverse, int64_t begin, int64_t end) {
  const int64_t heads = x.cols() / width;
  const float sign = inverse ? -1.0f : 1.0f;
  WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      const float* turn = cos_sin + slot[r] * 2 * half;
      RopeRow(x.row<decltype(of_x)>(r), turn, turn + half, heads, width, half, sign);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(RopeRows);

constexpr int32_t kNear = 64;

// Cosines, then sines, of position * frequency.  out [R]
void take_angles(double* out, double position, const RopeFrequencies& table) {
  const size_t half = table.frequency.size();
  for (size_t c = 0; c < half; ++c) {
    const double angle = position * table.frequency[c];
    out[c] = std::cos(angle);
    out[half + c] = std::sin(angle);
  }
}

// cos_sin [U, R] of the sorted, distinct positions [U] >= 0.
void fill_cos_sin(Run& run, float* cos_sin, std::span<const int32_t> distinct,
                  const RopeFrequencies& table) {
  const ArenaScope scope(run.scratch);
  const int64_t half = static_cast<int64_t>(table.frequency.size()),
                count = static_cast<int64_t>(distinct.size());
  // What has to be taken: first the far parts in order, then the near ones by b.
  std::vector<int32_t> parts;
  std::vector<int64_t> far(distinct.size());
  std::array<int64_t, kNear> near{};
  for (size_t u = 0; u < distinct.size(); ++u) {
    if (u == 0 || distinct[u] / kNear != distinct[u - 1] / kNear)
      parts.push_back(distinct[u] / kNear * kNear);
    far[u] = static_cast<int64_t>(parts.size()) - 1;
  }
  std::array<bool, kNear> used{};
  for (const int32_t p : distinct) used[static_cast<size_t>(p % kNear)] = true;
  for (int32_t b = 0; b < kNear; ++b)
    if (used[static_cast<size_t>(b)]) {
      near[static_cast<size_t>(b)] = static_cast<int64_t>(parts.size());
      parts.push_back(b);
    }
  auto* taken = static_cast<double*>(
      run.scratch.alloc_bytes(parts.size() * static_cast<size_t>(2 * half) * sizeof(double)));
  const int64_t grain = std::max<int64_t>(1, 512 / half);
  parallel_for(run.threads, static_cast<int64_t>(parts.size()), grain,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i)
                   take_angles(taken + i * 2 * half, parts[static_cast<size_t>(i)], table);
               });
  parallel_for(run.threads, count, 8 * grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; ++u) {
      const double* a = taken + far[static_cast<size_t>(u)] * 2 * half;
      const double* b =
          taken + near[static_cast<size_t>(distinct[static_cast<size_t>(u)] % kNear)] * 2 * half;
      float* turn = cos_sin + u * 2 * half;
      for (int64_t c = 0; c < half; ++c) {
        turn[c] = static_cast<float>(table.factor * (a[c] * b[c] - a[half + c] * b[half + c]));
        turn[half + c] =
            static_cast<float>(table.factor * (a[half + c] * b[c] + a[c] * b[half + c]));
      }
    }
  });
}

}  // namespace

CosSinTable cos_sin_table(Run& run, Arena& memory, std::span<const int32_t> positions,
                          const RopeFrequencies& table) {
  const int64_t rows = static_cast<int64_t>(positions.size()),
                width = 2 * static_cast<int64_t>(table.frequency.size());
  if (width == 0) fail("rope: the table has no frequencies; it needs one for each pair of a head");
  std::vector<int32_t> distinct(positions.begin(), positions.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (!distinct.empty() && distinct[0] < 0)
    fail("rope: a position is {}; they count from 0", distinct[0]);
  CosSinTable made{memory.alloc(DType::f32, {static_cast<int64_t>(distinct.size()), width}),
                   memory.alloc(DType::i32, {rows})};
  for (int64_t r = 0; r < rows; ++r)
    made.slot.as<int32_t>()[r] = static_cast<int32_t>(
        std::lower_bound(distinct.begin(), distinct.end(), positions[static_cast<size_t>(r)]) -
        distinct.begin());
  fill_cos_sin(run, made.table.as<float>(), distinct, table);
  return made;
}

void rope_acc(Run& run, List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin,
              bool inverse) {
  choose_isa();
  const int64_t rotary = cos_sin.table.cols();
  check_rope(all, head_width, cos_sin);
  for (const Tensor& x : all)
    parallel_for(run.threads, x.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(RopeRows)
      (x, cos_sin.table.as<float>(), cos_sin.slot.as<int32_t>(), head_width, rotary / 2, inverse,
       begin, end);
    });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
