// Training with every recipe: recomputation, balance losses that look beyond one micro-batch, what
// moves once a step, and what is reported.
#include <algorithm>
#include <cmath>

#include "support/param_named.h"
#include "support/routings.h"
#include "support/tiny_model.h"
#include "support/train_run.h"

namespace moe::routing_test {
namespace {

using namespace test;

constexpr int64_t kExperts = 8;

ModelConfig config_of(const RoutingOptions& routing) {
  ModelConfig c = noisy_config();
  c.routing = routing;
  return c;
}

// One thread: the models are too small for two.
TrainOptions options_of(int64_t steps, int64_t batch = 4, int64_t accumulate = 1) {
  TrainOptions o = tiny_options();
  o.steps = steps;
  o.batch = batch;
  o.accumulate = accumulate;
  o.warmup = 0;
  o.threads = 1;
  return o;
}

std::vector<float> numbers(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

std::vector<double> losses_of(const StepResult& r) {
  std::vector<double> out;
  each_loss(r, [&](std::string_view, double value) { out.push_back(value); });
  return out;
}

TEST(Routing, EveryRecipeLearns) {
  for (const RoutingOptions& routing : small_routings(kExperts, 2)) {
    SCOPED_TRACE(routing.recipe);
    const SteppedModel t = run_steps(config_of(routing), options_of(60));
    EXPECT_NEAR(t.steps.front().ce, std::log(256.0), 0.15);
    EXPECT_LT(t.steps.back().ce, 3.0);
  }
}

TEST(Routing, RecomputingKeepsEveryBitAndCountsOnce) {
  for (const RoutingOptions& routing : small_routings(kExperts, 2)) {
    SCOPED_TRACE(routing.recipe);
    TrainOptions options = options_of(3, 2, 2);
    const SteppedModel kept = run_steps(config_of(routing), options);
    options.recompute = true;
    const SteppedModel again = run_steps(config_of(routing), options);
    EXPECT_TRUE(same_weights(*kept.model, *again.model))
        << "selection biases and thresholds included";
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(losses_of(kept.steps[s]), losses_of(again.steps[s]));
      EXPECT_EQ(kept.steps[s].dropped, again.steps[s].dropped);
      for (size_t l = 0; l < 2; ++l)
        EXPECT_EQ(kept.steps[s].layers[l].load, again.steps[s].layers[l].load);
    }
  }
}

// The gradient of the first step, of every parameter that has one: after it m = (1 - beta1) *
// gradient.
std::vector<std::vector<double>> first_gradient(const ModelConfig& config, int64_t batch,
                                                int64_t accumulate) {
  TrainOptions options = options_of(1, batch, accumulate);
  options.clip = 0;
  const Corpus corpus = tiny_corpus();
  auto model = fresh(config);
  Trainer trainer(*model, options, corpus);
  trainer.step();
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < trainer.optimizer().params().size(); ++i)
    all.push_back(values(trainer.optimizer().m(i)));
  return all;
}

double largest_error(const std::vector<std::vector<double>>& got,
                     const std::vector<std::vector<double>>& want) {
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i)
    if (norm(want[i]) > 0) error = std::max(error, relative_error(got[i], want[i]));
  return error;
}

// Recipes with a balance loss, without what ties the tokens of a micro-batch together otherwise:
// noise, random choices and full buffers.
std::vector<ModelConfig> balanced_configs() {
  std::vector<ModelConfig> all;
  for (RoutingOptions routing : small_routings(kExperts, 2)) {
    const RoutingSpec spec = train_spec(routing);
    if (!spec.losses.balance) continue;
    routing.noise = false;
    if (std::holds_alternative<BufferCapacity>(spec.capacity)) routing.capacity_factor = 100.0f;
    if (std::holds_alternative<RandomSecond>(spec.second)) {
      routing.stages = R"({"base":")" + routing.recipe + R"(","second":"all"})";
      routing.recipe = "custom";
    }
    routing.coef.balance = 2;  // large, so that its share of the gradient is seen
    ModelConfig c = config_of(routing);
    c.dropout = 0;
    all.push_back(c);
  }
  return all;
}

TEST(Routing, SharesOfTheStepMakeMicroBatchesOneBatch) {
  int tried = 0;
  for (ModelConfig c : balanced_configs()) {
    SCOPED_TRACE(c.routing.recipe + " " + c.routing.stages);
    c.routing.balance_over = BalanceOver::micro_batch;
    const auto own = first_gradient(c, 1, 4);
    c.routing.balance_over = BalanceOver::step;
    const auto split = first_gradient(c, 1, 4), whole = first_gradient(c, 4, 1);
    EXPECT_LE(largest_error(split, whole), 1e-6);
    EXPECT_GT(largest_error(own, whole), 1e-4)
        << "the counts of one micro-batch must make a difference, or this proves nothing";
    ++tried;
  }
  EXPECT_GE(tried, 10);
}

TEST(Routing, RunningSharesOfOneMicroBatchAreItsOwn) {
  for (ModelConfig c : balanced_configs()) {
    SCOPED_TRACE(c.routing.recipe + " " + c.routing.stages);
    const auto with = [&](BalanceOver over, int64_t batch, int64_t accumulate) {
      c.routing.balance_over = over;
      return first_gradient(c, batch, accumulate);
    };
    EXPECT_EQ(with(BalanceOver::running, 4, 1), with(BalanceOver::micro_batch, 4, 1));
    const auto running = with(BalanceOver::running, 1, 4);
    EXPECT_NE(running, with(BalanceOver::micro_batch, 1, 4));
    EXPECT_NE(running, with(BalanceOver::step, 1, 4));
  }
}

// Row r of a step is the same text however the rows are cut into micro-batches, and without drops
// its routing is the same.
TEST(Routing, TheSelectionBiasMovesOnceAStepByTheCountsOfAllMicroBatches) {
  ModelConfig c = config_of(small_routing("deepseek-v3", kExperts, 2));
  c.dropout = 0;
  const float rate = selection_bias(train_spec(c.routing).select)->rate;
  const SteppedModel whole = run_steps(c, options_of(1, 4, 1)),
                     split = run_steps(c, options_of(1, 1, 4));
  for (const char* name : {"layers.0.ffn.router.bias", "layers.1.ffn.router.bias"}) {
    const std::vector<float> bias = numbers(param_named(*whole.model, name)->value);
    EXPECT_EQ(bias, numbers(param_named(*split.model, name)->value));
    const std::vector<double>& load = whole.steps[0].layers[name[7] == '1'].load;
    for (size_t e = 0; e < bias.size(); ++e)
      EXPECT_EQ(bias[e], load[e] > 1.0 / kExperts   ? -rate
                         : load[e] < 1.0 / kExperts ? rate
                                                    : 0)
          << e;
  }
  const SteppedModel twice = run_steps(c, options_of(2, 1, 4));
  for (const float b : numbers(param_named(*twice.model, "layers.0.ffn.router.bias")->value))
    EXPECT_LE(std::abs(b), 2 * rate + 1e-9f);
}

// One forward of the training text as step 0 routes micro-batch `a`.
ModelSaved routed(Model& model, moe::Run& run, const TrainOptions& options, int64_t a) {
  const Corpus corpus = tiny_corpus();
  const BatchPlan plan(corpus.size(), {options.context, options.batch, options.accumulate},
                       options.shuffle, options.seed);
  TextBatch text;
  plan.fill(corpus, 0, a, text);
  const Batch batch{text.ids, text.positions, text.bounds};
  const RoutingSpec spec = train_spec(model.config().routing);
  const RngKey key = RngKey::from_seed(options.seed).fold(0).fold(static_cast<uint64_t>(a));
  ModelSaved saved;
  model.forward(run, {.batch = batch, .routing = &spec, .key = key, .wanted = Wanted::all()},
                saved);
  return saved;
}

TEST(Routing, ThresholdsFollowTheCutoffsOfExpertChoice) {
  const ModelConfig c = config_of(small_routing("expert-choice", kExperts, 2));
  const TrainOptions options = options_of(2, 2, 2);
  const Corpus corpus = tiny_corpus();
  auto model = fresh(c);
  moe::Run run(1);
  std::vector<double> mean(kExperts, 0.0);
  for (int64_t a = 0; a < 2; ++a) {
    const ModelSaved saved = routed(*model, run, options, a);
    ASSERT_EQ(saved.routing[1].cutoff.size(), static_cast<size_t>(kExperts));
    for (size_t e = 0; e < mean.size(); ++e) mean[e] += saved.routing[1].cutoff[e] / 2.0;
  }
  Trainer trainer(*model, options, corpus);
  trainer.step();
  const Tensor threshold = param_named(*model, "layers.1.ffn.router.threshold")->value;
  const std::vector<float> first = numbers(threshold);
  for (size_t e = 0; e < mean.size(); ++e)
    EXPECT_FLOAT_EQ(first[e], static_cast<float>(mean[e])) << "the first step sets them";
  const StepResult second = trainer.step();
  EXPECT_EQ(second.dropped, 0);
  bool moved = false;
  for (size_t e = 0; e < mean.size(); ++e) {
    moved = moved || threshold.as<float>()[e] != first[e];
    EXPECT_NEAR(threshold.as<float>()[e], first[e], 0.05)
        << "later ones move them by a twentieth of the way";
  }
  EXPECT_TRUE(moved);
  const double ce = trainer.evaluate(corpus);
  EXPECT_TRUE(std::isfinite(ce));
}

TEST(Routing, EveryLossIsReportedAsItsMean) {
  for (const char* recipe : {"shazeer", "deepseek-v2", "st-moe"}) {
    SCOPED_TRACE(recipe);
    const ModelConfig c = config_of(small_routing(recipe, kExperts, 2));
    const TrainOptions options = options_of(1, 2, 2);
    auto model = fresh(c);
    moe::Run run(1);
    std::vector<double> want(6, 0.0);
    for (int64_t a = 0; a < 2; ++a)
      for (const LayerRouting& layer : routed(*model, run, options, a).routing) {
        size_t i = 0;
        each_loss(layer.losses, [&](std::string_view, float value) { want[i++] += value / 4.0; });
      }
    const SteppedModel t = run_steps(c, options);
    const std::vector<double> got = losses_of(t.steps[0]);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
    size_t i = 0, seen = 0;
    each_loss(c.routing.coef, [&](std::string_view name, float coef) {
      if (coef != 0) EXPECT_GT(got[i], 0) << name;
      seen += coef != 0;
      ++i;
    });
    EXPECT_GE(seen, 2u);
    EXPECT_EQ(t.steps[0].coef.balance, c.routing.coef.balance);
  }
}

TEST(Routing, HashRoutingHasNoRouterAndTrains) {
  ModelConfig c = config_of(small_routing("hash", kExperts, 2));
  const SteppedModel t = run_steps(c, options_of(3));
  for (const Param* p : t.model->params())
    EXPECT_EQ(p->name.find("router"), std::string::npos) << p->name;
  EXPECT_LT(t.steps[2].ce, t.steps[0].ce);
  EXPECT_EQ(t.steps[0].z, 0);
  double sum = 0;
  for (double load : t.steps[0].layers[0].load) sum += load;
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_EQ(t.steps[0].layers[0].load, t.steps[0].layers[1].load) << "one table for all layers";
}

// Zero-initialised routers score all experts alike; only their noise tells them apart.
TEST(Routing, ARouterThatStartsAtZeroIsSpreadByItsNoise) {
  const ModelConfig c = config_of(small_routing("shazeer", kExperts, 2));
  auto model = fresh(c);
  for (const char* name : {"layers.0.ffn.router.weight", "layers.0.ffn.router.noise.weight",
                           "layers.1.ffn.router.weight"})
    EXPECT_EQ(norm(values(param_named(*model, name)->value)), 0) << name;
  EXPECT_GT(norm(values(param_named(*model, "layers.0.ffn.experts.up.weight")->value)), 0);
  const SteppedModel t = run_steps(c, options_of(1));
  EXPECT_LT(t.steps[0].max_vio, 1);
  EXPECT_GT(norm(values(param_named(*t.model, "layers.0.ffn.router.weight")->value)), 0);
}

}  // namespace
}  // namespace moe::routing_test
