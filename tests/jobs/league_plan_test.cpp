// How arms are matched to the dense twin, and which run of a league is next.
#include "jobs/league_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/cost.h"
#include "support/files.h"

namespace moe::test::league_plan_test {
namespace {

constexpr double kDiverged = std::numeric_limits<double>::infinity();

WantedModel shape(int64_t width = 512) {
  WantedModel m;
  m.architecture = "olmoe";
  m.dense_width = width;
  return m;
}

MatchedArm matched(std::string_view recipe, const WantedModel& model = shape()) {
  LeagueEntry entry;
  entry.wanted.routing.recipe = recipe;
  return match_arm(std::string(recipe), entry, model, 8);
}

TEST(LeaguePlan, EveryRecipeWorksAsMuchForATokenAndHoldsAsMuch) {
  const ModelConfig dense = make_config(matched("dense").wanted, 256, 64);
  const FlopCount twin = count_flops(dense, 64);
  EXPECT_EQ(dense.moe_layer_count(), 0);
  for (const Recipe& r : recipes()) {
    if (r.name == kCustom || r.name == "cmoe" || !r.has_router()) continue;
    SCOPED_TRACE(r.name);
    const ModelConfig c = make_config(matched(r.name).wanted, 256, 64);
    const FlopCount own = count_flops(c, 64);
    const double gate = c.shared_gate ? 2.0 * static_cast<double>(c.width * c.layers) : 0;
    EXPECT_EQ(own.experts + own.shared - gate, twin.dense_ffn);
    EXPECT_EQ(own.projections, twin.projections);
    EXPECT_EQ(c.routing.experts * c.expert_width + c.shared_experts * c.shared_width, 8 * 512);
  }
}

TEST(LeaguePlan, KeepsWhatARecipeIs) {
  const auto routing = [](std::string_view name) { return matched(name).wanted; };
  EXPECT_EQ(*routing("switch").routing.top_k, 1);
  EXPECT_EQ(*routing("switch").expert_width, 512);
  EXPECT_EQ(*routing("hash").expert_width, 512);
  EXPECT_EQ(*routing("gshard").routing.experts, 16);
  EXPECT_EQ(*routing("expert-choice").routing.top_k, 2);
  EXPECT_EQ(*routing("deepseek-moe").routing.top_k, 6);
  EXPECT_EQ(*routing("deepseek-moe").routing.experts, 62);
  EXPECT_EQ(*routing("deepseek-v3").routing.top_k, 7);  // 8 and a shared one are 9
  EXPECT_EQ(*routing("qwen2-moe").shared_width, 256);   // one of four widths
  EXPECT_EQ(*routing("qwen2-moe").routing.top_k, 4);
}

TEST(LeaguePlan, RefusesAnEntryOfOtherWork) {
  LeagueEntry entry;
  entry.wanted.routing.recipe = "mixtral";
  entry.wanted.expert_width = 512;
  try {
    match_arm("wide", entry, shape(), 8);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find("wide: 2 experts of width 512"), std::string::npos)
        << e.what();
  }
  entry.wanted.expert_width = 256;
  EXPECT_EQ(*match_arm("own", entry, shape(), 8).wanted.routing.experts, 16);
  entry.wanted.expert_width.reset();
  entry.wanted.routing.top_k = 3;
  EXPECT_THROW(match_arm("three", entry, shape(), 8), Error);
  EXPECT_EQ(*match_arm("three", entry, shape(384), 8).wanted.expert_width, 128);
}

// An entry in a file, as a user writes it.
LeagueEntry read_text(const std::string& json) {
  const TempFolder folder;
  put(folder / "wide.json", json);
  return read_entry(folder / "wide.json");
}

TEST(LeaguePlan, AnEntryWithATimeBringsItsOwnShapeAndTraining) {
  const MatchedArm dense = match_arm(
      "wide",
      read_text(R"({"time": 0.5, "recipe": "dense", "width": 192, "optimizer": "muon", "lr": 1})"),
      shape(), 8);
  EXPECT_EQ(dense.time, 0.5);
  EXPECT_EQ(dense.wanted.width, 192);
  EXPECT_EQ(dense.wanted.dense_width, 768);  // which goes with the width
  EXPECT_EQ(dense.wanted.architecture, "olmoe");
  EXPECT_EQ(own_settings(dense, shape()), "width 192, dense_width 768, lr 1.0, optimizer muon");
  TrainOptions league;
  league.batch = 5;
  const TrainOptions own = own_training(dense, league);
  EXPECT_EQ(own.optimizer, OptimizerKind::muon);
  EXPECT_EQ(own.batch, 5);

  const LeagueEntry mixtral = read_text(
      R"({"time": 1, "recipe": "mixtral", "experts": 32, "top_k": 4, "dense_width": 256})");
  EXPECT_EQ(match_arm("mine", mixtral, shape(), 8).wanted.expert_width, 64);
  LeagueEntry wider = mixtral;
  wider.wanted.expert_width = 512;  // other work than the twin's is its own affair
  EXPECT_EQ(match_arm("mine", wider, shape(), 8).wanted.expert_width, 512);
}

TEST(LeaguePlan, AnEntryMaySetNothingThatWouldMakeLossesUnequal) {
  for (const char* json :
       {R"({"time": 1, "recipe": "dense", "context": 64})",
        R"({"time": 1, "recipe": "dense", "seed": 3})",
        R"({"time": 1, "recipe": "dense", "steps": 9})", R"({"time": 0, "recipe": "dense"})",
        R"({"time": -1, "recipe": "dense"})", R"({"recipe": "dense", "optimizer": "muon"})"}) {
    SCOPED_TRACE(json);
    try {
      read_text(json);
      ADD_FAILURE() << "was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(e.what()).find("wide.json"), std::string::npos) << e.what();
    }
  }
}

const LeagueRules kRules = {.lr = 0.002, .rates = 3, .seeds = 3, .finalists = 1};

TEST(LeaguePlan, TriesRatesAroundTheMiddle) {
  EXPECT_EQ(next_rate(kRules, {}), 0.002);
  EXPECT_EQ(next_rate(kRules, {{0.002, 1}}), 0.001);
  EXPECT_EQ(next_rate(kRules, {{0.001, 2}, {0.002, 1}}), 0.004);
  EXPECT_FALSE(next_rate(kRules, {{0.001, 2}, {0.002, 1}, {0.004, 2}}).has_value());
}

TEST(LeaguePlan, TriesOneMoreWhereTheBestIsAtAnEnd) {
  EXPECT_EQ(next_rate(kRules, {{0.001, 3}, {0.002, 2}, {0.004, 1}}), 0.008);
  EXPECT_EQ(next_rate(kRules, {{0.001, 1}, {0.002, 2}, {0.004, 3}}), 0.0005);
  EXPECT_FALSE(next_rate(kRules, {{0.001, 3}, {0.002, 2}, {0.004, 1}, {0.008, 2}}).has_value());
  EXPECT_EQ(next_rate(kRules, {{0.001, 1}, {0.002, kDiverged}, {0.004, kDiverged}}), 0.0005);
  EXPECT_EQ(next_rate(kRules, {{0.001, kDiverged}, {0.002, kDiverged}, {0.004, kDiverged}}),
            0.0005);
}

TEST(LeaguePlan, AnArmMayHaveAMiddleOfItsOwn) {
  LeagueRules rules = kRules;
  rules.rates = 1;
  rules.seeds = 1;
  rules.middles["a"] = 0.5;
  const auto first = next_run(rules, {"a"}, {});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->lr, 0.5);
  EXPECT_EQ(planned_runs(rules, {"a"}, {{*first, 1}}), 1);
}

TEST(LeaguePlan, GivesUpAfterSoManyMore) {
  std::map<double, double> losses;
  int64_t tried = 0;
  for (double loss = 10; const auto lr = next_rate(kRules, losses); --loss) {
    losses[*lr] = *lr > 0.001 ? loss : 20;
    ++tried;
    ASSERT_LT(tried, 20);
  }
  EXPECT_EQ(tried, kRules.rates + kMostMoreRates);
  LeagueRules one = kRules;
  one.rates = 1;
  EXPECT_FALSE(next_rate(one, {{0.002, 1}}).has_value());
}

// Runs a league whose losses are `loss`, and lists its runs.
template <class Loss>
std::vector<LeagueKey> whole(const std::vector<std::string>& arms, Loss&& loss,
                             std::map<LeagueKey, double> done = {}) {
  std::vector<LeagueKey> runs;
  while (const auto key = next_run(kRules, arms, done)) {
    EXPECT_FALSE(done.contains(*key));
    done[*key] = loss(*key);
    runs.push_back(*key);
    if (runs.size() > 100) {
      ADD_FAILURE() << "it never ends";
      break;
    }
  }
  return runs;
}

double bowl(const LeagueKey& key) {
  const double away = std::log2(key.lr / 0.002);
  return (key.arm == "b" ? 1 : 2) + away * away;
}

TEST(LeaguePlan, GivesSeedsToTheTwinAndTheFinalists) {
  const std::vector<std::string> arms = {"dense", "a", "b"};
  const std::vector<LeagueKey> runs = whole(arms, bowl);
  ASSERT_EQ(runs.size(), 9u + 4u);
  EXPECT_EQ(runs[0], (LeagueKey{"dense", 0.002, 1}));
  EXPECT_EQ(runs[3].arm, "a");
  EXPECT_EQ(runs[9], (LeagueKey{"dense", 0.002, 2}));
  EXPECT_EQ(runs[10], (LeagueKey{"dense", 0.002, 3}));
  EXPECT_EQ(runs[11], (LeagueKey{"b", 0.002, 2}));
  EXPECT_EQ(planned_runs(kRules, arms, {}), 13);
}

TEST(LeaguePlan, GoesOnWithWhatIsMissing) {
  const std::vector<std::string> arms = {"dense", "a", "b"};
  const std::vector<LeagueKey> runs = whole(arms, bowl);
  std::map<LeagueKey, double> done;
  for (size_t i = 0; i < 5; ++i) done[runs[i]] = bowl(runs[i]);
  const std::vector<LeagueKey> rest = whole(arms, bowl, done);
  EXPECT_EQ(rest, std::vector<LeagueKey>(runs.begin() + 5, runs.end()));
}

TEST(LeaguePlan, KnowsWhichArmsHaveARunToCome) {
  using Names = std::vector<std::string>;
  const Names arms = {"dense", "a", "b"};
  const std::vector<LeagueKey> runs = whole(arms, bowl);
  std::map<LeagueKey, double> done;
  const auto left_after = [&](size_t count) {
    while (done.size() < count) done[runs[done.size()]] = bowl(runs[done.size()]);
    return arms_to_run(kRules, arms, done);
  };
  EXPECT_EQ(left_after(0), arms);
  EXPECT_EQ(left_after(5), (Names{"a", "b"}));
  EXPECT_EQ(left_after(9), (Names{"dense", "b"})) << "a is no finalist";
  EXPECT_EQ(left_after(11), Names{"b"});
  EXPECT_EQ(left_after(13), Names());
}

TEST(LeaguePlan, AnArmThatDivergesIsNoFinalist) {
  for (const LeagueKey& key :
       whole({"dense", "b"}, [](const LeagueKey& k) { return k.arm == "b" ? kDiverged : bowl(k); }))
    EXPECT_FALSE(key.arm == "b" && key.seed > 1);
}

TEST(LeaguePlan, RulesAreChecked) {
  validate(kRules);
  LeagueRules bad = kRules;
  bad.rates = 0;
  EXPECT_THROW(validate(bad), Error);
  bad = kRules;
  bad.lr = 0;
  EXPECT_THROW(validate(bad), Error);
}

}  // namespace
}  // namespace moe::test::league_plan_test
