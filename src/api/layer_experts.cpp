// The experts of a layer on rows that the caller has routed.
#include <algorithm>
#include <limits>

#include "api/layer.h"
#include "ops/ops.h"

namespace moe::api {
namespace {

// What forward and backward are both given.
struct ExpertsCall {
  Tensor x;        // [N,D] A
  Tensor weights;  // [N,K] f32; absent: one expert that takes every token
  RoutingPlan plan;
  Rows rows;
  ExpertBank::Saved saved;  // memory of the caller's; absent: none is kept

  ExpertsCall(moe_layer& layer, Run& run, Arrays& arrays);
};

void need_weights(const moe_layer& layer) {
  if (layer.expert_width() == 0 || layer.width() == 0)
    fail_usage(
        "the layer was opened without experts; give @hidden_size and "
        "@moe_intermediate_size");
  for (const Param* p : layer.params)
    if (p->part == layer.layer.experts.up.part && !p->present())
      fail_usage("\"{}\" is not bound; moe_layer_bind() comes first", array_name(*p));
}

// R rows of the caller's memory for K a token; an expert's hidden row before its activation.
Tensor rows_kept(Arrays& arrays, const char* name, Tensor x, int64_t slots, int64_t rows,
                 int64_t width) {
  const Tensor all = arrays.find(name, kFloats, {x.rows() * slots, width});
  if (all.empty()) return all;
  if (all.dtype != x.dtype) fail_usage("{} must be {} like x", name, name_of(x.dtype));
  return all.slice_rows(0, rows);
}

ExpertsCall::ExpertsCall(moe_layer& layer, Run& run, Arrays& arrays) {
  need_weights(layer);
  x = arrays.take("x", kFloats, {Arrays::kAny, layer.width()});
  const int64_t tokens = x.rows(), experts = layer.experts();
  weights = arrays.find("weights", kF32, {tokens, Arrays::kAny});
  if (weights.empty() && experts > 1)
    fail_usage("\"experts\" and \"weights\" are missing; {} experts need them", experts);
  if (weights.empty()) {
    rows = whole(run.saved, x);
  } else {
    Tensor sent = arrays.find_whole(run.saved, "experts", {tokens, weights.cols()},
                                    std::numeric_limits<int32_t>::min(), experts);
    if (sent.empty()) fail_usage("\"experts\" is missing beside \"weights\"");
    Tensor kept = run.scratch.alloc(DType::i32, {tokens, weights.cols()});
    auto* expert = sent.as<int32_t>();
    for (int64_t i = 0; i < kept.numel(); ++i) {
      kept.as<int32_t>()[i] = expert[i] >= 0 && expert[i] < experts;
      if (kept.as<int32_t>()[i] == 0) expert[i] = 0;
    }
    plan = ops::make_plan(run, sent, kept, weights, experts);
    rows = dispatch(x, plan);
  }
  const int64_t slots = weights.empty() ? 1 : weights.cols(), count = rows.x.rows();
  if (layer.config.gated)
    saved.gate = rows_kept(arrays, "gate", x, slots, count, layer.expert_width());
  saved.up = rows_kept(arrays, "up", x, slots, count, layer.expert_width());
}

void experts_forward(moe_layer& layer, Run& run, Arrays& arrays) {
  ExpertsCall call(layer, run, arrays);
  const Tensor y = arrays.take("y", kFloats, {call.x.rows(), layer.width()});
  arrays.done();
  if (call.x.rows() == 0) return;
  if (call.weights.empty()) {
    layer.layer.experts.forward(run, y, call.rows, call.saved);
    return;
  }
  const Tensor out = run.scratch.alloc(DType::f32, {call.rows.x.rows(), layer.width()});
  layer.layer.experts.forward(run, out, call.rows, call.saved);
  combine(run, y, out, call.plan);
}

void experts_backward(moe_layer& layer, Run& run, Arrays& arrays) {
  ExpertsCall call(layer, run, arrays);
  const int64_t tokens = call.x.rows(), rows = call.rows.x.rows();
  const Tensor dy = arrays.take("dy", kFloats, {tokens, layer.width()}),
               dx = arrays.take("dx", kFloats, {tokens, layer.width()});
  if (dy.dtype != call.x.dtype)
    fail_usage("dy is {} and x {}; both need one dtype", name_of(dy.dtype), name_of(call.x.dtype));
  Tensor dweights;
  if (!call.weights.empty())
    dweights = arrays.find("dweights", kF32, {tokens, call.weights.cols()});
  const bool no_gate = layer.config.gated && call.saved.gate.empty();
  if (no_gate || call.saved.up.empty())
    fail_usage("\"{}\" is missing; a forward that a backward follows is given memory for it",
               no_gate ? "gate" : "up");
  BoundGrads grads(arrays, layer.params);
  arrays.done();
  if (tokens == 0) return grads.settle(run);
  if (call.weights.empty()) {
    layer.layer.experts.backward(run, dx, {}, dy, call.rows, call.saved);
    return grads.settle(run);
  }
  Tensor dweight = dweights.empty() ? Tensor{} : run.scratch.alloc(DType::f32, {rows}),
         drows = run.scratch.alloc(call.x.dtype, {rows, layer.width()});
  layer.layer.experts.backward(run, drows, dweight, {dy, call.plan.token}, call.rows, call.saved);
  combine(run, dx, drows, call.plan);
  if (!dweights.empty()) ops::spread_rows(run, dweights, dweight, call.plan);
  grads.settle(run);
}

// out[r] = W_e x[r] for rows that lie expert by expert: the layer's `up` alone, for what stands
// between an expert's products and is not in the engine.
struct ProductsCall {
  Param& w;
  Tensor rows;
  std::vector<int64_t> offsets;

  ProductsCall(moe_layer& layer, Arrays& arrays)
      : w(layer.layer.experts.up),
        rows(arrays.take("rows", kFloats, {Arrays::kAny, layer.width()})),
        offsets(arrays.wholes("offsets", layer.experts() + 1)) {
    if (!w.present())
      fail_usage("\"{}\" is not bound; moe_layer_bind() comes first", array_name(w));
    if (offsets.empty() || offsets.front() != 0 || offsets.back() != rows.rows() ||
        !std::is_sorted(offsets.begin(), offsets.end()))
      fail_usage("\"offsets\" must rise from 0 to the {} rows, a number more than experts",
                 rows.rows());
  }
};

void products_forward(moe_layer& layer, Run& run, Arrays& arrays) {
  ProductsCall call(layer, arrays);
  const Tensor out = arrays.take("out", kFloats, {call.rows.rows(), layer.expert_width()});
  arrays.done();
  ops::matmul_forward(run, out, call.rows, call.w, call.offsets);
}

void products_backward(moe_layer& layer, Run& run, Arrays& arrays) {
  ProductsCall call(layer, arrays);
  const Tensor dout = arrays.take("dout", kFloats, {call.rows.rows(), layer.expert_width()}),
               drows = arrays.take("drows", kFloats, {call.rows.rows(), layer.width()});
  BoundGrads grads(arrays, layer.params);
  arrays.done();
  ops::matmul_dx(run, drows, dout, call.w, call.offsets);
  ops::matmul_dw(run, call.w, dout, call.rows, call.offsets);
  grads.settle(run);
}

}  // namespace
}  // namespace moe::api

using namespace moe::api;

extern "C" {

moe_status moe_layer_experts(moe_layer* layer, const moe_array* arrays, size_t count) {
  return called(layer, arrays, count, "moe_layer_experts", experts_forward);
}

moe_status moe_layer_experts_backward(moe_layer* layer, const moe_array* arrays, size_t count) {
  return called(layer, arrays, count, "moe_layer_experts_backward", experts_backward);
}

moe_status moe_layer_products(moe_layer* layer, const moe_array* arrays, size_t count) {
  return called(layer, arrays, count, "moe_layer_products", products_forward);
}

moe_status moe_layer_products_backward(moe_layer* layer, const moe_array* arrays, size_t count) {
  return called(layer, arrays, count, "moe_layer_products_backward", products_backward);
}
}
