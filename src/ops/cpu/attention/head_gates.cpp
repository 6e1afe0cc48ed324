// Gates (ops.h): what a head gives, or each number of it, times a number of its own. With w = s(g),
//   y = w o,  do = w dy,  dg = s'(g) <dy, o>,
// s(g) = 1 / (1 + e^-g) with s' = s (1 - s), or s(g) = log(1 + e^g) with s' = 1 / (1 + e^-g).
// Plain loops beside the products before and behind them.
#include "ops/cpu/functions.h"
#include "ops/cpu/scalars.h"
#include "ops/cpu/spans.h"

namespace moe::ops::cpu {
namespace {

void check_head_gates(const char* op, const Tensor& y, const Tensor& o, const Tensor& gate) {
  need(is_float(o) && same_matrix(y, o) && y.dtype == o.dtype && gate.dtype == DType::f32 &&
           gate.rows() == o.rows() && gate.cols() > 0 && o.cols() % gate.cols() == 0,
       op, "y and o [N,G*W] f32 or bf16, gate [N,G] f32", {{"y", y}, {"o", o}, {"gate", gate}});
}

struct GateWeight {
  float value, slope;
};

GateWeight gate_weight(float z, GateCurve curve) {
  const float share = sigmoid(z);
  if (curve == GateCurve::sigmoid) return {share, share * (1 - share)};
  return {softplus(z), share};
}

template <class A>
void gate_rows(const Tensor& y, const Tensor& o, const Tensor& gate, GateCurve curve, int64_t begin,
               int64_t end) {
  const int64_t width = o.cols() / gate.cols();
  for (int64_t n = begin; n < end; ++n)
    for (int64_t g = 0; g < gate.cols(); ++g) {
      const float weight = gate_weight(gate.row<float>(n)[g], curve).value;
      const A* from = o.row<A>(n) + g * width;
      A* to = y.row<A>(n) + g * width;
      for (int64_t c = 0; c < width; ++c) put(to[c], weight * to_f32(from[c]));
    }
}

template <class A>
void gate_rows_backward(const Tensor& do_, const Tensor& dgate, const Tensor& y, const Tensor& dy,
                        const Tensor& o, const Tensor& gate, GateCurve curve, int64_t begin,
                        int64_t end) {
  const int64_t width = o.cols() / gate.cols();
  for (int64_t n = begin; n < end; ++n)
    for (int64_t g = 0; g < gate.cols(); ++g) {
      const GateWeight weight = gate_weight(gate.row<float>(n)[g], curve);
      const int64_t first = g * width;
      const A *given = o.row<A>(n) + first, *grad = dy.row<A>(n) + first;
      A *dgiven = do_.row<A>(n) + first, *gated = y.row<A>(n) + first;
      float sum = 0;
      for (int64_t c = 0; c < width; ++c) {
        const float d = to_f32(grad[c]), x = to_f32(given[c]);
        sum += d * x;
        put(dgiven[c], weight.value * d);
        put(gated[c], weight.value * x);
      }
      dgate.row<float>(n)[g] = weight.slope * sum;
    }
}

}  // namespace

void head_gates_forward(Run& run, Tensor y, Tensor o, Tensor gate, GateCurve curve) {
  check_head_gates("head_gates_forward", y, o, gate);
  parallel_for(run.threads, o.rows(), row_grain(o.cols()), [&](int64_t begin, int64_t end, int) {
    if (o.dtype == DType::f32) gate_rows<float>(y, o, gate, curve, begin, end);
    else gate_rows<bf16>(y, o, gate, curve, begin, end);
  });
}

void head_gates_backward(Run& run, Tensor do_, Tensor dgate, Tensor y, Tensor dy, Tensor o,
                         Tensor gate, GateCurve curve) {
  check_head_gates("head_gates_backward", y, o, gate);
  check_head_gates("head_gates_backward", do_, dy, dgate);
  need(same_matrix(dy, o) && dy.dtype == o.dtype && dgate.cols() == gate.cols(),
       "head_gates_backward", "do and dy like o, dgate like gate",
       {{"do", do_}, {"dy", dy}, {"dgate", dgate}, {"o", o}, {"gate", gate}});
  parallel_for(run.threads, o.rows(), row_grain(o.cols()), [&](int64_t begin, int64_t end, int) {
    if (o.dtype == DType::f32)
      gate_rows_backward<float>(do_, dgate, y, dy, o, gate, curve, begin, end);
    else gate_rows_backward<bf16>(do_, dgate, y, dy, o, gate, curve, begin, end);
  });
}

}  // namespace moe::ops::cpu
