// Lanes lie along the inner dimension. Each element is one vector of running sums over it in
// ascending order, then the sum of its lanes.
#include "ops/cpu/gemm/narrow_product.h"

#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gemm/narrow_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

constexpr int kNarrowColumns = 4;
constexpr int kNarrowRows = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // so that the sums fit the registers

template <int kRows, int kColumns, class X, class W>
HWY_INLINE void NarrowTile(float* const* y, const X* const* x, const W* w, int64_t stride,
                           int64_t inner) {
  const DF32 d;
  VF32 sum[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int o = 0; o < kColumns; ++o) sum[r][o] = hn::Zero(d);
  ForColumns(d, inner, [&](int64_t i, auto part) HWY_ATTR {
    VF32 row[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) row[r] = Load(d, x[r] + i, part);
#pragma GCC unroll 4
    for (int o = 0; o < kColumns; ++o) {
      const VF32 weights = Load(d, w + o * stride + i, part);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][o] = hn::MulAdd(row[r], weights, sum[r][o]);
    }
  });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int o = 0; o < kColumns; ++o) y[r][o] = SumLanesFixed(d, sum[r][o]);
}

// kRows rows against all columns.
template <int kRows, class X, class W>
void NarrowRows(float* const* y, const X* const* x, const Tensor& w) {
  const int64_t stride = w.row_bytes / static_cast<int64_t>(sizeof(W)), inner = w.cols();
  float* at[kRows];
  for (int64_t o = 0; o < w.rows(); o += kNarrowColumns) {
    for (int r = 0; r < kRows; ++r) at[r] = y[r] + o;
    const W* weights = static_cast<const W*>(w.data) + o * stride;
    switch (std::min<int64_t>(kNarrowColumns, w.rows() - o)) {
      case 1: NarrowTile<kRows, 1>(at, x, weights, stride, inner); break;
      case 2: NarrowTile<kRows, 2>(at, x, weights, stride, inner); break;
      case 3: NarrowTile<kRows, 3>(at, x, weights, stride, inner); break;
      default: NarrowTile<kRows, kNarrowColumns>(at, x, weights, stride, inner);
    }
  }
}

void NarrowMultiply(Tensor y, const GatheredRows& x, Tensor w, Span rows) {
  WithFloat(x.x.dtype, [&](auto of_x) HWY_ATTR {
    WithWeight(w.dtype, [&](auto of_w) HWY_ATTR {
      using X = decltype(of_x);
      using W = decltype(of_w);
      float* to[kNarrowRows];
      const X* from[kNarrowRows];
      for (int64_t begin = rows.begin; begin < rows.end;) {
        const int64_t left = rows.end - begin;
        const int count = left >= kNarrowRows ? kNarrowRows : 1;
        for (int r = 0; r < count; ++r) {
          to[r] = y.row<float>(begin + r);
          from[r] = x.x.row<X>(x.listed() ? x.row[static_cast<size_t>(begin + r)] : begin + r);
        }
        if (count == kNarrowRows) NarrowRows<kNarrowRows, X, W>(to, from, w);
        else NarrowRows<1, X, W>(to, from, w);
        begin += count;
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops {

HWY_EXPORT(NarrowMultiply);

void narrow_multiply(Tensor y, const GatheredRows& x, Tensor w, Span rows) {
  choose_isa();
  HWY_DYNAMIC_DISPATCH(NarrowMultiply)(y, x, w, rows);
}

}  // namespace moe::ops
#endif  // HWY_ONCE
