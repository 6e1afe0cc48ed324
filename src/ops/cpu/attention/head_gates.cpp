// Gates of heads (ops.h): what a head gives times one sigmoid of its own. With s = 1 / (1 + e^-g),
//   y = s o,  do = s dy,  dg = s (1 - s) <dy, o>.
#include <cmath>

#include "ops/cpu/functions.h"
#include "ops/cpu/spans.h"

namespace moe::ops::cpu {
namespace {

void check_head_gates(const char* op, const Tensor& y, const Tensor& o, const Tensor& gate) {
  need(is_float(o) && same_matrix(y, o) && y.dtype == o.dtype && gate.dtype == DType::f32 &&
           gate.rows() == o.rows() && gate.cols() > 0 && o.cols() % gate.cols() == 0,
       op, "y and o [N,H*C] f32 or bf16, gate [N,H] f32", {{"y", y}, {"o", o}, {"gate", gate}});
}

float share_of_head(float gate) { return 1 / (1 + std::exp(-gate)); }

void set_number(float& to, float x) { to = x; }
void set_number(bf16& to, float x) { to = to_bf16(x); }

template <class A>
void gate_rows(const Tensor& y, const Tensor& o, const Tensor& gate, int64_t begin, int64_t end) {
  const int64_t width = o.cols() / gate.cols();
  for (int64_t n = begin; n < end; ++n)
    for (int64_t h = 0; h < gate.cols(); ++h) {
      const float share = share_of_head(gate.row<float>(n)[h]);
      const A* from = o.row<A>(n) + h * width;
      A* to = y.row<A>(n) + h * width;
      for (int64_t c = 0; c < width; ++c) set_number(to[c], share * to_f32(from[c]));
    }
}

template <class A>
void gate_rows_backward(const Tensor& do_, const Tensor& dgate, const Tensor& y, const Tensor& dy,
                        const Tensor& o, const Tensor& gate, int64_t begin, int64_t end) {
  const int64_t width = o.cols() / gate.cols();
  for (int64_t n = begin; n < end; ++n)
    for (int64_t h = 0; h < gate.cols(); ++h) {
      const float share = share_of_head(gate.row<float>(n)[h]);
      const int64_t first = h * width;
      const A *given = o.row<A>(n) + first, *grad = dy.row<A>(n) + first;
      A *dgiven = do_.row<A>(n) + first, *gated = y.row<A>(n) + first;
      float sum = 0;
      for (int64_t c = 0; c < width; ++c) {
        const float d = to_f32(grad[c]), x = to_f32(given[c]);
        sum += d * x;
        set_number(dgiven[c], share * d);
        set_number(gated[c], share * x);
      }
      dgate.row<float>(n)[h] = share * (1 - share) * sum;
    }
}

}  // namespace

void head_gates_forward(Run& run, Tensor y, Tensor o, Tensor gate) {
  check_head_gates("head_gates_forward", y, o, gate);
  parallel_for(run.threads, o.rows(), row_grain(o.cols()), [&](int64_t begin, int64_t end, int) {
    if (o.dtype == DType::f32) gate_rows<float>(y, o, gate, begin, end);
    else gate_rows<bf16>(y, o, gate, begin, end);
  });
}

void head_gates_backward(Run& run, Tensor do_, Tensor dgate, Tensor y, Tensor dy, Tensor o,
                         Tensor gate) {
  check_head_gates("head_gates_backward", y, o, gate);
  check_head_gates("head_gates_backward", do_, dy, dgate);
  need(same_matrix(dy, o) && dy.dtype == o.dtype && dgate.cols() == gate.cols(),
       "head_gates_backward", "do and dy like o, dgate like gate",
       {{"do", do_}, {"dy", dy}, {"dgate", dgate}, {"o", o}, {"gate", gate}});
  parallel_for(run.threads, o.rows(), row_grain(o.cols()), [&](int64_t begin, int64_t end, int) {
    if (o.dtype == DType::f32) gate_rows_backward<float>(do_, dgate, y, dy, o, gate, begin, end);
    else gate_rows_backward<bf16>(do_, dgate, y, dy, o, gate, begin, end);
  });
}

}  // namespace moe::ops::cpu
