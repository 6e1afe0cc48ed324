// A learned score of each head that takes a share of the weights and gives nothing (gpt-oss;
// transformers:gpt_oss/modeling_gpt_oss.py, eager_attention_forward). With l = logsumexp of a
// query's scores and s the sink, l' = log(e^l + e^s) and the weights are e^(z - l'), so
//   o' = o e^(l - l') = o / (1 + e^(s - l)).
// attention_backward makes of o' and l' the gradients of q, k and v; the sink's is
//   ds = -sum_n e^(s - l'[n]) <do'[n], o'[n]>.
#include <algorithm>
#include <cmath>

#include "ops/cpu/functions.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/spans.h"

namespace moe::ops::cpu {
namespace {

void check(const char* op, const Tensor& o, const Tensor& lse, const Param& sinks) {
  const int64_t heads = sinks.value.numel();
  need(is_float(o) && is_vector(sinks.value, heads) && heads > 0 && o.cols() % heads == 0 &&
           lse.dtype == DType::f32 && lse.rows() == o.rows() && lse.cols() == heads,
       op, "o [N,H*Cv] f32 or bf16, lse [N,H] and sinks [H] f32",
       {{"o", o}, {"lse", lse}, {"sinks", sinks.value}});
}

template <class A>
void apply(Run& run, const Tensor& o, const Tensor& lse, const float* sinks, int64_t heads) {
  const int64_t width = o.cols() / heads;
  parallel_for(run.threads, o.rows(), row_grain(o.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t h = 0; h < heads; ++h) {
        float& l = lse.row<float>(n)[h];
        const float s = sinks[h], share = 1 / (1 + std::exp(s - l));
        A* row = o.row<A>(n) + h * width;
        for (int64_t c = 0; c < width; ++c) put(row[c], share * to_f32(row[c]));
        l = std::max(l, s) + std::log1p(std::exp(-std::fabs(s - l)));
      }
  });
}

template <class A>
double inner(const A* a, const A* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(to_f32(a[i])) * static_cast<double>(to_f32(b[i]));
  return sum;
}

}  // namespace

void attention_sinks(Run& run, Tensor o, Tensor lse, const Param& sinks) {
  check("attention_sinks", o, lse, sinks);
  const int64_t heads = sinks.value.numel();
  if (o.dtype == DType::f32) apply<float>(run, o, lse, sinks.value.as<float>(), heads);
  else apply<bf16>(run, o, lse, sinks.value.as<float>(), heads);
}

void attention_sinks_backward(Run& run, Param& sinks, Tensor do_, Tensor o, Tensor lse) {
  check("attention_sinks_backward", o, lse, sinks);
  need(same_matrix(do_, o) && do_.dtype == o.dtype, "attention_sinks_backward", "do like o",
       {{"do", do_}, {"o", o}});
  if (sinks.grad.empty()) return;
  settle_grad(run, sinks);
  const int64_t heads = sinks.value.numel(), width = o.cols() / heads;
  // A head's sum is one thread's, in the order of the rows.
  parallel_for(run.threads, heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;
      for (int64_t n = 0; n < o.rows(); ++n) {
        const double dot =
            o.dtype == DType::f32
                ? inner(do_.row<float>(n) + h * width, o.row<float>(n) + h * width, width)
                : inner(do_.row<bf16>(n) + h * width, o.row<bf16>(n) + h * width, width);
        sum += dot * std::exp(static_cast<double>(sinks.value.as<float>()[h]) -
                              static_cast<double>(lse.row<float>(n)[h]));
      }
      sinks.grad.as<float>()[h] -= static_cast<float>(sum);
    }
  });
}

}  // namespace moe::ops::cpu
