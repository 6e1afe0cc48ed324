// Training by several processes: what one process does, up to the rounding of sums, whatever the
// recipe; and all of them the same to the bit.
#include <cmath>
#include <limits>

#include "model/cost.h"
#include "support/files.h"
#include "support/param_named.h"
#include "support/processes.h"
#include "support/routings.h"
#include "support/tiny_model.h"

namespace moe::processes_test {
namespace {

using namespace test;

constexpr int64_t kExperts = 4;

TrainOptions options_of(int64_t batch, int64_t accumulate) {
  TrainOptions o = tiny_options();
  o.batch = batch;
  o.accumulate = accumulate;
  o.warmup = 0;
  o.clip = 0;
  o.threads = 1;
  return o;
}

// What a process has after some steps.
struct Trained {
  std::unique_ptr<Model> model;
  // Of the first step, parameter by parameter, as far as this process moves it, times a constant:
  // after it m = (1 - beta1) * gradient.
  std::vector<std::vector<double>> gradient;
  std::vector<Span> moved;  // which numbers of the whole parameter those are
  std::vector<StepResult> steps;
};

Trained train_steps(const ModelConfig& config, const TrainOptions& options, const Corpus& corpus,
                    const comm::Layout& layout = {}, int64_t steps = 1, Model* teacher = nullptr) {
  Trained t{fresh(config, 7, layout.experts()), {}, {}, {}};
  Trainer trainer(*t.model, options, corpus, teacher, layout);
  trainer.take_reference(nullptr, false);
  for (int64_t i = 0; i < steps; ++i) {
    t.steps.push_back(trainer.step());
    for (size_t p = 0; i == 0 && p < trainer.optimizer().params().size(); ++p) {
      t.gradient.push_back(values(trainer.optimizer().m(p)));
      t.moved.push_back(trainer.optimizer().moved_by(layout.all().rank, p));
    }
  }
  return t;
}

// Numbers of a whole parameter.
std::vector<double> part_of(const std::vector<double>& whole, Span span) {
  return {whole.begin() + span.begin, whole.begin() + span.end};
}

void expect_same_step(const StepResult& got, const StepResult& want) {
  EXPECT_EQ(got.predicted, want.predicted);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.flops, want.flops);
  EXPECT_NEAR(got.ce, want.ce, 1e-12);
  EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-6 * want.grad_norm);
  ASSERT_EQ(got.kl.has_value(), want.kl.has_value());
  if (want.kl) EXPECT_NEAR(*got.kl, *want.kl, 1e-12);
  ASSERT_EQ(got.pairs.has_value(), want.pairs.has_value());
  if (want.pairs) {
    EXPECT_NEAR(got.pairs->loss, want.pairs->loss, 1e-12);
    EXPECT_NEAR(got.pairs->margin, want.pairs->margin, 1e-12);
    EXPECT_EQ(got.pairs->accuracy, want.pairs->accuracy);
  }
  std::vector<double> losses;
  each_loss(want, [&](std::string_view, double value) { losses.push_back(value); });
  size_t next = 0;
  each_loss(got, [&](std::string_view name, double value) {
    EXPECT_NEAR(value, losses[next++], 1e-12) << name;
  });
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (size_t i = 0; i < want.layers.size(); ++i) {
    EXPECT_EQ(got.layers[i].load, want.layers[i].load);
    EXPECT_EQ(got.layers[i].dropped, want.layers[i].dropped);
  }
}

// `want` is of one process. A gradient of few numbers may nearly cancel: what the rounding of its
// terms leaves then is measured by the whole.
void expect_same_gradient(const Trained& got, const Trained& want) {
  ASSERT_EQ(got.gradient.size(), want.gradient.size());
  ASSERT_GT(want.gradient.size(), 0u);
  const double rounding = 1e-12 * want.steps[0].grad_norm;
  for (size_t i = 0; i < want.gradient.size(); ++i) {
    const std::vector<double> here = part_of(want.gradient[i], got.moved[i]);
    ASSERT_EQ(got.gradient[i].size(), here.size());
    if (norm(here) == 0) continue;
    EXPECT_LE(relative_error(got.gradient[i], here), 1e-6 + rounding / norm(here))
        << "parameter " << i << " of norm " << norm(here);
  }
}

// One process against 2 and 4 that share its micro-batches.
void expect_processes_change_nothing(const ModelConfig& config, const TrainOptions& options,
                                     const Corpus& corpus) {
  const Trained alone = train_steps(config, options, corpus);
  struct Launch {
    int size, spread;
  };
  for (const Launch launch : {Launch{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}}) {
    const int size = launch.size, spread = launch.spread;
    if (spread > 1 && config.moe_layer_count() == 0) continue;
    SCOPED_TRACE(fmt::format("{} processes, experts over {}", size, spread));
    run_processes(size, [&](const comm::Group& group) {
      const Trained shared = train_steps(config, options, corpus, comm::Layout(group, spread));
      expect_same_gradient(shared, alone);
      expect_same_step(shared.steps[0], alone.steps[0]);
      for (size_t i = 0; i < alone.model->params().size(); ++i) {  // moved by counts and cutoffs
        const Param &got = *shared.model->params()[i], &want = *alone.model->params()[i];
        if (!want.is_trained())
          EXPECT_LE(relative_error(values(got.value), values(want.value)), 1e-6) << want.name;
      }
    });
  }
}

// They work while rows are on the way.
TEST(Processes, SharedExpertsChangeNothing) {
  const Corpus corpus = tiny_corpus();
  for (bool gate : {false, true}) {
    ModelConfig config = plain_config();
    config.shared_experts = 1;
    config.shared_width = 24;
    config.shared_gate = gate;
    expect_processes_change_nothing(config, options_of(1, 4), corpus);
  }
}

// Tokens that zero experts give back stay where they are; and what experts give may join later.
TEST(Processes, ZeroExpertsChangeNothing) {
  const Corpus corpus = tiny_corpus();
  ModelConfig config = plain_config();
  config.routing.zero_experts = 3;
  expect_processes_change_nothing(config, options_of(1, 4), corpus);
  config.layers = 3;
  config.moe_layers = {1};
  config.shared_experts = 1;
  config.shared_width = 24;
  config.shortcut = true;
  expect_processes_change_nothing(config, options_of(1, 4), corpus);
  config = plain_config();
  config.routing = small_routing("deepseek-v3", kExperts, 2);
  config.routing.expert_groups = config.routing.groups_kept = 1;
  config.routing.zero_experts = 3;
  expect_processes_change_nothing(config, options_of(1, 4), corpus);
}

// The reference, too, is dealt out; dropout moves the run away from it.
TEST(Processes, PreferencePairsTrainAsInOne) {
  ModelConfig config = plain_config();
  config.dropout = 0.1f;
  TrainOptions options = options_of(2, 4);
  options.steps = 2;  // 16 of the pairs
  expect_processes_change_nothing(config, options, tiny_pairs(21));
}

TEST(Processes, HalvesOfABatchGiveTheGradientOfTheWhole) {
  const Corpus corpus = tiny_corpus();
  const Trained whole = train_steps(plain_config(), options_of(4, 1), corpus);
  run_processes(2, [&](const comm::Group& group) {
    const Trained half = train_steps(plain_config(), options_of(2, 2), corpus, group);
    expect_same_gradient(half, whole);
    EXPECT_NEAR(half.steps[0].ce, whole.steps[0].ce, 1e-6);
    EXPECT_EQ(half.steps[0].layers[1].load, whole.steps[0].layers[1].load);
  });
}

// Noise, dropout, capacity, experts that choose and selection biases included. Not the running
// counts of a balance loss, which hang on what runs at once.
TEST(Processes, EveryRecipeTrainsAsInOne) {
  const Corpus corpus = tiny_corpus(200);
  for (const RoutingOptions& routing : small_routings(kExperts, 2)) {
    SCOPED_TRACE(routing.recipe);
    ModelConfig config = noisy_config();
    config.routing = routing;
    const auto& balance = train_spec(routing).losses.balance;
    if (balance && balance->shares == BalanceLoss::Shares::running)
      config.routing.balance_over = BalanceOver::micro_batch;
    expect_processes_change_nothing(config, options_of(1, 4), corpus);
  }
}

TEST(Processes, TheBalanceOfAStepCountsTheTokensOfAll) {
  const Corpus corpus = tiny_corpus(200);
  ModelConfig config = plain_config();
  config.routing.coef.balance = 2;
  config.routing.balance_over = BalanceOver::step;
  expect_processes_change_nothing(config, options_of(1, 4), corpus);
}

// Counts so far are those of the rounds before: with as many processes as micro-batches there are
// none, and each has its own.
TEST(Processes, TheRunningBalanceCountsTheRoundsBefore) {
  const Corpus corpus = tiny_corpus(200);
  ModelConfig config = plain_config();
  config.routing.coef.balance = 2;
  config.routing.balance_over = BalanceOver::micro_batch;
  const Trained own = train_steps(config, options_of(1, 2), corpus);
  config.routing.balance_over = BalanceOver::running;
  const Trained alone = train_steps(config, options_of(1, 2), corpus);
  EXPECT_NE(alone.gradient, own.gradient);
  run_processes(2, [&](const comm::Group& group) {
    expect_same_gradient(train_steps(config, options_of(1, 2), corpus, group), own);
    const Trained two_rounds = train_steps(config, options_of(1, 4), corpus, group);
    const Trained whole = train_steps(config, options_of(1, 4), corpus);
    EXPECT_GT(
        relative_error(two_rounds.gradient[1], part_of(whole.gradient[1], two_rounds.moved[1])),
        1e-6);
  });
}

// Micro-batches with few targets, and one with none.
TEST(Processes, EveryTargetCountsTheSame) {
  std::vector<int32_t> ids(4 * 32 + 1);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(uniform_index(RngKey::from_seed(5), i, 200));
  const Corpus corpus(ids, {40, 70, 129}, {{1, 33}, {36, 60}, {100, 101}});
  TrainOptions options = options_of(1, 4);
  options.shuffle = Shuffle::none;
  BatchPlan plan(corpus.size(), {32, 1, 4}, options.shuffle, options.seed);
  TextBatch text;
  plan.fill(corpus, 0, 0, text);
  ASSERT_EQ(text.predicted, 0);
  expect_processes_change_nothing(noisy_config(), options, corpus);
}

TEST(Processes, AdaptersAndATeacher) {
  const Corpus corpus = tiny_corpus(200);
  TrainOptions options = options_of(1, 4);
  options.tune = Tune::lora_router;
  options.lora_rank = 3;
  options.tune_tokens = {"e", "t"};
  options.token_ids = {'e', 't'};
  options.teacher_weight = 0.5;
  auto teacher = fresh(plain_config(), 8);
  const Trained alone = train_steps(noisy_config(), options, corpus, {}, 1, teacher.get());
  run_processes(2, [&](const comm::Group& group) {
    auto own_teacher = fresh(plain_config(), 8);
    const Trained shared =
        train_steps(noisy_config(), options, corpus, group, 1, own_teacher.get());
    expect_same_gradient(shared, alone);
    expect_same_step(shared.steps[0], alone.steps[0]);
  });
}

TEST(Processes, AllHaveTheSameBitsAndTheSameAgain) {
  const Corpus corpus = tiny_corpus();
  TrainOptions options = options_of(1, 4);
  options.clip = 1;
  std::vector<Trained> runs(4);
  for (size_t run : {0, 1})
    run_processes(2, [&](const comm::Group& group) {
      runs[2 * run + static_cast<size_t>(group.rank)] =
          train_steps(noisy_config(), options, corpus, group, 5);
    });
  for (size_t i : {1, 2, 3}) {
    EXPECT_TRUE(same_weights(*runs[i].model, *runs[0].model)) << i;
    for (size_t s = 0; s < 5; ++s) EXPECT_EQ(runs[i].steps[s].ce, runs[0].steps[s].ce) << i;
  }
  EXPECT_EQ(runs[1].steps[4].seconds, runs[0].steps[4].seconds)
      << "what hangs on time hangs on the slowest";
  EXPECT_FALSE(same_weights(*runs[0].model, *fresh(noisy_config())));
}

TEST(Processes, SpreadExpertsAreTheSameBitsAgain) {
  const Corpus corpus = tiny_corpus();
  std::vector<Trained> runs(4);
  for (size_t run : {0, 1})
    run_processes(2, [&](const comm::Group& group) {
      runs[2 * run + static_cast<size_t>(group.rank)] =
          train_steps(noisy_config(), options_of(1, 4), corpus, comm::Layout(group, 2), 5);
    });
  for (size_t p : {0, 1}) {
    EXPECT_TRUE(same_weights(*runs[p].model, *runs[2 + p].model));
    for (size_t s = 0; s < 5; ++s) EXPECT_EQ(runs[p].steps[s].ce, runs[0].steps[s].ce);
  }
}

TEST(Processes, SendsTheBytesThatAreCounted) {
  const Corpus corpus = tiny_corpus();
  ModelConfig config = plain_config();
  config.routing.top_k = config.routing.experts;  // so that each token goes everywhere
  const TrainOptions options = options_of(1, 4);
  for (const auto& [processes, spread] : {std::pair(2, 1), {2, 2}, {4, 2}})
    run_processes(processes, [&, all = processes, over = spread](const comm::Group& group) {
      const Trained t = train_steps(config, options, corpus, comm::Layout(group, over), 2);
      const ExchangeCount counted = count_exchange(
          config, {.batch = options.batch, .context = options.context, .spread = over}, all,
          options.accumulate / all);
      const double want = counted.gradients + counted.rows;
      ASSERT_TRUE(t.steps[1].exchange.has_value());
      EXPECT_NEAR(t.steps[1].exchange->sent, want, 0.02 * want);
      EXPECT_GE(t.steps[1].exchange->share, 0);
      EXPECT_LE(t.steps[1].exchange->share, 1);
      EXPECT_GE(t.steps[1].exchange->lag, 1);
    });
  EXPECT_FALSE(train_steps(config, options, corpus).steps[0].exchange.has_value());
}

TEST(Processes, AdaptersNeedAllExperts) {
  const Corpus corpus = tiny_corpus();
  run_processes(2, [&](const comm::Group& group) {
    TrainOptions options = options_of(1, 2);
    options.tune = Tune::lora;
    EXPECT_FAILS(train_steps(plain_config(), options, corpus, comm::Layout(group, 2)),
                 "leave expert_parallel out");
  });
}

// Seven windows in batches of two: the last round leaves processes with one window, or none.
TEST(Processes, AnEvaluationIsSharedToo) {
  const Corpus corpus = tiny_corpus();
  std::vector<int32_t> ids(32 * 7 + 20);
  corpus.fill(0, static_cast<int64_t>(ids.size()), ids.data());
  const Corpus held_out(ids);
  TrainOptions options = options_of(2, 12);
  options.eval_tokens = 0;
  auto model = fresh(noisy_config());
  Trainer alone(*model, options, corpus);
  const double want = alone.evaluate(held_out);
  for (const std::pair<int, int>& launch : {std::pair(2, 1), {3, 1}, {6, 1}, {3, 3}, {6, 2}})
    run_processes(launch.first, [&](const comm::Group& group) {
      const comm::Layout layout(group, launch.second);
      auto same = fresh(noisy_config(), 7, layout.experts());
      Trainer trainer(*same, options, corpus, nullptr, layout);
      EXPECT_NEAR(trainer.evaluate(held_out), want, 1e-12);
      const std::atomic<bool> stop = group.rank == 1, go = false;
      EXPECT_FALSE(trainer.evaluate(held_out, &stop).has_value())
          << "who is told to stop stops all";
      EXPECT_TRUE(trainer.evaluate(held_out, &go).has_value());
    });
}

TEST(Processes, WhatOneCannotDoStopsAll) {
  const Corpus corpus = tiny_corpus();
  const std::vector<std::string> failures = failures_of(3, [&](const comm::Group& group) {
    auto model = fresh(plain_config());
    Trainer trainer(*model, options_of(1, 3), corpus, nullptr, group);
    trainer.step();
    if (group.rank == 1) {
      param_named(*model, "layers.1.attn.q.weight")->value.as<float>()[5] =
          std::numeric_limits<float>::quiet_NaN();
      param_named(*model, "layers.1.attn.q.weight")->touched();
    }
    trainer.step();
  });
  EXPECT_NE(failures[0].find("process 1 is gone"), std::string::npos) << failures[0];
  EXPECT_NE(failures[1].find("layers.1.attn.q.weight"), std::string::npos) << failures[1];
  EXPECT_NE(failures[2].find("process 1 is gone"), std::string::npos) << failures[2];
}

TEST(Processes, MicroBatchesAreSharedEvenly) {
  const Corpus corpus = tiny_corpus();
  auto model = fresh(plain_config());
  EXPECT_FAILS(
      Trainer(*model, options_of(1, 3), corpus, nullptr, comm::Group{.rank = 0, .size = 2}),
      "accumulate is 3, which 2 processes cannot share evenly");
}

}  // namespace
}  // namespace moe::processes_test
