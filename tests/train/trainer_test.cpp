// Steps: determinism, accumulation, recomputation, what is reported, and what happens when numbers
// stop being numbers.
#include "train/trainer.h"

#include <cmath>
#include <limits>

#include "core/memory.h"
#include "support/files.h"
#include "support/limits.h"
#include "support/param_named.h"
#include "support/tiny_model.h"
#include "support/train_run.h"

namespace moe::trainer_test {
namespace {

using namespace test;

class TrainerIn : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, TrainerIn, testing::Values(DType::f32, DType::bf16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(TrainerIn, SameCommandSameBits) {
  TrainOptions options = tiny_options();
  options.dtype = GetParam();
  options.accumulate = 2;
  const SteppedModel a = run_steps(noisy_config(), options), b = run_steps(noisy_config(), options);
  EXPECT_TRUE(same_weights(*a.model, *b.model));
  EXPECT_FALSE(same_weights(*a.model, *fresh(noisy_config()))) << "nothing was trained";
  EXPECT_EQ(a.steps.back().ce, b.steps.back().ce);
}

TEST_P(TrainerIn, RecomputingKeepsEveryBit) {
  TrainOptions options = tiny_options();
  options.dtype = GetParam();
  const SteppedModel kept = run_steps(noisy_config(), options);
  options.recompute = true;
  const SteppedModel again = run_steps(noisy_config(), options);
  EXPECT_TRUE(same_weights(*kept.model, *again.model));
  EXPECT_EQ(kept.steps.back().layers[1].load, again.steps.back().layers[1].load)
      << "recomputation must not count twice";
}

TEST_P(TrainerIn, LossFalls) {
  TrainOptions options = tiny_options();
  options.dtype = GetParam();
  options.steps = 60;
  const SteppedModel t = run_steps(noisy_config(), options);
  EXPECT_NEAR(t.steps.front().ce, std::log(256.0), 0.1);
  EXPECT_LT(t.steps.back().ce, 3.0);
}

TEST(Trainer, AnotherSeedIsAnotherRun) {
  TrainOptions options = tiny_options();
  const SteppedModel a = run_steps(noisy_config(), options);
  options.seed = 2;
  EXPECT_FALSE(same_weights(*a.model, *run_steps(noisy_config(), options).model));
}

// k micro-batches = one batch, where the loss is a plain mean over tokens.
TEST(Trainer, AccumulatedMicroBatchesAreOneBatch) {
  TrainOptions options = tiny_options();
  options.steps = 1;
  options.warmup = 0;
  options.clip = 0;
  const Corpus corpus = tiny_corpus();
  std::vector<std::vector<double>> moments[2];
  double ce[2];
  for (int split : {0, 1}) {
    options.batch = split ? 2 : 4;
    options.accumulate = split ? 2 : 1;
    auto model = fresh(plain_config());
    Trainer trainer(*model, options, corpus);
    ce[split] = trainer.step().ce;
    // After one step m = (1 - beta1) * gradient.
    const std::vector<Param*>& params = trainer.optimizer().params();
    EXPECT_EQ(params.size(), model->params().size());
    for (size_t i = 0; i < params.size(); ++i)
      moments[split].push_back(values(trainer.optimizer().m(i)));
    for (size_t i = 0; i < params.size(); ++i)
      EXPECT_GT(norm(moments[split][i]), 0) << params[i]->name;
  }
  EXPECT_NEAR(ce[0], ce[1], 1e-6);
  for (size_t i = 0; i < moments[0].size(); ++i)
    EXPECT_LE(relative_error(moments[1][i], moments[0][i]), 1e-6) << i;
}

TEST(Trainer, ReportsWhatHappened) {
  TrainOptions options = tiny_options();
  options.accumulate = 2;
  const SteppedModel t = run_steps(noisy_config(), options);
  const StepResult& r = t.steps[2];
  EXPECT_EQ(r.step, 3);
  EXPECT_EQ(r.tokens, 3 * 2 * 4 * 32);
  EXPECT_GT(r.seconds, t.steps[1].seconds);
  EXPECT_GT(r.tokens_per_second, 0);
  EXPECT_GT(r.flops, 0);
  EXPECT_DOUBLE_EQ(t.steps[0].lr, 1.5e-3);
  EXPECT_GT(r.grad_norm, 0);
  EXPECT_GT(r.balance, 0.5);
  EXPECT_LT(r.balance, 4);
  EXPECT_GT(r.z, 0);
  ASSERT_EQ(r.layers.size(), 2u);
  double dropped = 0, max_vio = 0;
  for (const LayerLoad& layer : r.layers) {
    double sum = 0, most = 0;
    for (double load : layer.load) {
      sum += load;
      most = std::max(most, load);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_NEAR(layer.max_vio, most * 4 - 1, 1e-12);
    dropped += layer.dropped / 2;
    max_vio = std::max(max_vio, layer.max_vio);
  }
  EXPECT_DOUBLE_EQ(r.dropped, dropped);
  EXPECT_DOUBLE_EQ(r.max_vio, max_vio);
}

// Capacity 4 of 128 tokens at 4 experts: at most 16 of the 256 pairs are kept.
TEST(Trainer, CountsDroppedTokens) {
  ModelConfig config = noisy_config();
  config.routing.capacity_factor = 1e-3f;
  TrainOptions options = tiny_options();
  options.steps = 1;
  options.warmup = 0;
  const SteppedModel t = run_steps(config, options);
  EXPECT_DOUBLE_EQ(t.steps[0].dropped, 240.0 / 256);
  config.routing.capacity_factor = 4;
  EXPECT_EQ(run_steps(config, options).steps[0].dropped, 0);
  EXPECT_LT(t.steps[0].flops, run_steps(config, options).steps[0].flops)
      << "dropped rows are not computed";
}

TEST(Trainer, DenseModelsHaveNoRouting) {
  ModelConfig config = plain_config();
  config.routing = {};
  const SteppedModel t = run_steps(config, tiny_options());
  EXPECT_TRUE(t.steps.back().layers.empty());
  EXPECT_EQ(t.steps.back().balance, 0);
  EXPECT_EQ(t.steps.back().dropped, 0);
  EXPECT_LT(t.steps.back().ce, t.steps.front().ce);
}

// The mean over tokens of -log p by a softmax over the logits of each window.
TEST(Trainer, EvaluationIsTheMeanOverWindows) {
  auto model = fresh(noisy_config());
  const Corpus corpus = tiny_corpus();
  std::vector<int32_t> ids(32 * 7 + 20);  // seven windows and a rest
  corpus.fill(0, static_cast<int64_t>(ids.size()), ids.data());
  TrainOptions options = tiny_options();
  options.eval_tokens = 0;
  Trainer trainer(*model, options, corpus);
  const double ce = trainer.evaluate(Corpus(ids));

  moe::Run run(2);
  const RoutingSpec spec = eval_spec(model->config().routing);
  double sum = 0;
  for (size_t w = 0; w < 7; ++w) {
    const std::vector<int32_t> window(ids.begin() + static_cast<int64_t>(w) * 32,
                                      ids.begin() + static_cast<int64_t>(w) * 32 + 32);
    std::vector<int32_t> positions(32);
    for (int i = 0; i < 32; ++i) positions[static_cast<size_t>(i)] = i;
    const std::vector<int64_t> bounds = {0, 32};
    const Batch batch{window, positions, bounds};
    ModelSaved saved;
    model->forward(run, {.batch = batch, .routing = &spec}, saved);
    Tensor logits = run.saved.alloc(DType::f32, {32, 256});
    model->logits(run, logits, saved.hidden);
    for (int64_t n = 0; n < 32; ++n) {
      double total = 0;
      for (int64_t v = 0; v < 256; ++v)
        total += std::exp(static_cast<double>(logits.row<float>(n)[v]));
      sum += std::log(total) - logits.row<float>(n)[ids[w * 32 + static_cast<size_t>(n) + 1]];
    }
  }
  EXPECT_NEAR(ce, sum / (7 * 32), 1e-6);
  EXPECT_EQ(trainer.evaluate(Corpus(ids)), ce) << "evaluation draws nothing";
}

TEST(Trainer, EvaluationTouchesNothing) {
  const Corpus corpus = tiny_corpus();
  auto a = fresh(noisy_config()), b = fresh(noisy_config());
  Trainer with(*a, tiny_options(), corpus), without(*b, tiny_options(), corpus);
  for (int i = 0; i < 3; ++i) {
    with.step();
    with.evaluate(corpus);
    without.step();
  }
  EXPECT_TRUE(same_weights(*a, *b));
}

TEST(Trainer, EvaluationIsLimited) {
  auto model = fresh(plain_config());
  const Corpus corpus = tiny_corpus();
  TrainOptions options = tiny_options();
  options.eval_tokens = 64;
  Trainer trainer(*model, options, corpus);
  const double limited = trainer.evaluate(corpus);
  options.eval_tokens = 0;
  Trainer all(*model, options, corpus);
  EXPECT_NE(limited, all.evaluate(corpus));
  EXPECT_FAILS(trainer.evaluate(Corpus(std::vector<int32_t>(32, 65))), "32 tokens, at least 33");
}

TEST(Trainer, ANonFiniteWeightIsNamed) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config());
  Trainer trainer(*model, tiny_options(), corpus);
  trainer.step();
  param_named(*model, "layers.1.attn.q.weight")->value.as<float>()[5] =
      std::numeric_limits<float>::quiet_NaN();
  param_named(*model, "layers.1.attn.q.weight")->touched();
  const std::string message = message_of([&] { trainer.step(); });
  EXPECT_NE(message.find("step 2: "), std::string::npos) << message;
  EXPECT_NE(message.find("layers.1.attn.q.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("; a lower lr or a longer warmup helps"), std::string::npos) << message;
  EXPECT_THROW(trainer.step(), DivergedError);
  EXPECT_EQ(trainer.steps_done(), 1);
}

TEST(Trainer, AnEvaluationThatIsNotFiniteIsADivergenceToo) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config());
  Trainer trainer(*model, tiny_options(), corpus);
  trainer.step();
  Param* param = param_named(*model, "layers.1.attn.q.weight");
  param->value.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  param->touched();
  const std::string message = message_of([&] { trainer.evaluate(corpus); });
  EXPECT_NE(message.find("after step 1: "), std::string::npos) << message;
  EXPECT_NE(message.find("layers.1.attn.q.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("; a lower lr or a longer warmup helps"), std::string::npos) << message;
  EXPECT_THROW(trainer.evaluate(corpus), DivergedError);
}

// Memory that is refused says nothing about the numbers: no layer is blamed, and a lower learning
// rate is no help.
TEST(Trainer, MemoryThatIsRefusedIsNoDivergence) {
  if (!kLimitsWork) GTEST_SKIP();
  ModelConfig config = plain_config();
  config.routing = default_options(find_recipe("dense"), 1, 1, 2);
  config.dense_width = 1 << 14;
  TrainOptions options = tiny_options();
  options.batch = 256;
  const Corpus corpus = tiny_corpus();
  const auto model = fresh(config);
  Trainer trainer(*model, options, corpus);
  const AddressLimit limit(int64_t{64} << 20);
  try {
    trainer.step();
    FAIL() << "64 MiB were enough";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(std::string(e.what()).find("out of memory"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("finite"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("a lower lr"), std::string::npos) << e.what();
  }
}

// Weights so large that a layer overflows although every one of them is finite.
TEST(Trainer, ALayerThatOverflowsIsNamedAndTheWeightsAreLeftAlone) {
  const Corpus corpus = tiny_corpus();
  ModelConfig config = plain_config();
  config.routing = {};
  auto model = fresh(config);
  Trainer trainer(*model, tiny_options(), corpus);
  for (const char* name : {"layers.1.ffn.experts.up.weight", "layers.1.ffn.experts.down.weight"}) {
    Param* p = param_named(*model, name);
    ASSERT_NE(p, nullptr);
    for (int64_t i = 0; i < p->value.numel(); ++i) p->value.as<float>()[i] = 1e30f;
    p->touched();
  }
  auto before = fresh(config);
  for (size_t i = 0; i < model->params().size(); ++i)
    fill(before->params()[i]->value, values(model->params()[i]->value));
  const std::string message = message_of([&] { trainer.step(); });
  EXPECT_NE(message.find("step 1: "), std::string::npos) << message;
  EXPECT_NE(message.find("layers.1"), std::string::npos) << message;
  EXPECT_TRUE(same_weights(*model, *before));
  for (const Param* p : model->params()) EXPECT_TRUE(p->grad_is_zero) << p->name;
}

TEST(Trainer, RefusesWhatDoesNotFitTheModel) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config());
  TrainOptions options = tiny_options();
  options.context = 33;
  EXPECT_FAILS(Trainer(*model, options, corpus), "context is 33");
  ModelConfig sparse = plain_config();  // of a context of 32
  sparse.kv_heads = sparse.heads;
  sparse.rotary_width = 2;
  sparse.latent = {.width = 8, .query_width = 8, .value_width = 4};
  sparse.sparse = {.top = 16, .heads = 2, .width = 4};
  auto short_sighted = fresh(sparse);
  options.context = 17;
  EXPECT_FAILS(Trainer(*short_sighted, options, corpus),
               "context is 17, but beyond 16 tokens the attention of the model is sparse, which is "
               "not trained here; give at most 16");
  const Corpus small(std::vector<int32_t>(20, 65));
  EXPECT_FAILS(Trainer(*model, tiny_options(), small), "20 tokens");
}

}  // namespace
}  // namespace moe::trainer_test
