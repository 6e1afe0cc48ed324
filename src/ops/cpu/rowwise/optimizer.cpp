// Clipping's sum of squares, and AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019) with the order of operations of PyTorch's.
#include "ops/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rowwise/optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/gemm/pack.h"
#include "ops/cpu/gemm/repack.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/spans.h"

HWY_BEFORE_NAMESPACE();
namespace moe::ops {
namespace HWY_NAMESPACE {

// Squares of f32 are exact in double; the running sums are double too.
template <class X>
double SquaresOf(const X* x, int64_t count) noexcept {
  using DF64 = hn::ScalableTag<double>;
  const DF64 d64;
  const hn::Rebind<float, DF64> d;
  auto s0 = hn::Zero(d64), s1 = s0, s2 = s0, s3 = s0;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d64));
  const auto wide = [&](int64_t c) HWY_ATTR { return hn::PromoteTo(d64, LoadF32(d, x + c)); };
  int64_t c = 0;
  for (; c + 4 * lanes <= count; c += 4 * lanes) {
    const auto v0 = wide(c), v1 = wide(c + lanes), v2 = wide(c + 2 * lanes),
               v3 = wide(c + 3 * lanes);
    s0 = hn::MulAdd(v0, v0, s0);
    s1 = hn::MulAdd(v1, v1, s1);
    s2 = hn::MulAdd(v2, v2, s2);
    s3 = hn::MulAdd(v3, v3, s3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; c < count; ++c) sum += static_cast<double>(to_f32(x[c])) * to_f32(x[c]);
  return sum;
}

void SumSquaresBlocks(double* sums, Tensor x, int64_t block, int64_t begin, int64_t end) {
  WithFloat(x.dtype, [&](auto of_x) HWY_ATTR {
    for (int64_t b = begin; b < end; ++b) {
      sums[b] =
          SquaresOf(x.as<decltype(of_x)>() + b * block, HWY_MIN(block, x.numel() - b * block));
    }
  });
}

// g = grad_scale * grad;  value *= decay;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2)
// g^2;  value -= rate m / (sqrt(v) / root + eps) with decay = 1 - lr wd, rate = lr / (1 -
// beta1^step), root = sqrt(1 - beta2^step).
void AdamWSpan(float* value, float* m, float* v, const float* grad, const AdamW& opt, double rate,
               double root, int64_t count) {
  const DF32 d;
  const VF32 decay =
      hn::Set(d, static_cast<float>(1.0 - static_cast<double>(opt.lr) * opt.weight_decay));
  const VF32 clip = hn::Set(d, opt.grad_scale), keep2 = hn::Set(d, opt.beta2),
             eps = hn::Set(d, opt.eps);
  const VF32 new1 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(opt.beta1)));
  const VF32 new2 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(opt.beta2)));
  const VF32 step = hn::Set(d, static_cast<float>(rate)),
             root2 = hn::Set(d, static_cast<float>(root));
  ForColumns(d, count, [&](int64_t c, auto part) HWY_ATTR {
    const VF32 g = hn::Mul(Load(d, grad + c, part), clip), m0 = Load(d, m + c, part);
    const VF32 m1 = hn::MulAdd(new1, hn::Sub(g, m0), m0);
    const VF32 v1 = hn::MulAdd(hn::Mul(new2, g), g, hn::Mul(keep2, Load(d, v + c, part)));
    const VF32 size = hn::Add(hn::Div(hn::Sqrt(v1), root2), eps);
    const VF32 decayed = hn::Mul(Load(d, value + c, part), decay);
    Store(hn::NegMulAdd(step, hn::Div(m1, size), decayed), d, value + c, part);
    Store(m1, d, m + c, part);
    Store(v1, d, v + c, part);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace moe::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe::ops::cpu {
namespace {

HWY_EXPORT(SumSquaresBlocks);
HWY_EXPORT(AdamWSpan);

}  // namespace

void mean_square(Run& run, Tensor mean, Tensor x) {
  *mean.as<float>() = static_cast<float>(sum_squares(run, x) / static_cast<double>(x.numel()));
}

double sum_squares(Run& run, Tensor x) {
  double sum = 0;
  cpu::sums_of_squares(run, std::span(&sum, 1), {x});
  return sum;
}

void sums_of_squares(Run& run, std::span<double> sums, List<Tensor> all) {
  choose_isa();
  constexpr int64_t kBlock = 4096;
  std::vector<int64_t> first{0};  // of all blocks, each tensor's first
  for (const Tensor& x : all) {
    need(!x.empty() && is_float(x) && x.dense(), "sum_squares",
         "a tensor without gaps, f32 or bf16", {{"x", x}});
    first.push_back(first.back() + (x.numel() + kBlock - 1) / kBlock);
  }
  std::vector<double> of_blocks(static_cast<size_t>(first.back()));
  parallel_for(run.threads, first.back(), kGrainElements / kBlock,
               [&](int64_t begin, int64_t end, int) {
                 auto next = std::upper_bound(first.begin(), first.end(), begin);
                 for (; begin < end; ++next) {
                   const auto tensor = static_cast<size_t>(next - first.begin()) - 1;
                   const int64_t stop = std::min(end, *next);
                   HWY_DYNAMIC_DISPATCH(SumSquaresBlocks)
                   (of_blocks.data() + first[tensor], all.begin()[tensor], kBlock,
                    begin - first[tensor], stop - first[tensor]);
                   begin = stop;
                 }
               });
  for (size_t i = 0; i < all.size(); ++i)
    sums[i] = std::accumulate(of_blocks.begin() + first[i], of_blocks.begin() + first[i + 1], 0.0);
}

void settle_grad(Run& run, Param& param) {
  const int64_t parts = param.grad.empty() ? 0 : param.grad.matrices();
  for (int64_t e = 0; param.grad_is_zero && e < parts; ++e) zero(run, param.expert_grad(e));
  param.grad_is_zero = false;
}

namespace {

// One update of numbers [first, first + count), what hangs on the step being worked out once.
class Update {
 public:
  Update(Tensor value, Tensor m, Tensor v, Tensor grad, const AdamW& opt)
      : value_(value), m_(m), v_(v), grad_(grad), opt_(opt) {
    for (const Tensor& t : {value, m, v, grad}) {
      need(same_matrix(t, value) && t.dtype == DType::f32 && t.dense(), "adamw_step",
           "value, m, v and grad f32 of one shape without gaps",
           {{"value", value}, {"m", m}, {"v", v}, {"grad", grad}});
    }
    need(opt.step >= 1, "adamw_step", "a step of 1 or more", {{"value", value}});
    const double step = static_cast<double>(opt.step);
    rate_ = opt.lr / (1.0 - std::pow(static_cast<double>(opt.beta1), step));
    root_ = std::sqrt(1.0 - std::pow(static_cast<double>(opt.beta2), step));
  }
  void operator()(int64_t first, int64_t count) const {
    HWY_DYNAMIC_DISPATCH(AdamWSpan)
    (value_.as<float>() + first, m_.as<float>() + first, v_.as<float>() + first,
     grad_.as<float>() + first, opt_, rate_, root_, count);
  }

 private:
  Tensor value_, m_, v_, grad_;
  AdamW opt_;
  double rate_ = 0, root_ = 0;
};

}  // namespace

void adamw_step(Run& run, Tensor value, Tensor m, Tensor v, Tensor grad, const AdamW& opt) {
  choose_isa();
  const Update update(value, m, v, grad, opt);
  for_spans(run, value, true, [&](int64_t, int64_t first, int64_t count) { update(first, count); });
}

void adamw_step(Run& run, Param& param, Tensor m, Tensor v, const AdamW& opt) {
  choose_isa();
  settle_grad(run, param);
  const Tensor value = param.value;
  const Update update(value, m, v, param.grad, opt);
  const Repacker repacker(param, Repacker::Which::in_use);
  if (repacker.idle()) {
    for_spans(run, value, true,
              [&](int64_t, int64_t first, int64_t count) { update(first, count); });
  } else {
    parallel_for(run.threads, repacker.blocks(), row_grain(repacker.block_elements()),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t block = begin; block < end; ++block) {
                     const Span rows = repacker.rows(block);
                     update(rows.begin * value.cols(), (rows.end - rows.begin) * value.cols());
                     repacker.pack(block, false);
                   }
                   finish_streams();
                 });
  }
  param.touched();
  repacker.done(param);
  param.grad_is_zero = true;
}

}  // namespace moe::ops::cpu
#endif  // HWY_ONCE
