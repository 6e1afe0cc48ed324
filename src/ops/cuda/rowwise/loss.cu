// Cross-entropy over rows of f32 logits, and the divergence from a teacher's. Maximum and sum of a
// row are made in one pass: a thread's sum is scaled when its maximum grows, so that no logit
// overflows.
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kSteps = 4;        // of a row that a thread has at least, where rows are long
constexpr unsigned kMost = 512;  // threads of a row

// lse = m + log(sum_v e^(x_v - m)), m = max_v x_v, over the threads of a row. A thread that has met
// -inf alone has no maximum to take out: its sum is 0 as it is.
__device__ float logsumexp(const float* x, int64_t cols, bool steps, float* shared) {
  float most = -INFINITY, sum = 0;
  for_steps(cols, [&](int64_t c) {
    Step<float> v;
    v.load(x, c, cols, steps, -INFINITY);
    float next = most;
#pragma unroll
    for (int i = 0; i < kStep; ++i) next = fmaxf(next, v[i]);
    const float shift = next == -INFINITY ? 0.0f : next;
    sum *= expf(most - shift);
#pragma unroll
    for (int i = 0; i < kStep; ++i) sum += expf(v[i] - shift);
    most = next;
  });
  const float whole = row_max(most, shared);
  return whole + logf(row_sum(sum * expf(most - whole), shared));
}

__global__ void cross_entropy_rows(float* nll, float* lse, Rows<float> logits,
                                   const int32_t* targets, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(rows);
  const float* x = logits.row(own.r);
  const float whole = logsumexp(x, cols, steps, shared);
  if (!own.live || threadIdx.x > 0) return;
  const int32_t target = targets[own.r];
  lse[own.r] = whole;
  nll[own.r] = target == kIgnoreTarget ? 0.0f : target >= 0 ? whole - x[target] : whole;
}

// dlogits_v = scale (e^(x_v - lse) - [v = target]); expm1 keeps the digits of a target that is
// nearly certain.
template <class A>
__global__ void cross_entropy_rows_backward(Rows<A> dlogits, Rows<float> logits, const float* lse,
                                            const int32_t* targets, const float* weights,
                                            float scale, int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const int32_t target = targets[own.r];
  const float shift = lse[own.r], factor = weights != nullptr ? scale * weights[own.r] : scale;
  for_steps(cols, [&](int64_t c) {
    float out[kStep];
    if (target == kIgnoreTarget) {
#pragma unroll
      for (int i = 0; i < kStep; ++i) out[i] = 0;
    } else {
      Step<float> v;
      v.load(logits.row(own.r), c, cols, steps);
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float away = v[i] - shift;
        out[i] = factor * (c + i == target ? expm1f(away) : expf(away));
      }
    }
    Step<A>(out).store(dlogits.row(own.r), c, cols, steps);
  });
}

// kl = sum_v p_v ((t_v - lse_t) - (x_v - lse_x)): differences of logits first, so that a teacher
// who agrees gives exactly 0.
__global__ void divergence_rows(float* kl, float* teacher_lse, Rows<float> teacher,
                                Rows<float> logits, const float* lse, const int32_t* targets,
                                int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(rows);
  const float *t = teacher.row(own.r), *x = logits.row(own.r);
  const float of_teacher = logsumexp(t, cols, steps, shared), of_student = lse[own.r];
  float sum = 0;
  for_steps(cols, [&](int64_t c) {
    Step<float> v, w;
    v.load(t, c, cols, steps);
    w.load(x, c, cols, steps);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float log_p = v[i] - of_teacher, log_q = w[i] - of_student;
      if (c + i < cols) sum += expf(log_p) * (log_p - log_q);
    }
  });
  sum = row_sum(sum, shared);
  if (!own.live || threadIdx.x > 0) return;
  teacher_lse[own.r] = of_teacher;
  kl[own.r] = targets[own.r] == kIgnoreTarget ? 0.0f : sum;
}

struct Logits {
  Rows<float> numbers;
  const float* lse;
};

// dlogits_v = scale (q_v - share p_v - (1 - share) [v = target]), at the target (q - 1) - share (p
// - 1), each of which keeps its digits.
template <class A>
__global__ void divergence_rows_backward(Rows<A> dlogits, Logits student, Logits teacher,
                                         const int32_t* targets, float scale, float share,
                                         int64_t rows, int64_t cols, bool steps) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const int32_t target = targets[own.r];
  const float of_student = student.lse[own.r], of_teacher = teacher.lse[own.r];
  for_steps(cols, [&](int64_t c) {
    float out[kStep];
    Step<float> v, w;
    v.load(student.numbers.row(own.r), c, cols, steps);
    w.load(teacher.numbers.row(own.r), c, cols, steps);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float log_q = v[i] - of_student, log_p = w[i] - of_teacher;
      const bool is_target = c + i == target;
      const float q = is_target ? expm1f(log_q) : expf(log_q),
                  p = is_target ? expm1f(log_p) : expf(log_p);
      out[i] = target == kIgnoreTarget ? 0.0f : scale * (q - share * p);
    }
    Step<A>(out).store(dlogits.row(own.r), c, cols, steps);
  });
}

}  // namespace

void cross_entropy_forward(Run& run, Tensor nll, Tensor lse, Tensor logits,
                           std::span<const int32_t> targets) {
  check_cross_entropy_forward(run, nll, lse, logits, targets);
  Scratch scratch(run);
  const RowShape shape(logits.cols(), kSteps, kMost);
  launch(run, cross_entropy_rows, shape.blocks(logits.rows()), shape.block(), 0, nll.as<float>(),
         lse.as<float>(), Rows<float>(logits), on_device(run, targets), logits.rows(),
         logits.cols(), rows_in_steps({logits}));
}

void cross_entropy_backward(Run& run, Tensor dlogits, Tensor logits, Tensor lse,
                            std::span<const int32_t> targets, float scale,
                            std::span<const float> weights) {
  check_cross_entropy_backward(run, dlogits, logits, lse, targets, weights);
  Scratch scratch(run);
  const int32_t* wanted = on_device(run, targets);
  const float* counted = weights.empty() ? nullptr : on_device(run, weights);
  const RowShape shape(logits.cols(), kSteps, kMost);
  with_float(dlogits.dtype, [&](auto of_a) {
    using A = decltype(of_a);
    launch(run, cross_entropy_rows_backward<A>, shape.blocks(logits.rows()), shape.block(), 0,
           Rows<A>(dlogits), Rows<float>(logits), lse.as<float>(), wanted, counted, scale,
           logits.rows(), logits.cols(), rows_in_steps({dlogits, logits}));
  });
}

void divergence_forward(Run& run, Tensor kl, Tensor teacher_lse, Tensor teacher, Tensor logits,
                        Tensor lse, std::span<const int32_t> targets) {
  check_divergence_forward(run, kl, teacher_lse, teacher, logits, lse, targets);
  Scratch scratch(run);
  const RowShape shape(logits.cols(), kSteps, kMost);
  launch(run, divergence_rows, shape.blocks(logits.rows()), shape.block(), 0, kl.as<float>(),
         teacher_lse.as<float>(), Rows<float>(teacher), Rows<float>(logits), lse.as<float>(),
         on_device(run, targets), logits.rows(), logits.cols(), rows_in_steps({teacher, logits}));
}

void divergence_backward(Run& run, Tensor dlogits, Tensor logits, Tensor lse, Tensor teacher,
                         Tensor teacher_lse, std::span<const int32_t> targets, float scale,
                         float share) {
  check_divergence_backward(run, dlogits, logits, lse, teacher, teacher_lse, targets);
  Scratch scratch(run);
  const int32_t* wanted = on_device(run, targets);
  const RowShape shape(logits.cols(), kSteps, kMost);
  with_float(dlogits.dtype, [&](auto of_a) {
    using A = decltype(of_a);
    launch(run, divergence_rows_backward<A>, shape.blocks(logits.rows()), shape.block(), 0,
           Rows<A>(dlogits), Logits{Rows<float>(logits), lse.as<float>()},
           Logits{Rows<float>(teacher), teacher_lse.as<float>()}, wanted, scale, share,
           logits.rows(), logits.cols(), rows_in_steps({dlogits, logits, teacher}));
  });
}

}  // namespace moe::ops::cuda
