// Decay and strength of a token at each head, from two numbers. Few of them: plain loops.
#include <cmath>

#include "ops/cpu/functions.h"
#include "ops/cpu/spans.h"

namespace moe::ops::cpu {
namespace {

// log(1 + e^x); beyond 20 that is x in f32 (as torch.nn.functional.softplus has it)
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void check(const char* op, const Tensor& decay, const Tensor& strength, const Tensor& a,
           const Tensor& b, const Param& a_log, const Param& dt_bias) {
  const auto fits = [&](const Tensor& t) {
    return same_matrix(a, t) && t.dtype == DType::f32 && t.dense();
  };
  need(fits(a) && fits(b) && fits(decay) && fits(strength), op, "matrices [N,H] f32",
       {{"decay", decay}, {"strength", strength}, {"a", a}, {"b", b}});
  need(is_vector(a_log.value, a.cols()) && is_vector(dt_bias.value, a.cols()), op,
       "a_log and dt_bias [H] f32", {{"a_log", a_log.value}, {"dt_bias", dt_bias.value}, {"a", a}});
}

}  // namespace

void delta_gates_forward(Run& run, Tensor log_decay, Tensor strength, Tensor a, Tensor b,
                         const Param& a_log, const Param& dt_bias) {
  check("delta_gates_forward", log_decay, strength, a, b, a_log, dt_bias);
  const float *rate = a_log.value.as<float>(), *bias = dt_bias.value.as<float>();
  const int64_t heads = a.cols();
  parallel_for(run.threads, a.rows(), row_grain(16 * heads), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t h = 0; h < heads; ++h) {
        log_decay.row<float>(n)[h] = -std::exp(rate[h]) * softplus(a.row<float>(n)[h] + bias[h]);
        strength.row<float>(n)[h] = sigmoid(b.row<float>(n)[h]);
      }
  });
}

void delta_gates_backward(Run& run, Tensor da, Tensor db, Param& a_log, Param& dt_bias,
                          Tensor dlog_decay, Tensor dstrength, Tensor a, Tensor b) {
  check("delta_gates_backward", da, db, a, b, a_log, dt_bias);
  check("delta_gates_backward", dlog_decay, dstrength, a, b, a_log, dt_bias);
  const float *rate = a_log.value.as<float>(), *bias = dt_bias.value.as<float>();
  for (Param* param : {&a_log, &dt_bias})
    if (!param->grad.empty()) settle_grad(run, *param);
  for (int64_t h = 0; h < a.cols(); ++h) {
    const float factor = -std::exp(rate[h]);
    double drate = 0, dbias = 0;
    for (int64_t n = 0; n < a.rows(); ++n) {
      const float x = a.row<float>(n)[h] + bias[h], grad = dlog_decay.row<float>(n)[h],
                  s = sigmoid(b.row<float>(n)[h]);
      const float through = grad * factor * sigmoid(x);
      drate += static_cast<double>(grad) * static_cast<double>(factor * softplus(x));
      dbias += static_cast<double>(through);
      da.row<float>(n)[h] = through;
      db.row<float>(n)[h] = dstrength.row<float>(n)[h] * s * (1 - s);
    }
    if (!a_log.grad.empty()) a_log.grad.as<float>()[h] += static_cast<float>(drate);
    if (!dt_bias.grad.empty()) dt_bias.grad.as<float>()[h] += static_cast<float>(dbias);
  }
}

}  // namespace moe::ops::cpu
