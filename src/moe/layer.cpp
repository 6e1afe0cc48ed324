#include "moe/layer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "moe/banks.h"
#include "moe/exchange.h"
#include "moe/neurons.h"
#include "tensor/on_host.h"

namespace moe {
namespace {

// Whether the shared experts' products pass beside the routed ones': where tokens are so few that
// reading weights takes longer than multiplying, and where weights are quantised, since tokens then
// become bytes once for both.
bool side_by_side(const ExpertBank& experts, Tensor x) {
  constexpr int64_t kFewTokens = 4;
  return x.rows() <= kFewTokens || is_quantised(experts.up.value.dtype);
}

// What the shared experts see: every token, weighed by its gate where there is one.
Rows shared_rows_of(Run& run, Tensor x, Param& gate) {
  Tensor weight;  // [N]
  if (gate.present()) {
    const std::array<int64_t, 2> all = {0, x.rows()};
    weight = run.saved.alloc(DType::f32, {x.rows()});
    ops::matmul_forward(run, weight.reshape({x.rows(), 1}), x, gate, all);
    const Tensor logit = weight.reshape({x.rows(), 1});
    ops::ffn_act_forward(run, logit, {}, logit, {}, ops::Act::sigmoid);
  }
  return whole(run.saved, x, weight);
}

// What the experts make of their rows: f32, so that one expert gives the bits of a dense layer.
Tensor alloc_output(Run& run, const Rows& rows) {
  return run.scratch.alloc(DType::f32, {rows.x.rows(), rows.x.x.cols()});
}

// Memory for what the experts keep of all rows: they may see them piece by piece.
ExpertBank::Saved alloc_saved(Run& run, const ExpertBank& bank, const Rows& rows) {
  const auto alloc = [&] { return run.saved.alloc(rows.x.x.dtype, {rows.x.rows(), bank.width()}); };
  Tensor gate;  // [R,F]
  if (bank.gate.present()) gate = alloc();
  return {gate, alloc()};
}

// [R] or [R,...]
Tensor part_of(Tensor t, Span part) {
  if (t.empty()) return t;
  if (t.rank > 1) return t.slice_rows(part.begin, part.end);
  return part_of(t.reshape({t.numel(), 1}), part).reshape({part.end - part.begin});
}
ExpertBank::Saved part_of(const ExpertBank::Saved& saved, Span part) {
  return {part_of(saved.gate, part), part_of(saved.up, part)};
}

}  // namespace

MoeLayer::Branches MoeLayer::branches(Run& run, Tensor y, Tensor x, Tensor u, const Pass& pass,
                                      Saved& saved) {
  if (!norms) return {x, x, late ? pass.late : y, y};
  const auto alloc = [&](DType dtype) { return run.saved.alloc(dtype, {x.rows(), x.cols()}); };
  const Branches of = {alloc(x.dtype), alloc(x.dtype), alloc(DType::f32), alloc(DType::f32)};
  norms->router.forward(run, of.router, u, saved.norms.router);
  ops::scale(run, of.router, of.router, norms->router_factor);
  norms->experts.forward(run, of.experts, u, saved.norms.experts);
  return of;
}

// Behind branches with norms.
void MoeLayer::join(Run& run, Tensor y, const Branches& of, Saved& saved) {
  norms->experts_out.forward(run, y, of.experts_out, saved.norms.experts_out);
  const ArenaScope scope(run.scratch);
  Tensor beside = run.scratch.alloc(DType::f32, {y.rows(), y.cols()});
  norms->shared_out.forward(run, beside, of.shared_out, saved.norms.shared_out);
  ops::add(run, y, y, beside);
}

void MoeLayer::forward(Run& run, Tensor y, Tensor x, Tensor u, const Pass& pass, Saved& saved) {
  saved.experts = saved.shared = {};
  saved.passed = {};
  if (!router) {
    saved.rows = whole(run.saved, x);
    experts.forward(run, y, saved.rows, saved.experts);
    return;
  }
  if (by_neuron) return forward_by_neuron(run, y, x, pass, saved);
  const Branches of = branches(run, y, x, u, pass, saved);
  saved.plan =
      router->forward(run, of.router, pass, pass.key_of(router->layer, Site::router), saved.router);
  if (!saved.router.zero.empty()) saved.passed = of.experts;
  saved.rows = dispatch(run, of.experts, saved.plan, group, pass.same_everywhere);
  saved.experts = alloc_saved(run, experts, saved.rows);
  if (shared) saved.shared_rows = shared_rows_of(run, x, shared_gate);
  const bool together = shared && saved.rows.came.empty() && side_by_side(experts, x);
  const Meanwhile share = [&] {
    shared->forward(run, of.shared_out, saved.shared_rows, saved.shared);
  };
  ArenaScope scope(run.scratch);
  Tensor out = alloc_output(run, saved.rows);
  const auto work = [&](const Piece& piece) {
    ExpertBank::Saved kept = part_of(saved.experts, piece.part);
    std::vector<BankPass> passes = {{&experts, part_of(out, piece.part), &piece.rows, &kept}};
    if (together) passes.push_back({&*shared, of.shared_out, &saved.shared_rows, &saved.shared});
    forward_banks(run, passes);
  };
  out = visit_experts(run, out, saved.rows.x.x, of.experts, saved.plan, saved.rows,
                      shared && !together ? share : Meanwhile{}, work);
  if (shared && !norms && !late) combine_acc(run, y, out, saved.plan);
  else combine(run, of.experts_out, out, saved.plan);
  pass_through(run, of.experts_out, saved);
  if (norms) join(run, y, of, saved);
  if (average) ops::scale(run, y, y, 0.5f);
}

// Wherever experts lie, a token that is given back stays where it is.
void MoeLayer::pass_through(Run& run, Tensor y, const Saved& saved) {
  if (saved.passed.empty()) return;
  const ArenaScope scope(run.scratch);
  const Tensor back = run.scratch.alloc(saved.passed.dtype, {y.rows(), y.cols()});
  ops::weigh_rows_forward(run, back, saved.passed, saved.router.zero);
  ops::add(run, y, y, back);
}

Tensor MoeLayer::pass_through_backward(Run& run, Tensor dx, Tensor dy, const Saved& saved) {
  if (saved.passed.empty()) return {};
  const Tensor dzero = run.scratch.alloc(DType::f32, {dy.rows()});
  const ArenaScope scope(run.scratch);
  const Tensor back = run.scratch.alloc(dy.dtype, {dy.rows(), dy.cols()});
  ops::weigh_rows_backward(run, back, dzero, dy, saved.passed, saved.router.zero);
  ops::add(run, dx, dx, back);
  return dzero;
}

// Who looks at the routing is shown a plan, which nothing here needs.
void MoeLayer::forward_by_neuron(Run& run, Tensor y, Tensor x, const Pass& pass, Saved& saved) {
  const RngKey key = pass.key_of(router->layer, Site::router);
  const bool some_only_read =
      std::find(pass.only_read.begin(), pass.only_read.end(), true) != pass.only_read.end();
  if (pass.on_routing) saved.plan = router->forward(run, x, pass, key, saved.router);
  else if (pass.recorded || !some_only_read) router->choose(run, x, pass, key, saved.router);
  if (some_only_read) return forward_mixed(run, y, x, pass, saved);
  neurons_forward(run, experts, y, x, saved.router.choice, pass.goes_back(), saved.experts);
}

// Chooses, where that is not done for all, for those tokens alone that do not take all neurons.
void MoeLayer::forward_mixed(Run& run, Tensor y, Tensor x, const Pass& pass, Saved& saved) {
  const bool chosen = !saved.router.choice.empty();
  std::vector<int32_t> counts(static_cast<size_t>(experts.width()));
  const std::span<const int64_t> bounds = pass.batch.bounds;
  int32_t all = 0;  // tokens that take all neurons
  for (size_t s = 0, then = 0; s + 1 < bounds.size(); s = then) {
    for (then = s; then + 1 < bounds.size() && pass.only_read[then] == pass.only_read[s];) ++then;
    const int64_t begin = bounds[s], end = bounds[then];
    const Tensor in = x.slice_rows(begin, end), out = y.slice_rows(begin, end);
    if (pass.only_read[s]) {
      neurons_forward(run, experts, out, in, {}, false, saved.experts);
      all += static_cast<int32_t>(end - begin);
      continue;
    }
    Routing own;
    if (!chosen) router->choose(run, in, pass, pass.key_of(router->layer, Site::router), own);
    neurons_forward(run, experts, out, in,
                    chosen ? saved.router.choice.slice_rows(begin, end) : own.choice, false,
                    saved.experts);
    if (own.counts.empty()) continue;
    OnHost host(run);
    const int32_t* more = host.read(own.counts).as<int32_t>();
    for (size_t e = 0; e < counts.size(); ++e) counts[e] += more[e];
  }
  if (chosen) return;
  for (int32_t& n : counts) n += all;
  if (!pass.totals.empty() && all > 0) {
    OnHost host(run);
    const Tensor totals = host.write(pass.totals_of(router->index));
    for (int64_t e = 0; e < totals.numel(); ++e) totals.as<int32_t>()[e] += all;
  }
  if (!pass.wanted.counts) return;
  saved.router.experts = experts.width();
  saved.router.counts =
      Tensor(run.saved.put(std::span<const int32_t>(counts)).data(), DType::i32, {experts.width()});
}

void MoeLayer::backward(Run& run, Tensor dx, Tensor du, Tensor dy, Tensor x, const Pass& pass,
                        const RoutingLosses& coef, const Saved& saved) {
  if (!router) return experts.backward(run, dx, {}, dy, saved.rows, saved.experts);
  if (by_neuron)
    return neurons_backward(run, experts, dx, dy, x, saved.router.choice, saved.experts);
  const ArenaScope scope(run.scratch);
  const auto stream = [&](DType dtype) { return run.scratch.alloc(dtype, {x.rows(), x.cols()}); };
  if (average) {
    const Tensor half = stream(dy.dtype);
    ops::scale(run, half, dy, 0.5f);
    dy = half;
  }
  Tensor drouter = dx, dexperts = dx, dexperts_out = dy, dshared_out = dy;
  if (late) {
    dexperts_out = stream(dy.dtype);
    ops::cast(run, dexperts_out, pass.dlate);
  }
  if (norms) {
    drouter = stream(DType::f32), dexperts = stream(DType::f32), dexperts_out = stream(x.dtype);
    norms->experts_out.backward(run, dexperts_out, dy, saved.norms.experts_out);
    dshared_out = stream(x.dtype);
    norms->shared_out.backward(run, dshared_out, dy, saved.norms.shared_out);
    ops::zero(run, drouter);
    ops::zero(run, dx);  // of the shared experts only
  }
  {
    const ArenaScope routed(run.scratch);
    // While rows are on the way, as far as there is a way: kept until the experts are done, their
    // gradients take memory.
    const bool behind = shared && group.size > 1;
    SharedGradients dshared = behind ? alloc_shared_gradients(run, x) : SharedGradients{};
    const Meanwhile share = [&] { shared_backward(run, dshared, dshared_out, saved); };
    routed_backward(run, drouter, dexperts, dexperts_out, pass, coef, saved,
                    behind ? share : Meanwhile{});
    if (behind) add_shared(run, dx, dshared, x, saved);
  }
  if (norms) norms_backward(run, du, drouter, dexperts, saved);
  if (!shared || group.size > 1) return;
  SharedGradients dshared = alloc_shared_gradients(run, x);
  shared_backward(run, dshared, dshared_out, saved);
  add_shared(run, dx, dshared, x, saved);
}

// drouter [N,D] f32, added to; dexperts [N,D] f32, written before: they may be the same. dy [N,D] A
void MoeLayer::routed_backward(Run& run, Tensor drouter, Tensor dexperts, Tensor dy,
                               const Pass& pass, const RoutingLosses& coef, const Saved& saved,
                               const Meanwhile& meanwhile) {
  // A router without a matrix learns nothing from the weights' gradient.
  const int64_t rows = saved.rows.x.rows();
  Tensor dweight =
      router->logit.weight.present() ? run.scratch.alloc(DType::f32, {rows}) : Tensor{};
  Tensor drows = run.scratch.alloc(dy.dtype, {rows, dy.cols()});
  const auto work = [&](const Piece& piece) {
    experts.backward(run, part_of(drows, piece.part), part_of(dweight, piece.part), piece.x,
                     piece.rows, part_of(saved.experts, piece.part));
  };
  combine(run, dexperts, visit_experts(run, drows, {}, dy, saved.plan, saved.rows, meanwhile, work),
          saved.plan);
  const Tensor dzero = pass_through_backward(run, dexperts, dy, saved);
  router->backward_acc(run, drouter, return_rows(run, dweight, saved.plan, saved.rows), dzero,
                       saved.plan, pass, coef, saved.router);
}

void MoeLayer::norms_backward(Run& run, Tensor du, Tensor drouter, Tensor dexperts,
                              const Saved& saved) {
  norms->experts.backward(run, du, dexperts, saved.norms.experts);
  ops::scale(run, drouter, drouter, norms->router_factor);
  norms->router.backward(run, dexperts, drouter, saved.norms.router);
  ops::add(run, du, du, dexperts);
}

MoeLayer::SharedGradients MoeLayer::alloc_shared_gradients(Run& run, Tensor x) const {
  return {run.scratch.alloc(DType::f32, {x.rows(), x.cols()}),
          shared_gate.present() ? run.scratch.alloc(DType::f32, {x.rows()}) : Tensor{}};
}

void MoeLayer::shared_backward(Run& run, SharedGradients& d, Tensor dy, const Saved& saved) {
  shared->backward(run, d.x, d.weight, dy, saved.shared_rows, saved.shared);
}

// With s the gate's sigmoid: d(logit) = dweight * s (1 - s).
void MoeLayer::add_shared(Run& run, Tensor dx, const SharedGradients& d, Tensor x,
                          const Saved& saved) {
  ops::add(run, dx, dx, d.x);
  if (d.weight.empty()) return;
  const std::array<int64_t, 2> all = {0, x.rows()};
  {
    OnHost host(run);
    const Tensor s = host.read(saved.shared_rows.weight), ds = host.write(d.weight);
    for (int64_t n = 0; n < x.rows(); ++n)
      ds.as<float>()[n] *= s.as<float>()[n] * (1 - s.as<float>()[n]);
  }
  ArenaScope scope(run.scratch);
  Tensor dlogit = run.scratch.alloc(x.dtype, {x.rows(), 1});
  ops::cast(run, dlogit, d.weight.reshape({x.rows(), 1}));
  ops::matmul_dw(run, shared_gate, dlogit, x, all);
  ops::matmul_dx_acc(run, dx, dlogit, shared_gate, all);
}

}  // namespace moe
