// Softmax, logsumexp and the square root of softplus over rows of f32 logits with their adjoints.
// The maximum is taken out before any exponential, so no logit overflows; a row with a NaN or +inf
// is NaN throughout.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kHeld = 2;  // steps of a row that a thread keeps
using Held = HeldRow<float, kHeld>;

// s_c = e^(z_c - m) / sum, lse = m + log(sum), m = max_c z_c. Divided, not multiplied by the
// reciprocal: equal logits then have equal scores that add up to 1 where 1 / cols is a number of
// f32.  s may be null, or z
__global__ void softmax_rows(Rows<float> s, float* lse, Rows<float> z, int64_t rows, int64_t cols,
                             bool steps) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(rows);
  const Held held(z.row(own.r), cols, steps, -INFINITY);
  float most = -INFINITY;
  held.each([&](const Step<float>& v, int64_t) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) most = fmaxf(most, v[i]);
  });
  most = row_max(most, shared);
  float sum = 0;
  held.each([&](const Step<float>& v, int64_t) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum += expf(v[i] - most);
  });
  sum = row_sum(sum, shared);
  if (!own.live) return;
  if (lse != nullptr && threadIdx.x == 0) lse[own.r] = most + logf(sum);
  if (s.empty()) return;
  held.each([&](const Step<float>& v, int64_t c) {
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) out[i] = expf(v[i] - most) / sum;
    Step<float>(out).store(s.row(own.r), c, cols, steps);
  });
}

// dz_c = s_c (ds_c - <ds, s> + dlse)
__global__ void softmax_rows_backward(Rows<float> dz, Rows<float> ds, const float* dlse,
                                      Rows<float> s, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(rows);
  const Held of_ds(ds.row(own.r), cols, steps);
  float dot = 0;
  of_ds.each([&](const Step<float>& grad, int64_t c) {
    Step<float> v;
    v.load(s.row(own.r), c, cols, steps);
#pragma unroll
    for (int i = 0; i < kStep; ++i) dot += grad[i] * v[i];
  });
  dot = row_sum(dot, shared);
  if (!own.live) return;
  const float shift = dlse != nullptr ? dot - dlse[own.r] : dot;
  of_ds.each([&](const Step<float>& grad, int64_t c) {
    Step<float> v;
    v.load(s.row(own.r), c, cols, steps);
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) out[i] = v[i] * (grad[i] - shift);
    Step<float>(out).store(dz.row(own.r), c, cols, steps);
  });
}

// dz_c += dlse e^(z_c - lse)
__global__ void logsumexp_rows_backward(Rows<float> dz, const float* dlse, Rows<float> z,
                                        const float* lse, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const float shift = lse[own.r], factor = dlse[own.r];
  for_steps(cols, [&](int64_t c) {
    Step<float> v, grad;
    v.load(z.row(own.r), c, cols, steps);
    grad.load(dz.row(own.r), c, cols, steps);
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) out[i] = grad[i] + factor * expf(v[i] - shift);
    Step<float>(out).store(dz.row(own.r), c, cols, steps);
  });
}

// ops/cpu/routing/score.cpp has the formulas.
__global__ void sqrt_softplus_rows(Rows<float> s, Rows<float> z, int64_t rows, int64_t cols,
                                   bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  for_steps(cols, [&](int64_t c) {
    Step<float> v;
    v.load(z.row(own.r), c, cols, steps);
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i)
      out[i] = sqrtf((v[i] < 0 ? 0.0f : v[i]) + log1pf(expf(-fabsf(v[i]))));  // keeps NaN
    Step<float>(out).store(s.row(own.r), c, cols, steps);
  });
}

__global__ void sqrt_softplus_rows_backward(Rows<float> dz, Rows<float> ds, Rows<float> s,
                                            Rows<float> z, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  for_steps(cols, [&](int64_t c) {
    Step<float> v, score, grad;
    v.load(z.row(own.r), c, cols, steps);
    score.load(s.row(own.r), c, cols, steps);
    grad.load(ds.row(own.r), c, cols, steps);
    float out[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float t = expf(-fabsf(v[i])), sigmoid = (v[i] < 0 ? t : 1.0f) / (1.0f + t);
      out[i] = grad[i] * (score[i] > 0 ? sigmoid / (score[i] + score[i]) : 0.0f);
    }
    Step<float>(out).store(dz.row(own.r), c, cols, steps);
  });
}

float* numbers_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

}  // namespace

void softmax_forward(Run& run, Tensor s, Tensor lse, Tensor z) {
  check_softmax_forward(s, lse, z);
  const RowShape shape(z.cols(), 1);
  launch(run, softmax_rows, shape.blocks(z.rows()), shape.block(), 0, Rows<float>(s),
         numbers_of(lse), Rows<float>(z), z.rows(), z.cols(),
         rows_in_steps({z}) && (s.empty() || rows_in_steps({s})));
}

void softmax_backward(Run& run, Tensor dz, Tensor ds, Tensor dlse, Tensor s) {
  check_softmax_backward(dz, ds, dlse, s);
  const RowShape shape(s.cols(), 1);
  launch(run, softmax_rows_backward, shape.blocks(s.rows()), shape.block(), 0, Rows<float>(dz),
         Rows<float>(ds), numbers_of(dlse), Rows<float>(s), s.rows(), s.cols(),
         rows_in_steps({dz, ds, s}));
}

void logsumexp_backward_acc(Run& run, Tensor dz, Tensor dlse, Tensor z, Tensor lse) {
  check_logsumexp_backward(dz, dlse, z, lse);
  const RowShape shape(z.cols(), 1);
  launch(run, logsumexp_rows_backward, shape.blocks(z.rows()), shape.block(), 0, Rows<float>(dz),
         dlse.as<float>(), Rows<float>(z), lse.as<float>(), z.rows(), z.cols(),
         rows_in_steps({dz, z}));
}

void sqrt_softplus_forward(Run& run, Tensor s, Tensor z) {
  check_sqrt_softplus_forward(s, z);
  const RowShape shape(z.cols(), 1);
  launch(run, sqrt_softplus_rows, shape.blocks(z.rows()), shape.block(), 0, Rows<float>(s),
         Rows<float>(z), z.rows(), z.cols(), rows_in_steps({s, z}));
}

void sqrt_softplus_backward(Run& run, Tensor dz, Tensor ds, Tensor s, Tensor z) {
  check_sqrt_softplus_backward(dz, ds, s, z);
  const RowShape shape(z.cols(), 1);
  launch(run, sqrt_softplus_rows_backward, shape.blocks(z.rows()), shape.block(), 0,
         Rows<float>(dz), Rows<float>(ds), Rows<float>(s), Rows<float>(z), z.rows(), z.cols(),
         rows_in_steps({dz, ds, s, z}));
}

}  // namespace moe::ops::cuda
