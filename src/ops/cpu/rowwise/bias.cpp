// Bias of a bank of experts, forward and backward. Vectors run along the columns of one row; the
// gradient sums rows in blocks, the blocks in double.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/bias.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// y += weight * b
template <class T>
void BiasRow(T* HWY_RESTRICT y, const float* HWY_RESTRICT b, float weight, int64_t cols) noexcept {
  const DF32 d;
  const VF32 scale = hn::Set(d, weight);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::MulAdd(scale, Load(d, b + c, part), Load(d, y + c, part)), d, y + c, part);
  });
}

template <class T>
HWY_INLINE const T* RowOf(const GatheredRows& rows, int64_t r) {
  return rows.x.row<T>(rows.listed() ? rows.row[static_cast<size_t>(r)] : r);
}

// <dy, b>
template <class T>
float BiasDot(const T* HWY_RESTRICT dy, const float* HWY_RESTRICT b, int64_t cols) noexcept {
  const DF32 d;
  return SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(Load(d, dy + c, part), Load(d, b + c, part));
  });
}

void ForwardRows(const Tensor& y, const float* b, const float* weight, int64_t begin, int64_t end) {
  WithFloat(y.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    for (int64_t r = begin; r < end; ++r)
      BiasRow(y.row<T>(r), b, weight != nullptr ? weight[r] : 1.0f, y.cols());
  });
}

void DotRows(float* dweight, const GatheredRows& dy, const float* b, int64_t begin, int64_t end) {
  WithFloat(dy.x.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    for (int64_t r = begin; r < end; ++r) dweight[r] += BiasDot(RowOf<T>(dy, r), b, dy.cols());
  });
}

constexpr int64_t kColumns = 256;  // of the gradient that one task sums

// db[c] += sum over rows of weight[r] dy[r, c], columns [first, first + cols) of at most kColumns.
void SumRows(float* db, const GatheredRows& dy, const float* weight, int64_t begin, int64_t end,
             int64_t first, int64_t cols) {
  constexpr int64_t kRows = 64;
  double total[kColumns] = {};
  WithFloat(dy.x.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    const DF32 d;
    for (int64_t r0 = begin; r0 < end; r0 += kRows) {
      alignas(64) float block[kColumns] = {};
      for (int64_t r = r0; r < std::min(end, r0 + kRows); ++r) {
        const VF32 scale = hn::Set(d, weight != nullptr ? weight[r] : 1.0f);
        const T* row = RowOf<T>(dy, r) + first;
        ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
          Store(hn::MulAdd(scale, Load(d, row + c, part), Load(d, block + c, part)), d, block + c,
                part);
        });
      }
      for (int64_t c = 0; c < cols; ++c) total[c] += block[c];
    }
  });
  for (int64_t c = 0; c < cols; ++c) db[first + c] += static_cast<float>(total[c]);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(ForwardRows);
HWY_EXPORT(DotRows);
HWY_EXPORT(SumRows);

const float* pointer_or_null(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

// f(group, begin, end) for each group's part of the rows a thread owns.
template <class F>
void for_group_rows(const Run& run, const GatheredRows& y, std::span<const int64_t> offsets,
                    F&& f) {
  parallel_for(run.threads, y.rows(), row_grain(y.cols()), [&](int64_t begin, int64_t end, int) {
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int64_t from = std::max(begin, offsets[e]), to = std::min(end, offsets[e + 1]);
      if (from < to) f(static_cast<int64_t>(e), from, to);
    }
  });
}

}  // namespace

void bias_forward_acc(Run& run, Tensor y, const Param& bias, Tensor weight,
                      std::span<const int64_t> offsets) {
  choose_isa();
  check_bias(run, "bias_forward_acc", bias, y, weight, offsets);
  const float* w = pointer_or_null(weight);
  for_group_rows(run, y, offsets, [&](int64_t e, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ForwardRows)(y, bias.value.row<float>(e), w, begin, end);
  });
}

void bias_backward(Run& run, Tensor dweight_acc, Param& bias, GatheredRows dy, Tensor weight,
                   std::span<const int64_t> offsets) {
  choose_isa();
  const char* op = "bias_backward";
  check_bias(run, op, bias, dy, weight, offsets);
  need(dweight_acc.empty() || is_vector(dweight_acc, dy.rows()), op, "dweight [R] f32 or none",
       {{"dweight", dweight_acc}, {"dy", dy.x}});
  if (!dweight_acc.empty())
    for_group_rows(run, dy, offsets, [&](int64_t e, int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(DotRows)
      (dweight_acc.as<float>(), dy, bias.value.row<float>(e), begin, end);
    });
  if (bias.grad.empty() || dy.rows() == 0) return;
  settle_grad(run, bias);
  need(bias.grad.dtype == DType::f32 && bias.grad.dense() && bias.grad.shape == bias.value.shape,
       op, "a gradient f32 of the bias's shape",
       {{"grad", bias.grad}, {bias.name.c_str(), bias.value}});
  constexpr int64_t kColumns = HWY_NAMESPACE::kColumns;
  const float* w = pointer_or_null(weight);
  const int64_t pieces = (dy.cols() + kColumns - 1) / kColumns, tasks = pieces * bias.value.rows();
  const int64_t grain = std::max<int64_t>(1, kGrainElements * tasks / (dy.rows() * dy.cols()));
  parallel_for(run.threads, tasks, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t e = i / pieces, first = i % pieces * kColumns;
      if (offsets[e] == offsets[e + 1]) continue;
      HWY_DYNAMIC_DISPATCH(SumRows)
      (bias.grad.row<float>(e), dy, w, offsets[e], offsets[e + 1], first,
       std::min(kColumns, dy.cols() - first));
    }
  });
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
