// A model held against its scalar twin: loss, every auxiliary loss, counts, drops and every entry
// of every gradient. Used by the tests that walk recipes, architectures and routing stages.
#pragma once

#include <fmt/format.h>

#include <functional>

#include "model/model.h"
#include "moe/stages/replay.h"
#include "support/check.h"
#include "support/param_named.h"
#include "support/twin_model.h"

namespace moe::test {

inline ModelConfig small() {
  ModelConfig c;
  c.vocab = 9;
  c.width = 8;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_width = 4;
  c.context = 8;
  c.dense_width = 6;
  c.expert_width = 4;
  c.init = {.std = 0.3f, .cut = 0, .scale_residual = false};
  return c;
}

// Coefficients for the losses that the routing has, large, so that their gradients count in the
// sums.
inline void weigh_losses(RoutingOptions& o) {
  o.coef = {};
  const RoutingSpec spec = train_spec(o);
  o.coef.balance = spec.losses.balance ? 0.3f : 0;
  o.coef.z = needs_logits(spec.select) ? 0.05f : 0;
  o.coef.device = spec.losses.device ? 0.2f : 0;
  o.coef.communication = spec.losses.communication ? 0.1f : 0;
  o.coef.importance = spec.losses.importance ? 0.3f : 0;
  o.coef.load = spec.losses.load ? 0.2f : 0;
}

struct Case {
  std::string name;
  ModelConfig config;
  bool random = false;                         // draws noise, dropout, second choices and orders
  bool drops = false;                          // must be drawn so that pairs are dropped
  std::function<void(RoutingSpec&)> adjust{};  // what the options cannot say
  // another routing that the drawn model must tell from this one by its loss
  std::function<void(RoutingSpec&)> rival{};
  std::vector<std::vector<int64_t>> step_counts{};
  bool replayed = false;  // takes drawn choices instead of its own
  // parameters whose gradient, or losses whose value, is 0: their name contains this
  std::string zero{};
};

inline RoutingSpec spec_of(const Case& item) {
  RoutingSpec spec =
      item.config.moe_layer_count() > 0 ? train_spec(item.config.routing) : RoutingSpec{};
  if (item.adjust) item.adjust(spec);
  return spec;
}

// Choices that no router made: of each token some experts in any order, some of them not sent.
inline std::vector<std::vector<TwinEntry>> drawn_choices(int64_t tokens, const RoutingSpec& spec,
                                                         RngKey key) {
  std::vector<std::vector<TwinEntry>> out;
  for (int64_t n = 0; n < tokens; ++n) {
    const RngKey of_token = key.fold(static_cast<uint64_t>(n));
    std::vector<size_t> order(static_cast<size_t>(spec.experts));
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = 0; i + 1 < order.size(); ++i)
      std::swap(order[i], order[i + uniform_index(of_token, i, order.size() - i)]);
    out.emplace_back();
    for (size_t i = 0; i < static_cast<size_t>(spec.slots()); ++i)
      out.back().push_back(
          {uniform(of_token, 100 + i) < 0.8f, order[i], uniform(of_token, 200 + i) < 0.8f});
  }
  return out;
}

// As a pass takes them. entries [N*K] is filled; the tensor is a view of it.
inline Tensor record_of(const std::vector<std::vector<TwinEntry>>& choices,
                        std::vector<int32_t>& entries) {
  entries.clear();
  for (const auto& token : choices)
    for (const TwinEntry& at : token) {
      const auto e = static_cast<int32_t>(at.expert);
      entries.push_back(!at.chosen ? kNothingChosen : at.sent ? e : not_sent(e));
    }
  const auto tokens = static_cast<int64_t>(choices.size());
  return Tensor(entries.data(), DType::i32,
                {tokens, static_cast<int64_t>(entries.size()) / tokens});
}

// Three sequences of unequal length, one of them a single token.
inline TwinInput input(const Case& item, uint64_t seed) {
  TwinInput in;
  const RngKey key = RngKey::from_seed(seed);
  const auto vocab = static_cast<uint64_t>(item.config.vocab);
  in.bounds = {0, 6, 7, 12};
  for (uint64_t i = 0; i < 12; ++i) {
    in.ids.push_back(static_cast<int32_t>(uniform_index(key, i, vocab)));
    in.targets.push_back(static_cast<int32_t>(uniform_index(key.fold(1), i, vocab)));
    in.positions.push_back(static_cast<int32_t>(i < 6 ? i : i < 7 ? 0 : i - 7));
  }
  if (item.random) in.key = key.fold(2);
  in.step_counts = item.step_counts;
  for (int64_t layer = 0; item.replayed && layer < item.config.moe_layer_count(); ++layer)
    in.recorded.push_back(
        drawn_choices(12, spec_of(item), key.fold(3 + static_cast<uint64_t>(layer))));
  return in;
}

template <class T>
std::map<std::string, std::vector<T>> twin_params(const Model& model) {
  std::map<std::string, std::vector<T>> out;
  for (const Param* p : model.params())
    for (double v : values(p->value)) out[p->name].push_back(T(v));
  return out;
}

// Draws every parameter, those too that start at 0 or 1; thresholds near the mean of a softmax, and
// weights of residual streams so that these are unlike one another: of like ones the sublayer's
// norm leaves nothing of a gradient.
inline void draw_params(Model& model, uint64_t seed) {
  model.initialise(seed);
  const RngKey key = RngKey::from_seed(seed);
  for (Param* p : model.params()) {
    if (p->kind == ParamKind::table) continue;
    const bool threshold = p->name.find("threshold") != std::string::npos,
               zero = norm(values(p->value)) == 0;
    for (int64_t i = 0; i < p->value.numel(); ++i) {
      float& x = p->value.as<float>()[i];
      if (threshold) x = 1 / static_cast<float>(p->value.numel());
      const float far = threshold ? 0.05f : is_of_streams(p->kind) ? 1.0f : 0.2f;
      if (!p->is_matrix()) x += far * normal(key, static_cast<uint64_t>(i));
      else if (zero) x = model.config().init.std * normal(key.fold(3), static_cast<uint64_t>(i));
    }
    p->touched();
  }
}

inline bool skips_a_second(const TwinOutput<double>& out) {
  for (const auto& route : out.routes)
    if (route.sent != route.selected) return true;
  return false;
}

// A model whose decisions are wide enough for f32 and double to decide alike, and in which what the
// case is about happens.
inline uint64_t draw_model(Model& model, const Case& item, const RoutingSpec& spec,
                           uint64_t after = 0) {
  RoutingSpec rival = spec;
  if (item.rival) item.rival(rival);
  const RoutingLosses& coef = item.config.routing.coef;
  const bool skips =
      !item.replayed && (std::holds_alternative<ThresholdSecond>(spec.second) ||
                         (item.random && std::holds_alternative<RandomSecond>(spec.second)));
  for (uint64_t seed = after + 1; seed < after + 5000; ++seed) {
    draw_params(model, seed);
    const auto params = twin_params<double>(model);
    const TwinInput in = input(item, seed);
    const TwinOutput<double> out = TwinModel<double>(model.config(), spec, params).run(in, coef);
    if (out.smallest_margin < 1e-3 || (item.drops && out.dropped == 0) ||
        (skips && !skips_a_second(out)))
      continue;
    if (item.rival && std::abs(TwinModel<double>(model.config(), rival, params).run(in, coef).loss -
                               out.loss) < 5e-4)
      continue;
    TwinInput own = in;
    own.recorded.clear();
    if (item.replayed &&
        std::abs(TwinModel<double>(model.config(), spec, params).run(own, coef).loss - out.loss) <
            5e-4)
      continue;
    return seed;
  }
  ADD_FAILURE() << item.name << ": no draw shows what the case is about";
  return 0;
}

// In the order of each_loss.
inline std::vector<double> numbers(const RoutingLosses& losses) {
  std::vector<double> out;
  each_loss(losses, [&](const char*, const float& v) { out.push_back(static_cast<double>(v)); });
  return out;
}

struct Trained {
  double ce = 0;
  RoutingLosses losses;  // means over MoE layers
  int64_t dropped = 0;
  std::vector<LayerRouting> routing;
  // [N] for each MoE layer; empty where nothing was replayed
  std::vector<std::vector<int64_t>> agreed;
};

// Forward and backward of one batch whose loss counts `share`; gradients are added to.
inline Trained train_on(Model& model, moe::Run& run, const TwinInput& in, const RoutingSpec& spec,
                        Keep keep = Keep::all, float share = 1) {
  const auto tokens = static_cast<int64_t>(in.ids.size());
  const float layers = std::max<float>(1, static_cast<float>(model.config().moe_layer_count()));
  ArenaScope scope(run.saved);
  ModelSaved saved;
  Tensor nll = run.saved.alloc(DType::f32, {tokens});
  Pass pass{.batch = {in.ids, in.positions, in.bounds},
            .routing = &spec,
            .keep = keep,
            .key = in.key,
            .step_counts = in.step_counts,
            .wanted = Wanted::all()};
  std::vector<std::vector<int32_t>> entries(in.recorded.size());
  std::vector<Tensor> recorded;
  for (size_t i = 0; i < entries.size(); ++i)
    recorded.push_back(record_of(in.recorded[i], entries[i]));
  if (!recorded.empty()) pass.recorded = &recorded;
  Trained out;
  const std::function<void(int64_t, const MoeLayer::Saved&)> listen =
      [&](int64_t, const MoeLayer::Saved& layer) {
        const Tensor agreed = layer.router.agreed;
        if (!agreed.empty())
          out.agreed.emplace_back(agreed.as<int32_t>(), agreed.as<int32_t>() + agreed.numel());
      };
  pass.on_routing = &listen;
  model.forward(run, pass, saved);
  model.loss_forward(run, nll, in.targets, saved);
  out.routing = saved.routing;
  for (double v : values(nll)) out.ce += v / static_cast<double>(tokens);
  RoutingLosses coef = model.config().routing.coef;
  each_loss(coef, [&](const char*, float& c) { c *= share / layers; });
  for (const LayerRouting& layer : saved.routing) {
    const std::vector<double> values = numbers(layer.losses);
    size_t i = 0;
    each_loss(out.losses,
              [&](const char*, float& sum) { sum += static_cast<float>(values[i++]) / layers; });
    out.dropped += layer.dropped;
  }
  model.backward(run, in.targets, share / static_cast<float>(tokens), coef, saved);
  return out;
}

inline void zero_grads(Model& model) {
  for (Param* p : model.params())
    if (!p->grad.empty()) std::memset(p->grad.data, 0, static_cast<size_t>(p->grad.bytes()));
}

inline Trained train_once(Model& model, moe::Run& run, const TwinInput& in, const RoutingSpec& spec,
                          Keep keep = Keep::all) {
  zero_grads(model);
  return train_on(model, run, in, spec, keep);
}

// The bias of the keys moves every score of a query by the same amount, which softmax does not see;
// and where no noise is drawn its parameter has no part.
inline bool gradient_is_zero(const Case& item, const std::string& name) {
  if (!item.zero.empty() && name.find(item.zero) != std::string::npos) return true;
  if (name.find("router.noise") != std::string::npos) return !item.random;
  return name.find("attn.k.bias") != std::string::npos && item.config.qk_norm == QkNorm::none &&
         item.config.positions == Positions::learned;
}

inline void expect_same_routing(const Trained& got, const TwinOutput<double>& want,
                                const std::string& name) {
  EXPECT_EQ(got.dropped, want.dropped) << name;
  ASSERT_EQ(got.routing.size(), want.routes.size()) << name;
  for (size_t i = 0; i < got.routing.size(); ++i) {
    const LayerRouting& layer = got.routing[i];
    const TwinRoute<double>& route = want.routes[i];
    EXPECT_EQ(std::vector<int64_t>(layer.counts.begin(), layer.counts.end()), route.counts) << name;
    EXPECT_EQ(std::vector<int64_t>(layer.balance_counts.begin(), layer.balance_counts.end()),
              route.balance_counts)
        << name;
    if (!got.agreed.empty()) EXPECT_EQ(got.agreed.at(i), route.agreed) << name;
    ASSERT_EQ(layer.cutoff.size(), route.cutoff.size()) << name;
    for (size_t e = 0; e < route.cutoff.size(); ++e)
      EXPECT_NEAR(layer.cutoff[e], route.cutoff[e], 1e-5) << name;
  }
}

inline void expect_losses(const Trained& got, const TwinOutput<double>& want, const Case& item) {
  EXPECT_NEAR(got.ce, want.ce, kTwinF32 * want.ce) << item.name;
  const std::vector<double> values = numbers(got.losses), twins = numbers(want.losses),
                            coefs = numbers(item.config.routing.coef);
  size_t i = 0;
  each_loss(got.losses, [&](const std::string& loss, const float&) {
    EXPECT_NEAR(values[i], twins[i], kTwinF32 * (twins[i] + 0.01)) << item.name << " " << loss;
    if (coefs[i] > 0 && item.zero != loss)
      EXPECT_GT(twins[i], 0) << item.name << ": " << loss << " is 0, so it proves nothing";
    ++i;
  });
}

// The derivative of a loss of what the twin gives along every entry of every trained parameter, by
// name.  loss_of(TwinOutput<T>) in T, of any number type
template <class Loss>
std::map<std::string, std::vector<double>> twin_gradients(const Model& model,
                                                          const RoutingSpec& spec,
                                                          const TwinInput& in,
                                                          const RoutingLosses& coef,
                                                          const Loss& loss_of) {
  constexpr int kWide = 16;
  auto params = twin_params<Jet<kWide>>(model);
  TwinModel<Jet<kWide>> twin(model.config(), spec, params);
  std::map<std::string, std::vector<double>> gradients;
  for (const Param* p : model.params()) {
    if (!p->is_trained()) continue;
    auto& entries = params.at(p->name);
    for (size_t begin = 0; begin < entries.size(); begin += kWide) {
      const size_t count = std::min<size_t>(kWide, entries.size() - begin);
      for (size_t i = 0; i < count; ++i) entries[begin + i].d[i] = 1;
      const Jet<kWide> loss = loss_of(twin.run(in, coef));
      for (size_t i = 0; i < count; ++i) {
        gradients[p->name].push_back(loss.d[i]);
        entries[begin + i].d[i] = 0;
      }
    }
  }
  return gradients;
}
// Of the twin's own loss, auxiliary ones included.
inline std::map<std::string, std::vector<double>> twin_gradients(const Model& model,
                                                                 const RoutingSpec& spec,
                                                                 const TwinInput& in) {
  return twin_gradients(model, spec, in, model.config().routing.coef,
                        [](const auto& out) { return out.loss; });
}

// Everything of one training step against the twin, in f32, for a few draws.
inline void expect_gradients(const Case& item) {
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  uint64_t seed = 0;
  for (int draw = 0; draw < 3; ++draw) {
    seed = draw_model(model, item, spec, seed);
    if (seed == 0) return;
    const TwinInput in = input(item, seed);
    moe::Run run(2);
    const Trained got = train_once(model, run, in, spec);
    const auto params = twin_params<double>(model);
    const TwinOutput<double> want =
        TwinModel<double>(item.config, spec, params).run(in, item.config.routing.coef);
    expect_same_routing(got, want, item.name);
    expect_losses(got, want, item);
    for (const auto& [name, gradient] : twin_gradients(model, spec, in)) {
      const Tensor& grad = param_named(model, name)->grad;
      if (gradient_is_zero(item, name)) {
        EXPECT_LT(norm(gradient), 1e-12) << item.name << " " << name;
        EXPECT_LT(norm(values(grad)), 1e-6) << item.name << " " << name;
      } else {
        expect_near(grad, gradient, kTwinF32, item.name + ": gradient of " + name);
      }
    }
  }
}

}  // namespace moe::test
