// The routing of a layer's tokens.
#include <algorithm>
#include <cstring>
#include <limits>

#include "api/layer.h"
#include "ops/ops.h"

namespace moe::api {
namespace {

// What forward and backward are both given, and the routing that it makes each time.
struct RouteCall {
  Router& router;
  const RoutingSpec& spec;
  Tensor x, logits;  // [N,D] A or [N,E] f32; neither where ids decide
  Tensor ids;        // [N] i32
  std::vector<int64_t> bounds;
  std::vector<std::vector<int64_t>> step_counts;
  std::vector<Tensor> recorded;
  Pass pass;
  Routing saved;
  RoutingPlan plan;

  RouteCall(moe_layer& layer, Run& run, Arrays& arrays, bool training, uint64_t seed);
  int64_t tokens() const { return saved.tokens(); }
};

// Refuses what these stages read and nobody has bound.
void need_router(const moe_layer& layer, const RoutingSpec& spec, bool makes_logits, bool draws) {
  const Router& router = *layer.layer.router;
  const auto is_read = [&](const Param* p) {
    if (p == &router.scale) return has_expert_scale(spec.weigh);
    if (p == &router.bias) return selection_bias(spec.select) != nullptr;
    if (p == &router.threshold) return std::holds_alternative<ThresholdChoice>(spec.select);
    if (p == &router.noise)
      return makes_logits && draws && std::holds_alternative<LearnedNoise>(spec.noise);
    return makes_logits;
  };
  for (const Param* p : layer.params)
    if (p->part == Part::router && is_read(p) && !p->present())
      fail_usage("\"{}\" is not bound; moe_layer_bind() comes first", array_name(*p));
}

RouteCall::RouteCall(moe_layer& layer, Run& run, Arrays& arrays, bool training, uint64_t seed)
    : router(*layer.layer.router), spec(training ? layer.train : layer.eval) {
  const int64_t experts = layer.experts();
  logits = arrays.find("logits", kF32, {Arrays::kAny, experts});
  if (layer.width() > 0) x = arrays.find("x", kFloats, {Arrays::kAny, layer.width()});
  ids = arrays.find_whole(run.saved, "ids", {Arrays::kAny}, 0, std::numeric_limits<int32_t>::max());
  const bool by_ids = !needs_logits(spec.select);
  if (by_ids ? ids.empty() : logits.empty() == x.empty())
    fail_usage("{}", by_ids ? "\"ids\" is missing; hash routing reads token ids"
                            : "either \"logits\" or \"x\" is needed, and not both");
  need_router(layer, spec, !by_ids && !x.empty(), seed != 0);
  const int64_t n = by_ids ? ids.numel() : x.empty() ? logits.rows() : x.rows();
  if (Tensor b = arrays.find_whole(run.saved, "bounds", {Arrays::kAny}, 0, n); !b.empty())
    bounds.assign(b.as<int32_t>(), b.as<int32_t>() + b.numel());
  check_bounds("bounds", bounds, n);
  if (std::vector<int64_t> counts = arrays.wholes("step_counts", experts); !counts.empty())
    step_counts.push_back(std::move(counts));
  if (Tensor r = arrays.find_whole(run.saved, "recorded", {n, spec.slots()},
                                   std::numeric_limits<int32_t>::min(), experts - 1);
      !r.empty())
    recorded.push_back(r);
  std::span<const int32_t> token_ids;
  if (!ids.empty()) token_ids = {ids.as<int32_t>(), static_cast<size_t>(n)};
  pass = {.batch = {.ids = token_ids, .bounds = bounds},
          .routing = &spec,
          .keep = Keep::all,
          .step_counts = step_counts,
          .recorded = recorded.empty() ? nullptr : &recorded,
          .wanted = Wanted::all()};
  const RngKey key = seed == 0 ? RngKey{} : RngKey::from_seed(seed);
  if (!logits.empty()) {
    saved.key = key;
    saved.logits = logits;
    plan = router.decide(run, pass, saved);
  } else {
    plan = router.forward(run, x, pass, key, saved);
  }
}

void copy(Tensor to, Tensor from) {
  if (to.empty()) return;
  if (from.empty()) std::memset(to.data, 0, static_cast<size_t>(to.bytes()));
  else std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
}

void route_forward(moe_layer& layer, Run& run, Arrays& arrays, bool training, uint64_t seed) {
  RouteCall call(layer, run, arrays, training, seed);
  static constexpr DType kI32[] = {DType::i32};
  const Routing& saved = call.saved;
  const int64_t n = saved.tokens(), k = saved.slots(), e = saved.experts;
  const Tensor experts = arrays.take("experts", kI32, {n, k}),
               weights = arrays.take("weights", kF32, {n, k}),
               sent = arrays.find("sent", kI32, {n, k}),
               losses = arrays.find("losses", kF32, {kRoutingLosses}),
               counts = arrays.find("counts", kI32, {e}),
               balance_counts = arrays.find("balance_counts", kI32, {e}),
               cutoff = arrays.find("cutoff", kF32, {e}),
               logits = arrays.find("logits_out", kF32, {n, e});
  arrays.done();
  for (int64_t i = 0; i < n * k; ++i) {
    const bool selected = saved.selected.as<int32_t>()[i] != 0;
    experts.as<int32_t>()[i] = selected ? saved.choice.as<int32_t>()[i] : -1;
  }
  std::fill_n(weights.as<float>(), n * k, 0.0f);
  if (!sent.empty()) std::fill_n(sent.as<int32_t>(), n * k, -1);
  for (int64_t r = 0; r < call.plan.rows(); ++r) {
    const int32_t pair = call.plan.pair[static_cast<size_t>(r)];
    weights.as<float>()[pair] = call.plan.weight.as<float>()[r];
    if (!sent.empty()) sent.as<int32_t>()[pair] = saved.choice.as<int32_t>()[pair];
  }
  if (!losses.empty()) std::copy_n(saved.losses.as<float>(), kRoutingLosses, losses.as<float>());
  copy(counts, saved.counts);
  copy(balance_counts, saved.balance_counts);
  copy(cutoff, saved.cutoff);
  copy(logits, saved.logits);
}

// The gradient of the plan's rows [R] out of that of the weights [N,K]; absent: zeros.
Tensor of_rows(Run& run, Tensor dweights, const RoutingPlan& plan) {
  const Tensor out = run.scratch.alloc_zeroed(DType::f32, {plan.rows()});
  for (int64_t r = 0; !dweights.empty() && r < plan.rows(); ++r)
    out.as<float>()[r] = dweights.as<float>()[plan.pair[static_cast<size_t>(r)]];
  return out;
}

void route_backward(moe_layer& layer, Run& run, Arrays& arrays, bool training, uint64_t seed) {
  RouteCall call(layer, run, arrays, training, seed);
  const int64_t n = call.tokens(), e = call.saved.experts;
  const Tensor dweights = arrays.find("dweights", kF32, {n, call.saved.slots()}),
               dlosses = arrays.find("dlosses", kF32, {kRoutingLosses});
  const RoutingLosses coef = dlosses.empty() ? RoutingLosses{} : losses_of(dlosses.as<float>());
  const bool of_logits = !call.logits.empty();
  Tensor out = of_logits        ? arrays.take("dlogits", kF32, {n, e})
               : call.x.empty() ? Tensor{}
                                : arrays.take("dx", kF32, {n, layer.width()});
  BoundGrads grads(arrays, layer.params);
  arrays.done();
  if (!out.empty() && n > 0) {
    const Tensor dweight = of_rows(run, dweights, call.plan);
    if (of_logits) {
      call.router.decide_backward(run, out, {}, {}, dweight, {}, call.plan, call.pass, coef,
                                  call.saved);
    } else {
      ops::zero(run, out);
      call.router.backward_acc(run, out, dweight, {}, call.plan, call.pass, coef, call.saved);
    }
  }
  grads.settle(run);
}

}  // namespace
}  // namespace moe::api

using namespace moe;
using namespace moe::api;

extern "C" {

moe_status moe_layer_route(moe_layer* layer, const moe_array* arrays, size_t count, int training,
                           uint64_t seed) {
  return called(layer, arrays, count, "moe_layer_route", [&](moe_layer& l, Run& run, Arrays& a) {
    route_forward(l, run, a, training != 0, seed);
  });
}

moe_status moe_layer_route_backward(moe_layer* layer, const moe_array* arrays, size_t count,
                                    int training, uint64_t seed) {
  return called(
      layer, arrays, count, "moe_layer_route_backward",
      [&](moe_layer& l, Run& run, Arrays& a) { route_backward(l, run, a, training != 0, seed); });
}

moe_status moe_layer_end_step(moe_layer* layer, const moe_array* arrays, size_t count) {
  return guarded([&] {
    moe_layer& l = need(layer, "moe_layer_end_step: layer");
    const std::lock_guard lock(l.busy);
    Arrays given_arrays(arrays, count, "moe_layer_end_step");
    const std::vector<int64_t> counts = given_arrays.wholes("counts", l.experts());
    const Tensor cutoff = given_arrays.find("cutoff", kF32, {l.experts()});
    given_arrays.done();
    std::vector<double> mean;
    if (!cutoff.empty()) mean.assign(cutoff.as<float>(), cutoff.as<float>() + cutoff.numel());
    if (!counts.empty()) l.layer.router->end_step(Run(1), l.train, counts, mean);
  });
}
}
