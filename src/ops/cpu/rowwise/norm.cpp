// RMS norm and layer norm, forward and backward. Vectors run along the columns of one row, so a
// row's bits depend on that row alone. Statistics, sums and parameter gradients are f32; x, y, dx
// and dy are f32 or bf16 each on its own.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/functions.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"
#include "ops/op_checks.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// rstd = 1 / sqrt(mean(x^2) + eps);  y = x * rstd * w
template <class X, class Y>
void RmsNormRow(Y* HWY_RESTRICT y, float* rstd, const X* HWY_RESTRICT x,
                const float* HWY_RESTRICT w, float eps, int64_t cols) noexcept {
  const DF32 d;
  const float squares = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 v = Load(d, x + c, part);
    return hn::Mul(v, v);
  });
  *rstd = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
  const VF32 scale = hn::Set(d, *rstd);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    Store(hn::Mul(hn::Mul(Load(d, x + c, part), scale), Load(d, w + c, part)), d, y + c, part);
  });
}

// With g = dy w and n = x rstd:  dx = rstd (g - n mean(g n));  dw += dy n
template <class DX, class DY, class X>
void RmsNormRowBackward(DX* dx, float* dw, const DY* dy, const X* x, const float* w, float rstd,
                        int64_t cols) noexcept {
  const DF32 d;
  const VF32 scale = hn::Set(d, rstd);
  const float sum = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(hn::Mul(Load(d, dy + c, part), Load(d, w + c, part)),
                   hn::Mul(Load(d, x + c, part), scale));
  });
  const VF32 mean = hn::Set(d, sum / static_cast<float>(cols));
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 grad = Load(d, dy + c, part), n = hn::Mul(Load(d, x + c, part), scale);
    const VF32 g = hn::Mul(grad, Load(d, w + c, part));
    if (dw != nullptr) Store(hn::MulAdd(grad, n, Load(d, dw + c, part)), d, dw + c, part);
    Store(hn::Mul(scale, hn::NegMulAdd(n, mean, g)), d, dx + c, part);
  });
}

// mean, then rstd = 1 / sqrt(mean((x - mean)^2) + eps) in a second pass, which does not cancel;  y
// = (x - mean) rstd w + b
template <class X, class Y>
void LayerNormRow(Y* HWY_RESTRICT y, float* mean, float* rstd, const X* HWY_RESTRICT x,
                  const float* HWY_RESTRICT w, const float* HWY_RESTRICT b, float eps,
                  int64_t cols) noexcept {
  const DF32 d;
  *mean = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR { return Load(d, x + c, part); }) /
          static_cast<float>(cols);
  const VF32 centre = hn::Set(d, *mean);
  const float squares = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 v = Keep(d, hn::Sub(Load(d, x + c, part), centre), part);
    return hn::Mul(v, v);
  });
  *rstd = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
  const VF32 scale = hn::Set(d, *rstd);
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 n = hn::Mul(hn::Sub(Load(d, x + c, part), centre), scale),
               weight = Load(d, w + c, part);
    Store(b != nullptr ? hn::MulAdd(n, weight, Load(d, b + c, part)) : hn::Mul(n, weight), d, y + c,
          part);
  });
}

// With g = dy w and n = (x - mean) rstd:  dx = rstd (g - mean(g) - n mean(g n));  dw += dy n;  db
// += dy
template <class DX, class DY, class X>
void LayerNormRowBackward(DX* dx, float* dw, float* db, const DY* dy, const X* x, const float* w,
                          float mean, float rstd, int64_t cols) noexcept {
  const DF32 d;
  const VF32 centre = hn::Set(d, mean), scale = hn::Set(d, rstd);
  const float sum_g = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    return hn::Mul(Load(d, dy + c, part), Load(d, w + c, part));
  });
  const float sum_gn = SumColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 n = hn::Mul(hn::Sub(Load(d, x + c, part), centre), scale);
    return hn::Mul(hn::Mul(Load(d, dy + c, part), Load(d, w + c, part)), n);
  });
  const VF32 mean_g = hn::Set(d, sum_g / static_cast<float>(cols)),
             mean_gn = hn::Set(d, sum_gn / static_cast<float>(cols));
  ForColumns(d, cols, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 grad = Load(d, dy + c, part),
               n = hn::Mul(hn::Sub(Load(d, x + c, part), centre), scale);
    const VF32 g = hn::Mul(grad, Load(d, w + c, part));
    if (dw != nullptr) Store(hn::MulAdd(grad, n, Load(d, dw + c, part)), d, dw + c, part);
    if (db != nullptr) Store(hn::Add(grad, Load(d, db + c, part)), d, db + c, part);
    Store(hn::Mul(scale, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g))), d, dx + c, part);
  });
}

void RmsNormRows(Tensor y, float* rstd, Tensor x, const float* w, float eps, int64_t begin,
                 int64_t end) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      for (int64_t r = begin; r < end; ++r)
        RmsNormRow(y.row<decltype(of_y)>(r), rstd + r, x.row<decltype(of_x)>(r), w, eps, x.cols());
    });
  });
}

void RmsNormRowsBackward(Tensor dx, float* dw, Tensor dy, Tensor x, const float* w,
                         const float* rstd, int64_t begin, int64_t end) {
  WithFloat(dx.dtype, [&](auto of_dx) HWY_ATTR {
    WithFloat(dy.dtype, [&](auto of_dy) HWY_ATTR {
      WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          RmsNormRowBackward(dx.row<decltype(of_dx)>(r), dw, dy.row<decltype(of_dy)>(r),
                             x.row<decltype(of_x)>(r), w, rstd[r], x.cols());
        }
      });
    });
  });
}

void LayerNormRows(Tensor y, float* mean, float* rstd, Tensor x, const float* w, const float* b,
                   float eps, int64_t begin, int64_t end) {
  WithFloat(y.dtype, [&](auto of_y) HWY_ATTR {
    WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
      for (int64_t r = begin; r < end; ++r)
        LayerNormRow(y.row<decltype(of_y)>(r), mean + r, rstd + r, x.row<decltype(of_x)>(r), w, b,
                     eps, x.cols());
    });
  });
}

void LayerNormRowsBackward(Tensor dx, float* dw, float* db, Tensor dy, Tensor x, const float* w,
                           const float* mean, const float* rstd, int64_t begin, int64_t end) {
  WithFloat(dx.dtype, [&](auto of_dx) HWY_ATTR {
    WithFloat(dy.dtype, [&](auto of_dy) HWY_ATTR {
      WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
        for (int64_t r = begin; r < end; ++r) {
          LayerNormRowBackward(dx.row<decltype(of_dx)>(r), dw, db, dy.row<decltype(of_dy)>(r),
                               x.row<decltype(of_x)>(r), w, mean[r], rstd[r], x.cols());
        }
      });
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(RmsNormRowsBackward);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(LayerNormRowsBackward);

// The weight [D] plus `offset` as f32; in scratch where a loaded model keeps it in bf16 or
// something is added.
const float* widened(Run& run, const Tensor& w, float offset = 0) {
  if (w.empty()) return nullptr;
  if (w.dtype == DType::f32 && offset == 0) return w.as<float>();
  float* wide = run.scratch.alloc(DType::f32, {w.numel()}).as<float>();
  for (int64_t c = 0; c < w.numel(); ++c)
    wide[c] = offset + (w.dtype == DType::f32 ? w.as<float>()[c] : to_f32(w.as<bf16>()[c]));
  return wide;
}

// offset + weight, or 1 without one, [cols]
const float* factors(Run& run, const Tensor& w, float offset, int64_t cols) {
  if (!w.empty()) return widened(run, w, offset);
  float* ones = run.scratch.alloc(DType::f32, {cols}).as<float>();
  std::fill_n(ones, cols, 1.0f);
  return ones;
}

// Parameter gradients of rows shared among threads: each thread sums its rows into its own copy,
// and the copies are added in thread order.
class GradPartials {
 public:
  GradPartials(Run& run, Param& param) : threads_(run.threads) {
    if (param.grad.empty()) return;
    settle_grad(run, param);
    grad_ = param.grad;
    parts_ = run.scratch.alloc_zeroed(DType::f32, {threads_, grad_.numel()});
  }
  float* of(int thread) const { return parts_.empty() ? nullptr : parts_.row<float>(thread); }
  void add_up() const {
    if (parts_.empty()) return;
    float* grad = grad_.as<float>();
    for (int t = 0; t < threads_; ++t)
      for (int64_t c = 0; c < grad_.numel(); ++c) grad[c] += of(t)[c];
  }

 private:
  int64_t threads_;
  Tensor grad_;   // [D], the parameter's
  Tensor parts_;  // [threads, D] in scratch, rewound by the op
};

}  // namespace

void rms_norm_forward(Run& run, Tensor y, Tensor rstd, Tensor x, const Param& weight, float eps,
                      float offset) {
  choose_isa();
  check_rms_norm_forward(y, rstd, x, weight);
  const ArenaScope scope(run.scratch);
  const float* w = factors(run, weight.value, offset, x.cols());
  parallel_for(run.threads, x.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(y, rstd.as<float>(), x, w, eps, begin, end);
  });
}

void rms_norm_backward(Run& run, Tensor dx, Param& weight, Tensor dy, Tensor x, Tensor rstd,
                       float offset) {
  choose_isa();
  check_rms_norm_backward(dx, weight, dy, x, rstd);
  const ArenaScope scope(run.scratch);
  const float* w = factors(run, weight.value, offset, x.cols());
  const GradPartials dw(run, weight);
  parallel_for(run.threads, x.rows(), row_grain(x.cols()),
               [&](int64_t begin, int64_t end, int thread) {
                 HWY_DYNAMIC_DISPATCH(RmsNormRowsBackward)
                 (dx, dw.of(thread), dy, x, w, rstd.as<float>(), begin, end);
               });
  dw.add_up();
}

void layer_norm_forward(Run& run, Tensor y, Tensor mean, Tensor rstd, Tensor x, const Param& weight,
                        const Param& bias, float eps, float offset) {
  choose_isa();
  check_layer_norm_forward(y, mean, rstd, x, weight, bias);
  const ArenaScope scope(run.scratch);
  const float *w = factors(run, weight.value, offset, x.cols()), *b = widened(run, bias.value);
  parallel_for(run.threads, x.rows(), row_grain(x.cols()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)
    (y, mean.as<float>(), rstd.as<float>(), x, w, b, eps, begin, end);
  });
}

void layer_norm_backward(Run& run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
                         Tensor mean, Tensor rstd, float offset) {
  choose_isa();
  check_layer_norm_backward(dx, weight, bias, dy, x, mean, rstd);
  const ArenaScope scope(run.scratch);
  const float* w = factors(run, weight.value, offset, x.cols());
  const GradPartials dw(run, weight), db(run, bias);
  parallel_for(run.threads, x.rows(), row_grain(x.cols()),
               [&](int64_t begin, int64_t end, int thread) {
                 HWY_DYNAMIC_DISPATCH(LayerNormRowsBackward)
                 (dx, dw.of(thread), db.of(thread), dy, x, w, mean.as<float>(), rstd.as<float>(),
                  begin, end);
               });
  dw.add_up();
  db.add_up();
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
