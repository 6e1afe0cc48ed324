// Preference pairs: the loss against its formula, the gradient against the scalar twins, runs whose
// margin rises, and that they go on bit for bit whatever is trained.
#include "train/preference.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/model_check.h"
#include "support/train_run.h"
#include "train/metrics.h"

namespace moe::preference_test {
namespace {

using namespace test;

TextBatch first_pairs(const Corpus& corpus, int64_t count) {
  TextBatch batch;
  const PairIndex index(corpus, 64);
  for (int64_t p = 0; p < count; ++p) batch.add_pair(corpus, index, p);
  return batch;
}

TEST(Preference, TheLossIsItsFormula) {
  const Corpus corpus = tiny_pairs(3);
  const TextBatch batch = first_pairs(corpus, 3);
  Arena arena;
  const auto tokens = static_cast<int64_t>(batch.ids.size());
  const Tensor nll = draw(arena, DType::f32, {tokens}, 5);
  for (int64_t n = 0; n < tokens; ++n) {
    float& x = nll.as<float>()[n];
    x = batch.targets[static_cast<size_t>(n)] < 0 ? 0.0f : 2 + x;
  }
  PairReference reference(3);
  EXPECT_FALSE(reference.has(0));
  const std::vector<std::array<float, 2>> of = {{-9.5f, -14}, {-20, -3}, {0, -12}};
  for (int64_t p = 0; p < 3; ++p)
    reference.set(p, of[static_cast<size_t>(p)][0], of[static_cast<size_t>(p)][1]);
  EXPECT_TRUE(reference.has(2)) << "certain of the reply";
  constexpr double kBeta = 0.3;
  PairSums sums;
  const std::vector<float> weights = pair_losses(sums, nll, batch, reference, kBeta);
  double loss = 0, margins = 0, chosen = 0;
  int64_t right = 0, replies = 0;
  for (size_t p = 0; p < 3; ++p) {
    const auto log_prob = [&](size_t s) {
      double sum = 0;
      for (int64_t n = batch.bounds[s]; n < batch.bounds[s + 1]; ++n) sum -= nll.as<float>()[n];
      return sum;
    };
    const double margin = kBeta * (log_prob(2 * p) - of[p][0] - log_prob(2 * p + 1) + of[p][1]);
    loss -= std::log(1 / (1 + std::exp(-margin)));
    margins += margin;
    right += margin > 0;
    chosen -= log_prob(2 * p);
    for (size_t s : {2 * p, 2 * p + 1})
      for (int64_t n = batch.bounds[s]; n < batch.bounds[s + 1]; ++n) {
        const double by_nll = kBeta / (1 + std::exp(margin));
        EXPECT_NEAR(weights[static_cast<size_t>(n)], s % 2 == 0 ? by_nll : -by_nll, 1e-6);
        replies += s % 2 == 0 && batch.targets[static_cast<size_t>(n)] >= 0;
      }
  }
  EXPECT_NEAR(sums.means().loss, loss / 3, 1e-5);
  EXPECT_NEAR(sums.means().margin, margins / 3, 1e-5);
  EXPECT_EQ(sums.preferred, right);
  EXPECT_GT(right, 0);
  EXPECT_LT(right, 3);
  EXPECT_NEAR(sums.chosen_ce(), chosen / static_cast<double>(replies), 1e-5);
  EXPECT_FAILS(pair_losses(sums, nll, batch, PairReference(3), kBeta),
               "there is no reference of preference pair 1");
}

TEST(Preference, WithoutATokenOfAChosenReplyThereIsNoCrossEntropy) {
  EXPECT_TRUE(std::isnan(PairSums{}.chosen_ce()));
  EXPECT_EQ((PairSums{.chosen_nll = 3, .chosen_tokens = 2}.chosen_ce()), 1.5);
}

// Of margins so large that e^m is no number.
TEST(Preference, LargeMarginsHaveALoss) {
  const Corpus corpus = tiny_pairs(1);
  const TextBatch batch = first_pairs(corpus, 1);
  Arena arena;
  const Tensor nll = arena.alloc_zeroed(DType::f32, {static_cast<int64_t>(batch.ids.size())});
  for (const float by : {-5000.0f, 5000.0f}) {
    PairReference reference(1);
    reference.set(0, by < 0 ? by : 0, by < 0 ? 0 : -by);
    PairSums sums;
    const std::vector<float> weights = pair_losses(sums, nll, batch, reference, 1);
    EXPECT_EQ(sums.loss, by < 0 ? 0 : 5000);
    EXPECT_EQ(weights[0], by < 0 ? 0 : 1);
  }
}

TEST(Preference, TheGradientIsThatOfTheTwins) {
  Case item{.name = "pairs", .config = small()};
  item.config.routing = default_options(find_recipe("olmoe"), 4, 2, 2);
  item.config.routing.coef = {};
  const RoutingSpec spec = spec_of(item);
  Model model(item.config);
  ASSERT_NE(draw_model(model, item, spec), 0u);
  // Two pairs; the first target of a text belongs to its prompt.
  TwinInput in = input(item, 5);
  in.bounds = {0, 3, 6, 9, 12};
  for (size_t n = 0; n < 12; ++n) {
    in.positions[n] = static_cast<int32_t>(n % 3);
    if (n % 3 == 0) in.targets[n] = ops::kIgnoreTarget;
  }
  TextBatch batch;
  batch.ids = in.ids;
  batch.targets = in.targets;
  batch.bounds = in.bounds;
  batch.pairs = {0, 1};
  const std::vector<std::array<float, 2>> of = {{-4, -5}, {-6, -3}};
  PairReference reference(2);
  for (int64_t p = 0; p < 2; ++p)
    reference.set(p, of[static_cast<size_t>(p)][0], of[static_cast<size_t>(p)][1]);
  constexpr double kBeta = 0.5;

  moe::Run run(2);
  model.enable_grads();
  ModelSaved saved;
  const Tensor nll = run.saved.alloc(DType::f32, {12});
  model.forward(run,
                {.batch = {in.ids, in.positions, in.bounds}, .routing = &spec, .keep = Keep::all},
                saved);
  model.loss_forward(run, nll, in.targets, saved);
  PairSums sums;
  const std::vector<float> weights = pair_losses(sums, nll, batch, reference, kBeta);
  model.backward(run, in.targets, 0.5f, {}, saved, weights);

  const auto loss_of = [&](const auto& out) {
    using T = std::decay_t<decltype(out.loss)>;
    T loss(0.0);
    for (size_t p = 0; p < 2; ++p) {
      T margin(0.0);
      for (size_t n = 6 * p; n < 6 * p + 6; ++n)
        if (in.targets[n] >= 0)
          margin += T(n % 6 < 3 ? kBeta : -kBeta) *
                    (out.logits[n][static_cast<size_t>(in.targets[n])] - twin::lse(out.logits[n]));
      margin -= T(kBeta * (static_cast<double>(of[p][0]) - of[p][1]));
      // log(1 + e^-m)
      loss += T(0.5) * twin::lse(std::vector<T>{T(0.0), T(0.0) - margin});
    }
    return loss;
  };
  const auto drawn = twin_params<double>(model);
  const double want_loss = loss_of(TwinModel<double>(item.config, spec, drawn).run(in, {}));
  EXPECT_NEAR(sums.means().loss, want_loss, kTwinF32 * want_loss);

  const auto want = twin_gradients(model, spec, in, {}, loss_of);
  for (const Param* param : model.params())
    expect_near(param->grad, want.at(param->name), kTwinF32, "gradient of " + param->name);
}

TrainOptions pair_options(Tune tune) {
  TrainOptions o = tiny_options();
  o.tune = tune;
  o.accumulate = 2;
  o.lr = 1e-2;
  o.dpo_beta = 0.5;
  return o;
}

TEST(Preference, TheFirstStepIsTheReferenceToTheBit) {
  const Corpus corpus = tiny_pairs();
  for (Tune tune : {Tune::all, Tune::lora})
    for (DType dtype : {DType::f32, DType::bf16}) {
      auto model = fresh(plain_config());
      TrainOptions options = pair_options(tune);
      options.dtype = dtype;
      Trainer trainer(*model, options, corpus);
      trainer.take_reference(nullptr, false);
      const StepResult first = trainer.step();
      ASSERT_TRUE(first.pairs.has_value());
      EXPECT_EQ(first.pairs->margin, 0);
      EXPECT_EQ(first.pairs->accuracy, 0);
      EXPECT_NEAR(first.pairs->loss, std::log(2), 1e-12);
      EXPECT_GT(first.grad_norm, 0);
      EXPECT_FALSE(first.kl.has_value());
      EXPECT_EQ(first.tokens, trainer.tokens_seen());
      EXPECT_GT(first.tokens, first.predicted);
    }
}

TEST(Preference, TheMarginRisesAndHeldOutPairsSaySo) {
  const Corpus corpus = tiny_pairs(24), held_out = tiny_pairs(12, 24);
  auto model = fresh(plain_config());
  TrainOptions options = pair_options(Tune::lora);
  options.steps = 40;
  Trainer trainer(*model, options, corpus);
  trainer.take_reference(&held_out, false);
  const Evaluation before = *trainer.evaluate(held_out, nullptr);
  EXPECT_EQ(before.pairs->margin, 0);
  StepResult last;
  for (int i = 0; i < 40; ++i) last = trainer.step();
  EXPECT_GT(last.pairs->margin, 1);
  EXPECT_GT(last.pairs->accuracy, 0.9);
  EXPECT_LT(last.pairs->loss, 0.3);
  const Evaluation after = *trainer.evaluate(held_out, nullptr);
  EXPECT_GT(after.pairs->margin, 0.5);
  EXPECT_LT(after.loss(), before.loss());
}

// Where a teacher is given it is the reference: the first margin says how far the two are apart.
TEST(Preference, ATeacherIsTheReference) {
  const Corpus corpus = tiny_pairs();
  auto model = fresh(plain_config()), other = fresh(plain_config(), 8),
       same = fresh(plain_config());
  Trainer apart(*model, pair_options(Tune::all), corpus, other.get());
  apart.take_reference(nullptr, false);
  const StepResult first = apart.step();
  EXPECT_NE(first.pairs->margin, 0);
  EXPECT_FALSE(first.kl.has_value());
  Trainer without(*same, pair_options(Tune::all), corpus);
  EXPECT_FAILS(without.step(), "no reference of preference pair");
}

// Only what the run comes to is read, unless it may yet become longer.
TEST(Preference, TheReferenceReadsThePairsOfTheRun) {
  const Corpus corpus = tiny_pairs(24);
  const auto taken = [&](int64_t steps, double minutes) {
    auto model = fresh(plain_config());
    TrainOptions options = pair_options(Tune::all);
    options.steps = steps;
    options.warmup = 0;
    options.minutes = minutes;
    Trainer trainer(*model, options, corpus);
    trainer.take_reference(nullptr, false);
    int64_t count = 0;
    for (int64_t p = 0; p < 24; ++p) count += trainer.reference().has(p);
    for (int64_t step = 0; step < steps; ++step) trainer.step();
    return count;
  };
  EXPECT_EQ(taken(2, 0), 16);
  EXPECT_EQ(taken(4, 0), 24);
  EXPECT_EQ(taken(2, 1), 24);
}

class PairRuns : public testing::Test {
 protected:
  TrainRun make(const std::string& out, Tune tune) {
    const std::string start = folder_ / "start";
    if (!std::filesystem::exists(start)) {
      ModelConfig config =
          noisy_config();  // noise, dropout and drops: the run draws, not the reference
      config.routing = default_options(find_recipe("deepseek-v3"), 4, 2, 2);
      save_model(start, *fresh(config), *make_tokenizer("bytes"));
    }
    return {start, folder_ / out, pair_options(tune), tiny_pairs(), tiny_pairs(12, 24)};
  }
  TempFolder folder_;
};

TEST_F(PairRuns, GoOnBitForBit) {
  for (Tune tune : {Tune::all, Tune::router, Tune::lora, Tune::lora_router})
    for (bool taught : {false, true}) {
      SCOPED_TRACE(std::string(name_of(tune)) + (taught ? " with a teacher" : ""));
      const std::string name = std::string(name_of(tune)) + (taught ? "-taught" : "");
      TrainRun whole = make(name + "-whole", tune), parts = make(name + "-parts", tune);
      for (TrainRun* r : {&whole, &parts})
        if (taught) r->teacher = fresh(plain_config(), 3);
      const TrainSummary last = whole.run();
      EXPECT_TRUE(parts.run(2).interrupted);
      const TrainSummary resumed = parts.resume();
      EXPECT_NE(last.last.pairs->margin, 0);
      EXPECT_EQ(resumed.last.pairs->margin, last.last.pairs->margin);
      EXPECT_EQ(resumed.last.pairs->loss, last.last.pairs->loss);
      EXPECT_EQ(resumed.last.tokens, last.last.tokens);
      EXPECT_EQ(resumed.eval->loss(), last.eval->loss());
      EXPECT_EQ(resumed.best->loss, last.best->loss);
      const std::string result =
          tunes_adapters(tune) ? "/adapter_model.safetensors" : "/model.safetensors";
      expect_same_tensors(whole.out + result, parts.out + result);
      expect_same_tensors(whole.out + "/trainer-5.safetensors",
                          parts.out + "/trainer-5.safetensors");
    }
}

TEST_F(PairRuns, OtherHeldOutPairsAndOtherOptionsAreNotResumed) {
  make("out", Tune::all).run(2);
  const auto refused = [&](auto&& change, const char* part) {
    TrainRun other = make("out", Tune::all);
    change(other);
    EXPECT_FAILS(other.resume(), part);
  };
  refused([](TrainRun& r) { r.options.dpo_beta = 0.25; }, "dpo_beta was 0.5 and is now 0.25");
  refused([](TrainRun& r) { r.held_out = tiny_pairs(12, 30); },
          "its held-out preference pairs are not those that it began with");
  refused([](TrainRun& r) { r.corpus = tiny_pairs(23); }, "the training text is not the one");
  refused([](TrainRun& r) { r.held_out = tiny_corpus(); }, "held-out");
  EXPECT_EQ(make("out", Tune::all).resume().last.step, 5);
}

// A clock that is given only when going on may change the number of steps: what it then comes to is
// checked as for any other number.
TEST_F(PairRuns, MinutesMayBeGivenWhenGoingOn) {
  TrainRun r = make("minutes", Tune::all);
  r.options.schedule = ScheduleKind::constant;
  r.options.warmup = 0;
  r.options.steps = 2;  // 16 of the 24 pairs
  r.run(1);
  r.options.minutes = 60;
  EXPECT_EQ(r.resume().last.step, 2);
}

// Steps that a schedule without end may be lengthened by need pairs that the reference has read.
TEST_F(PairRuns, ALongerRunStaysWithinWhatTheReferenceRead) {
  for (const int64_t steps : {2, 3}) {  // 16 and 24 of the 24 pairs
    TrainRun r = make(std::to_string(steps), Tune::all);
    r.options.schedule = ScheduleKind::constant;
    r.options.warmup = 0;
    r.options.steps = steps;
    r.run();
    r.options.steps = 5;
    if (steps == 2) EXPECT_FAILS(r.resume(), "with steps 5: it would come to preference pairs");
    else EXPECT_EQ(r.resume().last.step, 5);
  }
}

TEST_F(PairRuns, HeldOutTextMustBePairsToo) {
  TrainRun r = make("mixed", Tune::all);
  r.held_out = tiny_corpus();
  EXPECT_FAILS(r.run(), "the training text is preference pairs, the held-out text is not");
  TrainRun other = make("other", Tune::all);
  other.corpus = tiny_corpus();
  EXPECT_FAILS(other.run(), "the training text is no preference pairs, the held-out text is");
}

TEST(Preference, MeasuringAStepNeedsNoReference) {
  const Corpus corpus = tiny_pairs(), held_out = tiny_pairs(12, 24);
  auto model = fresh(plain_config()), same = fresh(plain_config());
  TrainOptions options = pair_options(Tune::all);
  options.minutes = 1;
  const std::atomic<bool> go_on = false;
  EXPECT_GE(
      fitted_steps(*model, options, {[] { return 0.0; }, 60}, corpus, &held_out, nullptr, go_on),
      10);
  EXPECT_TRUE(same_weights(*model, *same));
}

}  // namespace
}  // namespace moe::preference_test
