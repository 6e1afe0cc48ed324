// Whole models against the scalar twin: loss and every entry of every gradient, the twin differentiated by dual numbers. The list of models covers every
// recipe, every stage member and every option of the architecture.
#include "model/model.h"

#include <fmt/format.h>

#include <functional>

#include "support/check.h"
#include "support/twin_model.h"

namespace moe::test {
namespace {

ModelConfig small() {
  ModelConfig c;
  c.vocab = 11;
  c.width = 8;
  c.layers = 2;
  c.heads = 2;
  c.kv_heads = 2;
  c.head_width = 4;
  c.context = 8;
  c.dense_width = 10;
  c.expert_width = 6;
  c.init = {.std = 0.3f, .cut = 0, .scale_residual = false};
  return c;
}

struct Case {
  std::string name;
  ModelConfig config;
  bool random = false;                       // with the recipe's noise and dropout
  std::function<void(RoutingSpec&)> adjust;  // stages that no recipe has yet
};

ModelConfig routed(const char* recipe, int64_t experts, int64_t k) {
  ModelConfig c = small();
  c.routing = default_options(find_recipe(recipe), experts, k, c.layers);
  c.routing.balance_coef = 0.3f;  // large, so that their gradients count in the sums
  c.routing.z_coef = 0.05f;
  return c;
}

ModelConfig gpt(ModelConfig c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.ffn_bias = c.tied = true;
  c.positions = Positions::learned;
  c.act = ops::Act::gelu;
  c.gated = false;
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const Recipe& recipe : recipes()) {
    ModelConfig c = recipe.has_router() ? routed(std::string(recipe.name).c_str(), 4, recipe.default_top_k > 1 ? 2 : 1) : small();
    list.push_back({fmt::format("{}", recipe.name), c});
    list.push_back({fmt::format("{}, its noise drawn", recipe.name), c, true});
    ModelConfig g = gpt(c);
    if (recipe.train.capacity.index() != CapacityStage(Dropless{}).index()) g.routing.capacity_factor = 0.5f;
    list.push_back({fmt::format("{} in GPT-2's architecture, dropping", recipe.name), g});
  }
  ModelConfig c = routed("olmoe", 4, 2);
  c.qk_norm = QkNorm::full;
  c.kv_heads = 1;
  c.head_width = 6;
  list.push_back({"full QK-norm, one key/value head, head width apart from the model's", c});
  c = routed("olmoe", 4, 3);
  c.qk_norm = QkNorm::head;
  c.norm_placement = NormPlacement::post;
  c.attention_bias = c.ffn_bias = true;
  list.push_back({"post-norm, QK-norm per head, biases in gated experts", c});
  c = routed("mixtral", 4, 2);
  c.shared_experts = 2;
  c.shared_width = 3;
  c.dense_first = 1;
  list.push_back({"shared experts after a dense layer", c});
  c.shared_gate = true;
  c.moe_layers = {1};
  c.ffn_bias = true;
  c.act = ops::Act::gelu_tanh;
  list.push_back({"gated shared experts with bias, layers by list", c});
  c = gpt(routed("nanomoe", 4, 2));
  c.act = ops::Act::relu;
  c.dropout = 0.2f;
  c.moe_every = 2;
  list.push_back({"dropout, ReLU, every second layer", c, true});
  list.push_back({"sigmoid scores, renormalised and scaled", routed("olmoe", 4, 2), false, [](RoutingSpec& spec) {
                    spec.score = SigmoidScore{};
                    spec.weigh = ChosenScores{.renormalise = true, .scale = 2.5f};
                    spec.balance = NoBalance{};
                  }});
  list.push_back({"learned noise with a floor on dropped token-major choices", routed("nanomoe", 4, 2), true, [](RoutingSpec& spec) {
                    spec.noise = LearnedNoise{.floor = 0.01f};
                    spec.capacity = BufferCapacity{.factor = 0.5f, .minimum = 1, .order = BufferCapacity::Order::token_major};
                  }});
  return list;
}

TwinInput input(const ModelConfig& c, bool random, uint64_t seed) {
  TwinInput in;
  const RngKey key = RngKey::from_seed(seed);
  for (uint64_t i = 0; i < 12; ++i) {
    in.ids.push_back(static_cast<int32_t>(uniform_index(key, i, static_cast<uint64_t>(c.vocab))));
    in.targets.push_back(static_cast<int32_t>(uniform_index(key.fold(1), i, static_cast<uint64_t>(c.vocab))));
    in.positions.push_back(static_cast<int32_t>(i < 7 ? i : i - 7));
  }
  in.bounds = {0, 7, 12};
  if (random) in.key = key.fold(2);
  return in;
}

RoutingSpec spec_of(const Case& item) {
  RoutingSpec spec = item.config.moe_layer_count() > 0 ? train_spec(item.config.routing) : RoutingSpec{};
  if (item.adjust) item.adjust(spec);
  return spec;
}

template <class T>
std::map<std::string, std::vector<T>> twin_params(const Model& model) {
  std::map<std::string, std::vector<T>> out;
  for (const Param* p : model.params())
    for (double v : values(p->value)) out[p->name].push_back(T(v));
  return out;
}

// A model whose smallest margin between chosen and not chosen lets f32 and double choose alike.
uint64_t draw_model(Model& model, const RoutingSpec& spec, bool random) {
  for (uint64_t seed = 1;; ++seed) {
    model.initialise(seed);
    for (Param* p : model.params())
      if (!p->is_matrix())
        for (int64_t i = 0; i < p->value.numel(); ++i) p->value.as<float>()[i] += 0.2f * normal(RngKey::from_seed(seed), static_cast<uint64_t>(i));
    TwinModel<double> twin(model.config(), spec, twin_params<double>(model));
    if (twin.run(input(model.config(), random, seed), 0, 0).smallest_margin > 1e-3) return seed;
  }
}

struct Result {
  double ce, balance, z;
  int64_t dropped;
};

Result train_once(Model& model, Run& run, const TwinInput& in, const RoutingSpec& spec, Keep keep = Keep::all) {
  for (Param* p : model.params()) std::memset(p->grad.data, 0, static_cast<size_t>(p->grad.bytes()));
  const Batch batch{in.ids, in.positions, in.bounds};
  const auto tokens = static_cast<int64_t>(in.ids.size());
  const double layers = std::max<double>(1, static_cast<double>(model.config().moe_layer_count()));
  run.key = in.key;
  ArenaScope scope(run.saved);
  ModelSaved saved;
  Tensor nll = run.saved.alloc(DType::f32, {tokens});
  model.forward(run, {&batch, &spec, keep, nullptr}, saved);
  model.loss_forward(run, nll, in.targets, saved);
  Result r{0, 0, 0, 0};
  for (double v : values(nll)) r.ce += v / static_cast<double>(tokens);
  for (const LayerRouting& layer : saved.routing) {
    r.balance += layer.losses.balance / layers;
    r.z += layer.losses.z / layers;
    r.dropped += layer.dropped;
  }
  const RoutingOptions& o = model.config().routing;
  model.backward(run, in.targets, 1 / static_cast<float>(tokens), {o.balance_coef / static_cast<float>(layers), o.z_coef / static_cast<float>(layers)}, saved);
  return r;
}

// The bias of the keys moves every score of a query by the same amount, which softmax does not see; and where no noise is drawn its parameter has no part.
bool gradient_is_zero(const Case& item, const std::string& name) {
  if (name.find("router.noise") != std::string::npos) return !item.random;
  return name.find("attn.k.bias") != std::string::npos && item.config.qk_norm == QkNorm::none && item.config.positions == Positions::learned;
}

void expect_gradients(const Case& item, DType dtype) {
  Model model(item.config);
  model.enable_grads();
  const RoutingSpec spec = spec_of(item);
  const uint64_t seed = draw_model(model, spec, item.random);
  const TwinInput in = input(item.config, item.random, seed);
  moe::Run run(2, dtype);
  const Result got = train_once(model, run, in, spec);
  const RoutingOptions& o = item.config.routing;
  const double tolerance = moe::test::tolerance(dtype);

  TwinModel<double> twin(item.config, spec, twin_params<double>(model));
  const TwinOutput<double> want = twin.run(in, o.balance_coef, o.z_coef);
  EXPECT_NEAR(got.ce, want.ce, tolerance * want.ce) << item.name;
  EXPECT_NEAR(got.balance, want.balance, tolerance * want.balance) << item.name;
  EXPECT_NEAR(got.z, want.z, tolerance * want.z) << item.name;
  EXPECT_EQ(got.dropped, want.dropped) << item.name;
  if (item.name.find("dropping") != std::string::npos && item.config.routing.capacity_factor) EXPECT_GT(got.dropped, 0) << item.name;

  auto params = twin_params<Dual<double>>(model);
  for (const Param* p : model.params()) {
    std::vector<double> gradient;
    for (Dual<double>& entry : params.at(p->name)) {
      entry.d = 1;
      TwinModel<Dual<double>> dual(item.config, spec, params);
      gradient.push_back(dual.run(in, o.balance_coef, o.z_coef).loss.d);
      entry.d = 0;
    }
    if (gradient_is_zero(item, p->name)) {
      EXPECT_LT(norm(gradient), 1e-12) << item.name << " " << p->name;
      EXPECT_LT(norm(values(p->grad)), 1e-6) << item.name << " " << p->name;
    } else {
      expect_near(p->grad, gradient, tolerance, item.name + ": gradient of " + p->name);
    }
  }
}

TEST(Model, LossAndEveryGradientMatchTheTwinInF32) {
  for (const Case& item : cases()) expect_gradients(item, DType::f32);
}

TEST(Model, RecomputingGivesTheSameBitsAsKeeping) {
  for (const Case& item : cases()) {
    Model kept(item.config), recomputed(item.config);
    kept.enable_grads();
    recomputed.enable_grads();
    kept.initialise(3);
    recomputed.initialise(3);
    const TwinInput in = input(item.config, item.random, 3);
    const RoutingSpec spec = spec_of(item);
    moe::Run run(2);
    const Result a = train_once(kept, run, in, spec, Keep::all), b = train_once(recomputed, run, in, spec, Keep::inputs);
    EXPECT_EQ(a.ce, b.ce) << item.name;
    EXPECT_EQ(a.dropped, b.dropped) << item.name;
    for (size_t i = 0; i < kept.params().size(); ++i)
      EXPECT_TRUE(same_bits(kept.params()[i]->grad, recomputed.params()[i]->grad)) << item.name << " " << kept.params()[i]->name;
  }
}

TEST(Model, InitialisesByRole) {
  ModelConfig c = gpt(small());
  c.init = {.std = 0.05f, .cut = 2, .scale_residual = true};
  Model model(c);
  model.initialise(9);
  for (const Param* p : model.params()) {
    const std::vector<double> v = values(p->value);
    const double rms = norm(v) / std::sqrt(static_cast<double>(v.size()));
    if (p->role == Role::norm) EXPECT_EQ(rms, 1) << p->name;
    if (p->role == Role::bias) EXPECT_EQ(rms, 0) << p->name;
    const double std = p->role == Role::residual ? 0.05 / 2 : 0.05;           // sqrt(2 L) = 2
    if (p->is_matrix()) EXPECT_NEAR(rms, std * 0.88, std * 0.25) << p->name;  // 0.88: a normal cut at two deviations
    if (p->is_matrix())
      for (double x : v) EXPECT_LE(std::abs(x), 2 * std + 1e-6) << p->name;
  }
}

}  // namespace
}  // namespace moe::test
