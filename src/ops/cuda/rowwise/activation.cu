// The hidden layer of an expert: activation, gate and combine weight in one pass. Values are
// widened, computed in f32 and rounded once.
#include "ops/cuda/rowwise/curves.h"
#include "ops/cuda/rowwise/row.h"
#include "ops/op_checks.h"

namespace moe::ops::cuda {
namespace {

constexpr int kSteps = 2;  // of a thread, on their way at once

// h = weight act(gate) beside(up), or weight act(up) without a gate
template <bool steps, Act act, class A>
__global__ void act_rows(Rows<A> hidden, Rows<A> gate, Rows<A> up, const float* weight,
                         int64_t rows, int64_t cols) {
  begin_in_turn();
  const OwnRow own(rows);
  if (!own.live) return;
  const float w = weight != nullptr ? weight[own.r] : 1.0f;
  Step<A> ups[kSteps], gates[kSteps];
  const auto look = [&](int k, int64_t c) {
    ups[k].load(up.row(own.r), c, cols, steps);
    if (!gate.empty()) gates[k].load(gate.row(own.r), c, cols, steps);
  };
  for_steps_at_once<kSteps>(cols, look, [&](int k, int64_t c) {
    const Step<A>&u = ups[k], &g = gates[k];
    float h[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (gate.empty()) h[i] = w * activate<act>(u[i]).value;
      else h[i] = w * (activate<act>(g[i]).value * beside<act>(u[i]).value);
    }
    Step<A>(h).store(hidden.row(own.r), c, cols, steps);
  });
}

template <class A>
struct ActGrads {
  Rows<A> dgate, dup, hidden;
  float* dweight;
};

// With a = act(gate), b = beside(up), h = a b, and e = weight dhidden:  dup = e a b';  dgate = e b
// act'(gate);  hidden = weight h;  dweight = sum_f dhidden h. Without a gate h = act(up) and dup =
// e act'(up).
template <bool steps, Act act, class A>
__global__ void act_rows_backward(ActGrads<A> out, Rows<A> dhidden, Rows<A> gate, Rows<A> up,
                                  const float* weight, int64_t rows, int64_t cols) {
  begin_in_turn();
  __shared__ float shared[33];
  const OwnRow own(rows);
  const float w = weight != nullptr ? weight[own.r] : 1.0f;
  float sum = 0;
  Step<A> ups[kSteps], gates[kSteps], grads[kSteps];
  const auto look = [&](int k, int64_t c) {
    ups[k].load(up.row(own.r), c, cols, steps);
    grads[k].load(dhidden.row(own.r), c, cols, steps);
    if (!gate.empty()) gates[k].load(gate.row(own.r), c, cols, steps);
  };
  for_steps_at_once<kSteps>(own.live ? cols : 0, look, [&](int k, int64_t c) {
    const Step<A>&u = ups[k], &g = gates[k], &dh = grads[k];
    float dgate[kStep] = {}, dup[kStep], hidden[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float e = w * dh[i];
      float h;
      if (gate.empty()) {
        const Curve a = activate<act>(u[i]);
        h = a.value;
        dup[i] = e * a.slope;
      } else {
        const Curve a = activate<act>(g[i]), b = beside<act>(u[i]);
        h = a.value * b.value;
        dgate[i] = e * b.value * a.slope;
        dup[i] = e * a.value * b.slope;
      }
      sum += dh[i] * h;  // beyond the row dh is 0
      hidden[i] = w * h;
    }
    Step<A>(dup).store(out.dup.row(own.r), c, cols, steps);
    Step<A>(hidden).store(out.hidden.row(own.r), c, cols, steps);
    if (!gate.empty()) Step<A>(dgate).store(out.dgate.row(own.r), c, cols, steps);
  });
  if (out.dweight == nullptr) return;
  sum = row_sum(sum, shared);
  if (own.live && threadIdx.x == 0) out.dweight[own.r] = sum;
}

float* numbers_of(const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); }

}  // namespace

void ffn_act_forward(Run& run, Tensor hidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  check_ffn_act_forward(hidden, gate, up, weight);
  const RowShape shape(up.cols(), steps_for(up.rows(), kSteps));
  const bool steps = rows_in_steps({hidden, up}) && (gate.empty() || rows_in_steps({gate}));
  with_float(up.dtype, [&](auto of_a) {
    with_act(act, [&](auto of_act) {
      using A = decltype(of_a);
      constexpr Act kAct = decltype(of_act)::value;
      launch(run, steps ? act_rows<true, kAct, A> : act_rows<false, kAct, A>,
             shape.blocks(up.rows()), shape.block(), 0, Rows<A>(hidden), Rows<A>(gate), Rows<A>(up),
             numbers_of(weight), up.rows(), up.cols());
    });
  });
}

void ffn_act_backward(Run& run, Tensor dgate, Tensor dup, Tensor hidden, Tensor dweight,
                      Tensor dhidden, Tensor gate, Tensor up, Tensor weight, Act act) {
  check_ffn_act_backward(dgate, dup, hidden, dweight, dhidden, gate, up, weight);
  const RowShape shape(up.cols(), steps_for(up.rows(), kSteps));
  const bool steps =
      rows_in_steps({dup, hidden, dhidden, up}) && (gate.empty() || rows_in_steps({dgate, gate}));
  with_float(up.dtype, [&](auto of_a) {
    with_act(act, [&](auto of_act) {
      using A = decltype(of_a);
      constexpr Act kAct = decltype(of_act)::value;
      launch(run, steps ? act_rows_backward<true, kAct, A> : act_rows_backward<false, kAct, A>,
             shape.blocks(up.rows()), shape.block(), 0,
             ActGrads<A>{Rows<A>(dgate), Rows<A>(dup), Rows<A>(hidden), numbers_of(dweight)},
             Rows<A>(dhidden), Rows<A>(gate), Rows<A>(up), numbers_of(weight), up.rows(),
             up.cols());
    });
  });
}

}  // namespace moe::ops::cuda
