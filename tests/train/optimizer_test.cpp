#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "support/files.h"
#include "support/param_named.h"
#include "support/tiny_model.h"
#include "train/trainable.h"

namespace moe::optimizer_test {
namespace {

using namespace test;

void fill_grads(Model& model) {
  for (size_t i = 0; i < model.params().size(); ++i) {
    const Tensor& grad = model.params()[i]->grad;
    model.params()[i]->grad_is_zero = false;
    if (grad.empty()) continue;
    for (int64_t j = 0; j < grad.numel(); ++j)
      grad.as<float>()[j] = 0.01f * normal(RngKey::from_seed(i + 1), static_cast<uint64_t>(j));
  }
}

// Of everything in the model that is trained.
Optimizer optimizer_of(Model& model, const TrainOptions& options) {
  return Optimizer(Trainable(model, options).params(), options);
}

TEST(Optimizer, NormIsThatOfTheWholeGradient) {
  auto model = fresh(plain_config());
  Optimizer optimizer = optimizer_of(*model, tiny_options());
  moe::Run run(2);
  fill_grads(*model);
  double sum = 0;
  for (const Param* p : model->params())
    for (double g : values(p->grad)) sum += g * g;
  EXPECT_NEAR(optimizer.grad_norm(run), std::sqrt(sum), 1e-12 * std::sqrt(sum));
}

// AdamW by hand in double, with clipping at `clip`, for two steps.
void check_against_hand(bool decay_all, double clip) {
  auto model = fresh(plain_config());
  TrainOptions o = tiny_options();
  o.decay_all = decay_all;
  o.clip = clip;
  Optimizer optimizer = optimizer_of(*model, o);
  moe::Run run(2);
  std::vector<std::vector<double>> w, m, v;
  for (const Param* p : model->params()) {
    w.push_back(values(p->value));
    m.emplace_back(w.back().size(), 0.0);
    v.emplace_back(w.back().size(), 0.0);
  }
  const double lr = 0.01;
  for (int step = 1; step <= 2; ++step) {
    fill_grads(*model);
    const double norm = optimizer.grad_norm(run),
                 scale = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
    if (clip > 0) {
      ASSERT_LT(scale, 1) << "the gradient must be long enough to be clipped";
    }
    for (size_t i = 0; i < model->params().size(); ++i) {
      const Param& p = *model->params()[i];
      const bool decays = decay_all || p.role == Role::matrix || p.role == Role::residual;
      const std::vector<double> g = values(p.grad);
      for (size_t j = 0; j < g.size(); ++j) {
        const double gs = g[j] * scale;
        m[i][j] = 0.9 * m[i][j] + 0.1 * gs;
        v[i][j] = 0.95 * v[i][j] + 0.05 * gs * gs;
        if (decays) w[i][j] *= 1 - lr * 0.1;
        w[i][j] -= lr * (m[i][j] / (1 - std::pow(0.9, step))) /
                   (std::sqrt(v[i][j] / (1 - std::pow(0.95, step))) + 1e-8);
      }
    }
    const uint64_t version = model->params()[0]->version;
    optimizer.update(run, step, lr, norm);
    EXPECT_GT(model->params()[0]->version, version) << "packed copies would be stale";
  }
  for (size_t i = 0; i < w.size(); ++i) {
    const Param& p = *model->params()[i];
    EXPECT_LE(relative_error(values(p.value), w[i]), kTwinF32) << p.name;
    EXPECT_LE(relative_error(values(optimizer.m(i)), m[i]), kTwinF32) << p.name;
    EXPECT_LE(relative_error(values(optimizer.v(i)), v[i]), kTwinF32) << p.name;
    EXPECT_TRUE(p.grad_is_zero) << p.name
                                << ": the update must leave a gradient that counts as zero";
  }
}

// Without decay a first step of AdamW moves a number by its learning rate, so that parts move by
// theirs.
TEST(Optimizer, PartsLearnAtTheirOwnRates) {
  auto model = fresh(plain_config());
  TrainOptions o = tiny_options();
  o.weight_decay = 0;
  o.eps = 1e-30;
  o.lr_times = {{"attention", 3}, {"embedding", 0.5}};
  const std::vector<Param*> params = Trainable(*model, o).params();
  Optimizer optimizer(params, o, lr_factors(params, o, model->config().width));
  moe::Run run(2);
  std::vector<std::vector<double>> before;
  for (const Param* p : params) before.push_back(values(p->value));
  fill_grads(*model);
  optimizer.update(run, 1, 1e-3, optimizer.grad_norm(run));
  for (size_t i = 0; i < params.size(); ++i) {
    const double times = params[i]->name.find(".attn.") != std::string::npos ? 3
                         : params[i]->name.starts_with("embed.")             ? 0.5
                                                                             : 1;
    const std::vector<double> after = values(params[i]->value);
    for (size_t j = 0; j < after.size(); ++j)
      EXPECT_NEAR(std::abs(after[j] - before[i][j]), times * 1e-3, 2e-7) << params[i]->name;
  }
  o.lr_times = {{"attentoin", 3}};
  EXPECT_FAILS(lr_factors(params, o, model->config().width), "attention");
}

// What reads a wider row learns more slowly; what is looked up does not.
TEST(Optimizer, RatesFoundAtAnotherWidthAreBroughtToThisOne) {
  auto model = fresh(plain_config());
  const int64_t width = model->config().width;
  TrainOptions o = tiny_options();
  o.lr_width = 2 * width;
  o.lr_times = {{"attention", 3}};
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
    o.optimizer = kind;
    const double hidden = kind == OptimizerKind::muon ? std::sqrt(2.0) : 2;
    const std::vector<Param*> params = Trainable(*model, o).params();
    const std::vector<double> factors = lr_factors(params, o, width);
    for (size_t i = 0; i < params.size(); ++i) {
      const Param& p = *params[i];
      SCOPED_TRACE(p.name);
      const double times = p.part == Part::attention ? 3 : 1;
      if (!p.is_matrix() || p.part == Part::embedding) EXPECT_EQ(factors[i], times);
      else if (p.part == Part::router || p.part == Part::lm_head)
        EXPECT_EQ(factors[i], 2) << "AdamW moves these in any case";
      else EXPECT_EQ(factors[i], times * hidden);
    }
    o.lr_width = width;
    EXPECT_EQ(lr_factors(params, o, width)[0], 1);
    o.lr_width = 2 * width;
  }
  o.tune = Tune::lora;
  o.optimizer = OptimizerKind::adamw;
  EXPECT_FAILS(validate(o), "lr_width");
}

TEST(Optimizer, DecaysMatricesOnly) { check_against_hand(false, 0); }
TEST(Optimizer, DecaysAllWhenAsked) { check_against_hand(true, 0); }
TEST(Optimizer, ClipsAsPyTorch) { check_against_hand(false, 0.25); }

TEST(Optimizer, LeavesBuffersAlone) {
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("deepseek-v3"), 4, 2, 2);
  auto model = fresh(config);
  TrainOptions options = tiny_options();
  options.decay_all = true;
  Optimizer optimizer = optimizer_of(*model, options);
  moe::Run run(1);
  Param* bias = param_named(*model, "layers.1.ffn.router.bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->role, Role::buffer);
  EXPECT_FALSE(bias->is_matrix());
  fill(bias->value, {0.5, -1, 0, 2});
  const uint64_t version = bias->version;
  fill_grads(*model);
  optimizer.update(run, 1, 0.1, optimizer.grad_norm(run));
  EXPECT_EQ(values(bias->value), (std::vector<double>{0.5, -1, 0, 2}));
  EXPECT_EQ(bias->version, version);
  EXPECT_TRUE(bias->grad.empty());
  for (const Param* p : model->params())
    EXPECT_EQ(std::count(optimizer.params().begin(), optimizer.params().end(), p),
              p->is_trained() ? 1 : 0)
        << p->name;
}

TEST(Optimizer, NamesTheParameterWhoseGradientIsNotFinite) {
  auto model = fresh(plain_config());
  Trainable trainable(*model, tiny_options());
  Optimizer optimizer(trainable.params(), tiny_options());
  moe::Run run(2);
  for (float bad : {std::nanf(""), INFINITY}) {
    fill_grads(*model);
    Param* router = param_named(*model, "layers.1.ffn.router.weight");
    ASSERT_NE(router, nullptr);
    router->grad.as<float>()[3] = bad;
    EXPECT_FAILS(optimizer.grad_norm(run),
                 "the gradient of layers.1.ffn.router.weight is not finite");
    trainable.zero_grads();
    EXPECT_EQ(optimizer.grad_norm(run), 0);
  }
}

}  // namespace
}  // namespace moe::optimizer_test
