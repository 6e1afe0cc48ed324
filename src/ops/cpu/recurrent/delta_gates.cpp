// Decay and strength of a token at each head, and the decay at each of its channels where those
// have their own. Few numbers beside what the projections before them multiply: plain loops.
// Of decays that a floor F bounds, with s = sigmoid(r x), r = e^a_log and x = a + dt_bias,
//   y = F s,  dy/dx = F s (1 - s) r,  dy/da_log = F s (1 - s) r x.
#include <cmath>
#include <vector>

#include "ops/cpu/functions.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/spans.h"

namespace moe::ops::cpu {
namespace {

// The logarithm of a decay; its derivative by x, as two factors; that by the logarithm of `rate`.
struct Decay {
  float value, by_x, by_x_too, by_rate;
};
Decay decay_of(float rate, float x, float floor) {
  if (floor < 0) {
    const float s = sigmoid(rate * x), slope = s * (1 - s);
    return {floor * s, floor * rate, slope, floor * rate * slope * x};
  }
  const float value = -rate * softplus(x);
  return {value, -rate, sigmoid(x), value};
}

void check(const char* op, const Tensor& decay, const Tensor& strength, const Tensor& a,
           const Tensor& b, const Param& a_log, const Param& dt_bias) {
  const auto fits = [&](const Tensor& t, const Tensor& like) {
    return same_matrix(like, t) && t.dtype == DType::f32 && t.dense();
  };
  need(fits(a, a) && fits(decay, a) && fits(b, b) && fits(strength, b) && a.rows() == b.rows() &&
           b.cols() > 0 && a.cols() % b.cols() == 0,
       op, "b and strength [N,H], a and decay [N,H] or [N,H*C], all f32",
       {{"decay", decay}, {"strength", strength}, {"a", a}, {"b", b}});
  need(is_vector(a_log.value, b.cols()) && is_vector(dt_bias.value, a.cols()), op,
       "a_log [H] f32, dt_bias f32 as wide as a",
       {{"a_log", a_log.value}, {"dt_bias", dt_bias.value}, {"a", a}, {"b", b}});
}

}  // namespace

void delta_gates_forward(Run& run, Tensor log_decay, Tensor strength, Tensor a, Tensor b,
                         const Param& a_log, const Param& dt_bias, float most, float floor) {
  check("delta_gates_forward", log_decay, strength, a, b, a_log, dt_bias);
  const float *rate = a_log.value.as<float>(), *bias = dt_bias.value.as<float>();
  const int64_t heads = b.cols(), each = a.cols() / heads;
  parallel_for(run.threads, a.rows(), row_grain(16 * a.cols()),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t n = begin; n < end; ++n)
                   for (int64_t h = 0; h < heads; ++h) {
                     const float factor = std::exp(rate[h]);
                     for (int64_t c = h * each; c < (h + 1) * each; ++c)
                       log_decay.row<float>(n)[c] =
                           decay_of(factor, a.row<float>(n)[c] + bias[c], floor).value;
                     strength.row<float>(n)[h] = most * sigmoid(b.row<float>(n)[h]);
                   }
               });
}

void delta_gates_backward(Run& run, Tensor da, Tensor db, Param& a_log, Param& dt_bias,
                          Tensor dlog_decay, Tensor dstrength, Tensor a, Tensor b, float most,
                          float floor) {
  check("delta_gates_backward", da, db, a, b, a_log, dt_bias);
  check("delta_gates_backward", dlog_decay, dstrength, a, b, a_log, dt_bias);
  const float *rate = a_log.value.as<float>(), *bias = dt_bias.value.as<float>();
  for (Param* param : {&a_log, &dt_bias})
    if (!param->grad.empty()) settle_grad(run, *param);
  const int64_t heads = b.cols(), each = a.cols() / heads;
  const auto of_head = [&](int64_t h) {
    const float factor = std::exp(rate[h]);
    double drate = 0;
    std::vector<double> dbias(static_cast<size_t>(each));
    for (int64_t n = 0; n < a.rows(); ++n) {
      for (int64_t i = 0; i < each; ++i) {
        const int64_t c = h * each + i;
        const float grad = dlog_decay.row<float>(n)[c];
        const Decay decay = decay_of(factor, a.row<float>(n)[c] + bias[c], floor);
        const float through = grad * decay.by_x * decay.by_x_too;
        drate += static_cast<double>(grad) * static_cast<double>(decay.by_rate);
        dbias[static_cast<size_t>(i)] += static_cast<double>(through);
        da.row<float>(n)[c] = through;
      }
      const float s = sigmoid(b.row<float>(n)[h]);
      db.row<float>(n)[h] = dstrength.row<float>(n)[h] * most * s * (1 - s);
    }
    if (!a_log.grad.empty()) a_log.grad.as<float>()[h] += static_cast<float>(drate);
    if (dt_bias.grad.empty()) return;
    for (int64_t i = 0; i < each; ++i)
      dt_bias.grad.as<float>()[h * each + i] += static_cast<float>(dbias[static_cast<size_t>(i)]);
  };
  // Whole heads to each thread: a sum over tokens is one thread's.
  parallel_for(run.threads, heads, row_grain(16 * each * std::max<int64_t>(1, a.rows())),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t h = begin; h < end; ++h) of_head(h);
               });
}

}  // namespace moe::ops::cpu
