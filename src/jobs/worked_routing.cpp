#include "jobs/worked_routing.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "jobs/worked_routing_input.h"
#include "moe/stages/stage_math.h"
#include "ops/ops.h"

namespace moe {
namespace {

// Where the engine draws the noise itself it routes as in training; else the logits are made here.
bool engine_draws(const RouteInput& g, const RoutingSpec& spec) {
  return !g.key.empty() && !g.x.empty() && g.noise.empty() &&
         !std::holds_alternative<NoNoise>(spec.noise);
}

RoutingPlan make_routing(Run& run, RouteInput& g, const Pass& pass, Router::Saved& saved) {
  const RoutingSpec& spec = *pass.routing;
  const std::array<int64_t, 2> all = {0, g.tokens};
  if (engine_draws(g, spec)) return g.router.forward(run, g.x, pass, g.key, saved);
  saved.key = g.key;
  if (!needs_logits(spec.select)) return g.router.decide(run, pass, saved);
  Tensor clean = g.logits;
  if (clean.empty()) {
    clean = run.saved.alloc(DType::f32, {g.tokens, g.experts});
    g.router.logit.forward(run, clean, g.x, spec.logits, saved.made);
  }
  saved.logits = clean;
  if (!g.noise.empty()) {
    if (g.router.noise.present()) {
      saved.raw = run.saved.alloc(DType::f32, {g.tokens, g.experts});
      ops::matmul_forward(run, saved.raw, g.x, g.router.noise, all);
      g.sigma = run.saved.alloc(DType::f32, {g.tokens, g.experts});
      learned_noise_scale(run, g.sigma, saved.raw, std::get<LearnedNoise>(spec.noise));
    }
    saved.logits = run.saved.alloc(DType::f32, {g.tokens, g.experts});
    for (int64_t i = 0; i < clean.numel(); ++i)
      saved.logits.as<float>()[i] =
          clean.as<float>()[i] +
          (g.sigma.empty() ? 1 : g.sigma.as<float>()[i]) * g.noise.as<float>()[i];
    if (spec.losses.load || spec.losses.z_of_clean) saved.clean = clean;
    if (spec.losses.load) saved.sigma = g.sigma;
  }
  return g.router.decide(run, pass, saved);
}

Json numbers_of(const float* x, int64_t n) {
  Json out = Json::array();
  for (int64_t i = 0; i < n; ++i) out.push_back(shortest_decimal(x[i]));
  return out;
}
Json numbers_of(Tensor t) {
  Json out = Json::array();
  for (int64_t i = 0; i < t.rows(); ++i) out.push_back(numbers_of(t.row<float>(i), t.cols()));
  return out;
}

Json capacity_of(const RouteInput& g, const RoutingSpec& spec) {
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  if (buffer == nullptr) return nullptr;
  const std::vector<int64_t> bounds = scope_bounds(buffer->scope, g.bounds, g.tokens);
  Json list = Json::array();
  bool equal = true;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    list.push_back(expert_capacity(*buffer, bounds[i + 1] - bounds[i], spec.experts, spec.slots()));
    equal &= list.back() == list.front();
  }
  return equal ? list.front() : list;
}

// How even the counts are (recipes.md, metrics): max / mean - 1; population variance / mean^2;
// entropy over that of an even load.
void add_metrics(Json& reply, const int32_t* counts, int64_t experts) {
  double sum = 0, squares = 0, most = 0, entropy = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const double c = counts[e];
    sum += c, squares += c * c, most = std::max(most, c);
  }
  for (int64_t e = 0; e < experts; ++e)
    if (counts[e] > 0) entropy -= counts[e] / sum * std::log(counts[e] / sum);
  const double n = static_cast<double>(experts), mean = sum / n;
  const auto add = [&](const char* name, double x) {
    reply[name] = sum > 0 ? Json(shortest_decimal(static_cast<float>(x))) : Json(nullptr);
  };
  add("max_vio", most / mean - 1);
  add("cv2", squares / n / (mean * mean) - 1);
  add("entropy", experts > 1 ? entropy / std::log(n) : 1);
}

Json describe(const RouteInput& g, const RoutingSpec& spec, const RoutingPlan& plan,
              const Router::Saved& saved) {
  const int64_t slots = spec.slots();
  std::vector<float> weight(static_cast<size_t>(g.tokens * slots), 0.0f);
  std::vector<char> kept(weight.size(), 0);
  each_kept_pair(plan, saved, [&](size_t pair, float w) {
    weight[pair] = w;
    kept[pair] = 1;
  });
  Json experts = Json::array(), weights = Json::array(), keeps = Json::array();
  for (int64_t n = 0; n < g.tokens; ++n) {
    Json e = Json::array(), w = Json::array(), k = Json::array();
    for (int64_t i = 0; i < slots; ++i) {
      if (saved.selected.row<int32_t>(n)[i] == 0) continue;
      const auto pair = static_cast<size_t>(n * slots + i);
      e.push_back(saved.choice.row<int32_t>(n)[i]);
      w.push_back(shortest_decimal(weight[pair]));
      k.push_back(kept[pair] != 0);
    }
    experts.push_back(std::move(e)), weights.push_back(std::move(w)), keeps.push_back(std::move(k));
  }
  const int32_t* counts = saved.counts.as<int32_t>();
  Json reply = {{"experts", experts},
                {"weights", weights},
                {"kept", keeps},
                {"counts", std::vector<int32_t>(counts, counts + spec.experts)},
                {"dropped", saved.dropped},
                {"capacity", capacity_of(g, spec)}};
  const RoutingLosses losses =
      saved.losses.empty() ? RoutingLosses{} : moe::losses_of(saved.losses.as<float>());
  each_loss(losses, [&](const char* name, float value) {
    if (has_loss(spec, name)) reply[name] = shortest_decimal(value);
  });
  add_metrics(reply, counts, spec.with_weights());
  return reply;
}

// dweights, which stand beside the reply's weights, by pair [N,K].
Tensor pair_gradients(RouteInput& g, const RoutingSpec& spec, const Router::Saved& saved,
                      const std::string& where) {
  const int64_t slots = spec.slots();
  Tensor by_pair = g.memory.alloc_zeroed(DType::f32, {g.tokens, slots});
  if (g.dweights == nullptr) return by_pair;
  if (!g.dweights->is_array() || static_cast<int64_t>(g.dweights->size()) != g.tokens)
    fail("{}: \"dweights\" must be an array of {} rows, one a token", where, g.tokens);
  for (int64_t n = 0; n < g.tokens; ++n) {
    const Json& row = (*g.dweights)[static_cast<size_t>(n)];
    const int32_t* selected = saved.selected.row<int32_t>(n);
    const int64_t wanted =
        std::count_if(selected, selected + slots, [](int32_t s) { return s != 0; });
    if (!row.is_array() || static_cast<int64_t>(row.size()) != wanted)
      fail(
          "{}: \"dweights\"[{}] must be an array of {} numbers, one for each expert that the token "
          "has",
          where, n, wanted);
    size_t next = 0;
    for (int64_t i = 0; i < slots; ++i) {
      if (selected[i] == 0) continue;
      const Json& value = row[next];
      if (!value.is_number() || !(std::abs(value.get<double>()) <= FLT_MAX))
        fail("{}: \"dweights\"[{}][{}] must be a finite number of 32 bits", where, n, next);
      by_pair.row<float>(n)[i] = static_cast<float>(value.get<double>());
      ++next;
    }
  }
  return by_pair;
}

// Of the plan's rows [R].
Tensor row_gradients(Arena& memory, const Tensor& by_pair, const RoutingPlan& plan) {
  const Tensor out = memory.alloc(DType::f32, {plan.rows()});
  for (int64_t r = 0; r < plan.rows(); ++r)
    out.as<float>()[r] = by_pair.as<float>()[plan.pair[static_cast<size_t>(r)]];
  return out;
}

// Of what zero experts weigh together [N]: they all give the token, so one number is the gradient
// of each of their weights. Absent without such.
Tensor zero_gradients(Arena& memory, const Tensor& by_pair, const Router::Saved& saved,
                      const std::string& where) {
  if (saved.zero.empty()) return {};
  const Tensor out = memory.alloc_zeroed(DType::f32, {saved.tokens()});
  int64_t last = -1;  // the token of the pair before
  each_zero_pair(saved, [&](size_t pair, float) {
    const int64_t n = static_cast<int64_t>(pair) / saved.slots();
    float& d = out.as<float>()[n];
    const float given = by_pair.as<float>()[pair];
    if (n == last && d != given)
      fail(
          "{}: \"dweights\"[{}] has {} and {} for zero experts, which give a token the same; give "
          "one number for each",
          where, n, d, given);
    d = given;
    last = n;
  });
  return out;
}

void add_gradients(Json& reply, Run& run, RouteInput& g, const Pass& pass, const RoutingPlan& plan,
                   const Router::Saved& saved, const std::string& where) {
  const RoutingSpec& spec = *pass.routing;
  const std::array<int64_t, 2> all = {0, g.tokens};
  const Tensor by_pair = pair_gradients(g, spec, saved, where),
               dweight = row_gradients(g.memory, by_pair, plan),
               dzero = zero_gradients(g.memory, by_pair, saved, where);
  const auto logits_like = [&] { return g.memory.alloc_zeroed(DType::f32, {g.tokens, g.experts}); };
  Tensor dz = logits_like(), dclean, dsigma;
  if (!saved.clean.empty()) dclean = logits_like();
  if (!saved.sigma.empty()) dsigma = logits_like();
  g.router.decide_backward(run, dz, dclean, dsigma, dweight, dzero, plan, pass, g.coef, saved);
  reply["dlogits"] = numbers_of(dz);
  if (g.router.scale.present())
    reply["dscale"] = numbers_of(g.router.scale.grad.as<float>(), g.experts);
  if (!dclean.empty()) reply["dclean"] = numbers_of(dclean);
  if (!dsigma.empty()) reply["dsigma"] = numbers_of(dsigma);
  if (g.x.empty()) return;
  Tensor dx = g.memory.alloc_zeroed(DType::f32, {g.tokens, g.x.cols()});
  if (engine_draws(g, spec)) {
    g.router.backward_acc(run, dx, dweight, dzero, plan, pass, g.coef, saved);
  } else {
    // z = clean + sigma n with sigma = softplus(raw) + floor: raw gets (n dz + dsigma)
    // sigmoid(raw), the clean logits dz too.
    if (g.router.noise.present() && !g.noise.empty()) {
      Tensor draw = logits_like();
      for (int64_t i = 0; i < dz.numel(); ++i)
        draw.as<float>()[i] = (dz.as<float>()[i] * g.noise.as<float>()[i] +
                               (dsigma.empty() ? 0 : dsigma.as<float>()[i])) *
                              sigmoid(saved.raw.as<float>()[i]);
      ops::matmul_dw(run, g.router.noise, draw, g.x, all);
      ops::matmul_dx_acc(run, dx, draw, g.router.noise, all);
    }
    for (int64_t i = 0; !dclean.empty() && i < dz.numel(); ++i)
      dz.as<float>()[i] += dclean.as<float>()[i];
    g.router.logit.backward_acc(run, dx, dz, g.x, spec.logits, saved.made);
  }
  reply["dx"] = numbers_of(dx);
  reply["dweight"] = numbers_of(g.router.logit.weight.grad);
  if (g.router.logit.up.present()) reply["dup_weight"] = numbers_of(g.router.logit.up.grad);
  if (g.router.logit.bias.present())
    reply["dlogit_bias"] = numbers_of(g.router.logit.bias.grad.as<float>(), g.experts);
  if (g.router.noise.present()) reply["dnoise_weight"] = numbers_of(g.router.noise.grad);
}

}  // namespace

Json route(const RoutingSpec& spec, const Json& input, const std::string& where, uint64_t seed) {
  validate(spec);
  const JsonReader reader(input, where);
  RouteInput given;
  read_route_input(given, reader, spec, seed);
  const Pass pass = given.pass(spec);
  Run run(1);
  Router::Saved saved;
  const RoutingPlan plan = make_routing(run, given, pass, saved);
  Json reply = describe(given, spec, plan, saved);
  if (given.wants_gradient) add_gradients(reply, run, given, pass, plan, saved, where);
  return reply;
}

int64_t route_experts(const Json& input, const std::string& where) {
  const JsonReader reader(input, where);
  for (const char* key : {"logits", "weight"}) {
    if (!reader.has(key)) continue;
    const Json& value = reader.value(key);
    // an expert a column; in the weight an expert a row
    const bool rows = std::string_view(key) == "logits";
    if (!value.is_array() || value.empty() || (rows && (!value[0].is_array() || value[0].empty())))
      fail("{}: \"{}\" must be an array of arrays of numbers", where, key);
    return static_cast<int64_t>(rows ? value[0].size() : value.size());
  }
  if (!reader.has("ids"))
    fail("{}: \"logits\" is missing (or \"x\" and \"weight\", or \"ids\" for hash routing)", where);
  return 0;
}

}  // namespace moe
