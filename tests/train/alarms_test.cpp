// A made-up run for each kind of alarm, healthy but for the one figure that goes wrong; and the
// healthy run itself, which must be silent.
#include "train/alarms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/rng.h"
#include "support/tiny_model.h"
#include "train/alarm_advice.h"

namespace moe::alarms_test {
namespace {

using namespace test;

constexpr int64_t kWarmup = 20;
constexpr int64_t kSettled = kWarmup + 50;

ModelConfig config_of(const std::string& recipe, int64_t experts, int64_t top_k) {
  ModelConfig c = plain_config();
  c.layers = 2;
  c.routing = default_options(find_recipe(recipe), experts, top_k, 2);
  return c;
}

TrainOptions options_of(int64_t steps = 1000) {
  TrainOptions o = tiny_options();
  o.steps = steps;
  o.lr = 1e-3;
  o.warmup = kWarmup;
  return resolved(o);
}

// Between -1 and 1.
double noise(int64_t step, uint64_t salt) {
  return 2 *
             static_cast<double>(
                 uniform_index(RngKey::from_seed(salt), static_cast<uint64_t>(step), 10001)) /
             10000 -
         1;
}

// A run as it should be: the loss falls from 5.5 to 1.5 with noise, the load wanders by a third
// around an even one.
StepResult healthy(int64_t step, const ModelConfig& c) {
  StepResult r;
  r.step = step;
  r.predicted = 512;
  r.ce = 1.5 + 4 * std::exp(-static_cast<double>(step) / 100) + 0.15 * noise(step, 1);
  r.z = 4 + 0.3 * noise(step, 2);
  r.grad_norm = 0.6 + 0.2 * noise(step, 3);
  r.lr = 1e-3;
  const auto experts = static_cast<size_t>(c.routing.experts);
  for (int64_t layer : {0, 1}) {
    LayerLoad load{layer, std::vector<double>(experts), 0, 0};
    double sum = 0;
    for (size_t e = 0; e < experts; ++e)
      sum += load.load[e] = 1 + 0.33 * noise(step, 10 + 100 * static_cast<uint64_t>(layer) + e);
    for (double& x : load.load) x /= sum;
    r.layers.push_back(load);
  }
  return r;
}

// Loads of a layer: `share` of all for each of the first `few` experts, the rest even.
void give(LayerLoad& layer, int64_t few, double share) {
  const auto experts = std::ssize(layer.load);
  for (int64_t e = 0; e < experts; ++e)
    layer.load[static_cast<size_t>(e)] =
        e < few ? share
                : (1 - share * static_cast<double>(few)) / static_cast<double>(experts - few);
}

using Spoil = std::function<void(StepResult&)>;

std::vector<Alarm> watch(const ModelConfig& c, const TrainOptions& o, const Spoil& spoil) {
  Watcher watcher(c, o);
  std::vector<Alarm> all;
  for (int64_t step = 1; step <= o.steps; ++step) {
    StepResult r = healthy(step, c);
    spoil(r);
    for (Alarm& alarm : watcher.feed(r)) all.push_back(std::move(alarm));
  }
  return all;
}

Spoil between(int64_t first, int64_t last, const Spoil& spoil) {
  return [=](StepResult& r) {
    if (r.step >= first && r.step <= last) spoil(r);
  };
}

std::string told(const std::vector<Alarm>& alarms) {
  std::string text;
  for (const Alarm& a : alarms)
    text += fmt::format("{} {} {}: {}\n", a.step, name_of(a.kind), a.recovered ? "over" : "alarm",
                        a.text);
  return text;
}

// One alarm of this kind and its end, nothing else.
void expect_once(const std::vector<Alarm>& alarms, AlarmKind kind, int64_t from, int64_t to,
                 int64_t over_by, const std::string& part) {
  ASSERT_EQ(alarms.size(), 2u) << told(alarms);
  for (const Alarm& a : alarms) EXPECT_EQ(a.kind, kind) << told(alarms);
  EXPECT_FALSE(alarms[0].recovered);
  EXPECT_GE(alarms[0].step, from) << told(alarms);
  EXPECT_LE(alarms[0].step, to) << told(alarms);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, alarms[0].text);
  EXPECT_TRUE(alarms[1].recovered);
  EXPECT_GT(alarms[1].step, alarms[0].step);
  EXPECT_LE(alarms[1].step, over_by) << told(alarms);
}

TEST(Alarms, AHealthyRunIsSilentWhateverTheRecipe) {
  for (const auto& [recipe, experts, top_k] :
       std::vector<std::tuple<std::string, int64_t, int64_t>>{{"switch", 8, 1},
                                                              {"olmoe", 64, 8},
                                                              {"olmoe", 8, 2},
                                                              {"mixtral", 4, 2},
                                                              {"deepseek-v3", 16, 4},
                                                              {"expert-choice", 8, 2},
                                                              {"hash", 8, 1},
                                                              {"shazeer", 4, 2}}) {
    const std::vector<Alarm> alarms =
        watch(config_of(recipe, experts, top_k), options_of(2000), [](StepResult&) {});
    EXPECT_TRUE(alarms.empty()) << recipe << "\n" << told(alarms);
  }
  ModelConfig dense = plain_config();
  dense.routing = {};
  EXPECT_TRUE(watch(dense, options_of(), [](StepResult& r) { r.layers.clear(); }).empty());
}

TEST(Alarms, ARouterThatCollapses) {
  const auto top1 = watch(config_of("switch", 8, 1), options_of(),
                          between(300, 600, [](StepResult& r) { give(r.layers[1], 1, 0.91); }));
  expect_once(top1, AlarmKind::collapsed_router, 330, 370, 650, "layer 1 sends ");
  EXPECT_EQ(top1[0].layer, 1);
  EXPECT_EQ(top1[0].experts, std::vector<int64_t>{0});
  EXPECT_NE(top1[0].text.find("expert 0 (even would be 12.5%)"), std::string::npos) << top1[0].text;
  // Eight of 64 take all: each has its full eighth, eight times an even share.
  expect_once(watch(config_of("olmoe", 64, 8), options_of(),
                    between(300, 600, [](StepResult& r) { give(r.layers[0], 8, 0.12); })),
              AlarmKind::collapsed_router, 330, 370, 650, "experts 0, 1, 2, 3, 4, 5, 6 and 7");
}

TEST(Alarms, WhatIsACollapseDependsOnTheRecipe) {
  const Spoil half = between(300, 600, [](StepResult& r) { give(r.layers[1], 2, 0.49); });
  EXPECT_EQ(watch(config_of("olmoe", 8, 2), options_of(), half).front().kind,
            AlarmKind::collapsed_router);
  EXPECT_TRUE(watch(config_of("olmoe", 8, 6), options_of(),
                    [](StepResult& r) { give(r.layers[0], 6, 1.0 / 6.2); })
                  .empty())
      << "6 of 8 are most of them anyway";
  EXPECT_TRUE(
      watch(config_of("hash", 8, 1), options_of(), [](StepResult& r) { give(r.layers[0], 1, 1); })
          .empty())
      << "no router decides";
}

TEST(Alarms, ARouterIsNotJudgedBeforeItHasSettled) {
  EXPECT_TRUE(watch(config_of("switch", 8, 1), options_of(),
                    between(1, kSettled, [](StepResult& r) { give(r.layers[1], 1, 1); }))
                  .empty());
  const auto stays = watch(config_of("switch", 8, 1), options_of(),
                           [](StepResult& r) { give(r.layers[1], 1, 1); });
  ASSERT_EQ(stays.size(), 1u) << "once, as it never recovers\n" << told(stays);
  EXPECT_EQ(stays[0].step, kSettled + 20);
}

// All tokens of a step go to one expert, another one in the next: over many steps no expert stands
// out.
TEST(Alarms, ARouterThatCollapsesOntoAnotherExpertEachStep) {
  const auto alarms =
      watch(config_of("switch", 8, 1), options_of(), between(300, 600, [](StepResult& r) {
              give(r.layers[1], 1, 0.95);
              std::swap(r.layers[1].load[0], r.layers[1].load[static_cast<size_t>(r.step / 5 % 8)]);
            }));
  expect_once(alarms, AlarmKind::collapsed_router, 330, 370, 650,
              "1 expert at a time, not always the same");
}

// A run of a hundred steps is over before a single expert would be called dead, but not where most
// are.
TEST(Alarms, ManyDeadExpertsAreSaidSoon) {
  const Spoil few = [](StepResult& r) {
    for (size_t e = 0; e < 6; ++e) r.layers[1].load[e] = 0;
    r.layers[1].load[6] = r.layers[1].load[7] = 0.5;
  };
  TrainOptions o = options_of(100);
  o.warmup = 10;
  const auto dead = watch(config_of("switch", 8, 1), o, few);
  ASSERT_EQ(dead.size(), 1u) << told(dead);
  EXPECT_EQ(dead[0].kind, AlarmKind::dead_expert);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "6 of its 8 experts", dead[0].text);
  EXPECT_LE(dead[0].step, 80);
  EXPECT_TRUE(
      watch(config_of("switch", 8, 1), o, [](StepResult& r) { r.layers[1].load[3] = 0; }).empty())
      << "one may come back";
  EXPECT_TRUE(watch(config_of("switch", 8, 1), o,
                    [&](StepResult& r) {
                      if (r.step < 70) few(r);
                    })
                  .empty())
      << "they came back";
}

TEST(Alarms, ARouterThatGoesOneSided) {
  const auto alarms = watch(config_of("olmoe", 8, 2), options_of(),
                            between(300, 600, [](StepResult& r) { give(r.layers[0], 1, 0.495); }));
  expect_once(alarms, AlarmKind::one_sided_router, 330, 380, 650, "to expert 0");
}

TEST(Alarms, ADeadExpertAndOneThatIsOnlyRare) {
  const auto starve = [](double share) {
    return between(300, 600, [share](StepResult& r) {
      for (double& x : r.layers[1].load) x *= (1 - share / 8) / (1 - r.layers[1].load[3]);
      r.layers[1].load[3] = share / 8;
    });
  };
  expect_once(watch(config_of("olmoe", 8, 2), options_of(), starve(0.002)), AlarmKind::dead_expert,
              420, 480, 660, "expert 3 is dead");
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(), starve(0.05)).empty());
}

TEST(Alarms, ManyDeadExpertsAreNotAnAlarmEach) {
  const auto alarms = watch(config_of("olmoe", 64, 8), options_of(), [](StepResult& r) {
    // one after the other
    const auto dead = static_cast<size_t>(std::clamp<int64_t>((r.step - 200) / 20, 0, 20));
    for (size_t e = 0; e < dead; ++e) r.layers[0].load[e] = 0;
  });
  EXPECT_EQ(alarms.size(), 5u) << "of 1, 2, 4, 8 and 16\n" << told(alarms);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "4 of its 64 experts", alarms[2].text);
}

TEST(Alarms, ARisingZLoss) {
  const auto rise = [](double to) {
    return between(300, 600, [to](StepResult& r) {
      r.z = std::min(to, 4 + static_cast<double>(r.step - 300) / 4);
    });
  };
  expect_once(watch(config_of("olmoe", 8, 2), options_of(), rise(30)), AlarmKind::rising_z, 330,
              390, 650, "logits are growing");
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(), rise(10)).empty());
  EXPECT_TRUE(watch(config_of("olmoe", 64, 8), options_of(), rise(30)).empty())
      << "(ln 64)^2 is 17: 30 is no large logit there";
}

TEST(Alarms, ARisingDropRate) {
  const auto drops = [](double to) {
    return [to](StepResult& r) { r.dropped = r.step >= 300 && r.step <= 600 ? to : 0.3; };
  };
  expect_once(watch(config_of("switch", 8, 1), options_of(), drops(0.5)), AlarmKind::rising_drops,
              320, 350, 650, "50% of the choices find their expert full");
  EXPECT_TRUE(watch(config_of("switch", 8, 1), options_of(), drops(0.4)).empty());
}

// A router that was bad from its first step on has no better past to be held against.
TEST(Alarms, ADropRateThatWasAlwaysHigh) {
  const auto drops = [](double share) { return [share](StepResult& r) { r.dropped = share; }; };
  const auto alarms = watch(config_of("switch", 8, 1), options_of(), drops(0.72));
  ASSERT_EQ(alarms.size(), 1u) << told(alarms);
  EXPECT_EQ(alarms[0].kind, AlarmKind::rising_drops);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "72% of the choices find their expert full",
                      alarms[0].text);
  EXPECT_TRUE(watch(config_of("switch", 8, 1), options_of(), drops(0.5)).empty());
  // ST-MoE has room for a choice and a quarter of two: three eighths are dropped at best.
  EXPECT_TRUE(watch(config_of("st-moe", 8, 2), options_of(), drops(0.7)).empty());
  EXPECT_EQ(watch(config_of("st-moe", 8, 2), options_of(), drops(0.8)).size(), 1u);
  // Where there is room for half of the choices only, a half is dropped at best.
  ModelConfig narrow = config_of("switch", 8, 1);
  narrow.routing.capacity_factor = 0.5f;
  EXPECT_TRUE(watch(narrow, options_of(), drops(0.72)).empty());
}

TEST(Alarms, ALossSpikeAndASingleBadBatch) {
  const auto jump = [](int64_t steps) {
    return between(500, 499 + steps, [](StepResult& r) { r.ce += 1; });
  };
  expect_once(watch(config_of("olmoe", 8, 2), options_of(), jump(12)), AlarmKind::loss_spike, 502,
              502, 520, "the loss jumped to");
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(), jump(2)).empty());
}

// All of their text a prompt: their loss of 0 and what the auxiliary losses alone give as a
// gradient are neither a best level to fall from nor what is usual.
TEST(Alarms, StepsWithoutATargetSayNothingOfTheLoss) {
  const auto spoil = [](StepResult& r) {
    if (r.step % 40 < 30) return;
    r.predicted = 0;
    r.ce = 0;
    r.grad_norm = 1e-4;
  };
  const ModelConfig c = config_of("olmoe", 16, 4);
  EXPECT_TRUE(watch(c, options_of(), spoil).empty());
}

TEST(Alarms, ALossThatDiverges) {
  const auto alarms =
      watch(config_of("olmoe", 8, 2), options_of(), between(500, 700, [](StepResult& r) {
              r.ce *= 1 + static_cast<double>(r.step - 500) / 500;
            }));
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].kind, AlarmKind::diverging_loss) << told(alarms);
  EXPECT_EQ(std::count_if(
                alarms.begin(), alarms.end(),
                [](const Alarm& a) { return a.kind == AlarmKind::diverging_loss && !a.recovered; }),
            1)
      << told(alarms);
  EXPECT_TRUE(alarms.back().recovered);
}

TEST(Alarms, ALossThatStandsStill) {
  const auto still = [](double at) {
    return [at](StepResult& r) { r.ce = at + 0.1 * noise(r.step, 5); };
  };
  const auto alarms = watch(config_of("olmoe", 8, 2), options_of(), still(5.4));
  ASSERT_EQ(alarms.size(), 1u) << told(alarms);
  EXPECT_EQ(alarms[0].kind, AlarmKind::stalled_loss);
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(), still(1.4)).empty())
      << "low enough to be the end of learning";
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(),
                    [&](StepResult& r) {
                      still(5.4)(r);
                      r.lr = 1e-4;
                    })
                  .empty())
      << "nothing is expected at the end of the schedule";
}

TEST(Alarms, AGradientThatExplodes) {
  const auto grow = [](int64_t steps) {
    return between(500, 499 + steps, [](StepResult& r) { r.grad_norm *= 12; });
  };
  expect_once(watch(config_of("olmoe", 8, 2), options_of(), grow(10)),
              AlarmKind::exploding_gradient, 502, 502, 520, "times its usual");
  EXPECT_TRUE(watch(config_of("olmoe", 8, 2), options_of(), grow(2)).empty());
}

// Advice must name what the run's recipe has.
TEST(Alarms, AdviceFitsTheRecipe) {
  const auto advise = [](const ModelConfig& c, const TrainOptions& o, AlarmKind kind,
                         int64_t step = 50) {
    const RoutingSpec spec = train_spec(c.routing);
    return spelled(advice(kind, {c, o, &spec, step}));
  };
  ModelConfig olmoe = config_of("olmoe", 8, 2);
  EXPECT_EQ(advise(olmoe, options_of(), AlarmKind::collapsed_router),
            "a higher balance (now 0.01), a lower lr (now 0.001) or a longer warmup (now 20)");
  olmoe.routing.coef.balance = 0;
  EXPECT_EQ(advise(olmoe, options_of(), AlarmKind::collapsed_router, 900),
            "balance 0.01 or a lower lr (now 0.001)")
      << "the warm-up is long over";
  EXPECT_EQ(
      advise(config_of("shazeer", 8, 2), options_of(), AlarmKind::dead_expert).find("balance"),
      std::string::npos);
  EXPECT_EQ(advise(config_of("shazeer", 8, 2), options_of(), AlarmKind::dead_expert)
                .find("a higher importance_loss (now 0.2)"),
            0u);
  ModelConfig quiet = config_of("nanomoe", 8, 2);
  quiet.routing.noise = false;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "leaving out no_router_noise",
                      advise(quiet, options_of(), AlarmKind::dead_expert));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a larger capacity_factor (now 1.25)",
                      advise(quiet, options_of(), AlarmKind::rising_drops));
  EXPECT_EQ(advise(olmoe, options_of(), AlarmKind::rising_drops).find("capacity"),
            std::string::npos);
  ModelConfig biased = config_of("custom", 8, 2);
  biased.routing.stages =
      R"({"base": "deepseek-v3", "select": {"type": "top_k", "bias": {"rate": 0.002}}, "losses": {"balance": false}})";
  EXPECT_EQ(advise(biased, options_of(), AlarmKind::one_sided_router)
                .find("a higher rate of the selection bias in stages (now 0.002)"),
            0u);
  TrainOptions open = options_of();
  open.clip = 0;
  open.shuffle = Shuffle::none;
  EXPECT_EQ(advise(olmoe, open, AlarmKind::loss_spike, 900),
            "shuffle epoch, if the text changes its kind here, a lower lr (now 0.001) or clip 1");
}

TEST(Alarms, TheTableHasARowForEachKind) {
  for (size_t i = 0; i < alarm_table().size(); ++i)
    EXPECT_EQ(alarm_table()[i].kind, static_cast<AlarmKind>(i));
  EXPECT_EQ(name_of(AlarmKind::exploding_gradient), "exploding-gradient");
}

}  // namespace
}  // namespace moe::alarms_test
