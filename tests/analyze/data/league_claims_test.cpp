// Claims of papers against a league's figures.
#include "analyze/data/league_claims.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analyze/made_league.h"
#include "moe/recipes/recipes.h"

namespace moe::test::league_claims_test {
namespace {

// Of the first claim of `arm` that is held against `other`.
Verdict verdict(const League& league, std::string_view arm, std::string_view other) {
  for (const Verdict& v : judge(league))
    if (v.claim->arm == arm && v.claim->other == other) return v;
  ADD_FAILURE() << "no claim of " << arm << " against " << other;
  return {};
}

TEST(LeagueClaims, NameRecipesAndTheirSources) {
  std::string_view last;
  for (const Claim& claim : league_claims()) {
    SCOPED_TRACE(claim.claim);
    EXPECT_EQ(find_recipe(claim.arm).name, claim.arm);
    EXPECT_FALSE(claim.source.empty());
    const bool tested = claim.test != ClaimTest::none;
    EXPECT_EQ(tested, !claim.other.empty());
    EXPECT_EQ(tested, claim.why_not.empty());
    EXPECT_EQ(claim.test == ClaimTest::steps, claim.share > 0);
    if (tested) EXPECT_EQ(find_recipe(claim.other).name, claim.other);
    last = claim.arm;
  }
}

TEST(LeagueClaims, ALowerLossMustBeLowerThanSeedsDiffer) {
  const auto held = [](double own) {
    const League league =
        made_league({{"gshard", {2.0, 2.05}}, {"deepseek-moe", {own, own + 0.02}}});
    return verdict(league, "deepseek-moe", "gshard").outcome;
  };
  EXPECT_EQ(held(1.9), Outcome::yes);
  EXPECT_EQ(held(2.2), Outcome::no);
  EXPECT_EQ(held(2.0), Outcome::undecided);
  EXPECT_EQ(held(2.06), Outcome::undecided);
}

TEST(LeagueClaims, NoWorseIsNotAboveAndIsOpenWithinWhatSeedsDo) {
  const auto held = [](double own) {
    return verdict(made_league({{"gshard", {2.0, 2.05}}, {"switch", {own, own}}}), "switch",
                   "gshard")
        .outcome;
  };
  EXPECT_EQ(held(1.5), Outcome::yes);
  EXPECT_EQ(held(2.06), Outcome::undecided);
  EXPECT_EQ(held(2.1), Outcome::no);
}

TEST(LeagueClaims, WithASingleSeedNothingIsDecided) {
  const Verdict v =
      verdict(made_league({{"gshard", {2.0}}, {"switch", {1.0}}}), "switch", "gshard");
  EXPECT_EQ(v.outcome, Outcome::undecided);
  EXPECT_NE(v.figure.find("one seed"), std::string::npos) << v.figure;
}

TEST(LeagueClaims, ALossIsReachedEarlierByTheCurve) {
  const auto of = [](double own) {
    return verdict(made_league({{"gshard", {2.0, 2.0}}, {"expert-choice", {own, own}}}),
                   "expert-choice", "gshard");
  };
  // The curve is 0.2 above its end at half of the steps.
  EXPECT_EQ(of(1.75).outcome, Outcome::yes);
  EXPECT_EQ(of(1.85).outcome, Outcome::no);
  EXPECT_NE(of(1.85).figure.find("0.625"), std::string::npos) << of(1.85).figure;
  EXPECT_EQ(of(2.1).outcome, Outcome::no);
  EXPECT_NE(of(2.1).figure.find("never"), std::string::npos);
}

TEST(LeagueClaims, AnEarlierEvaluationThanTheFirstIsUnknown) {
  const auto of = [](double first) {
    std::vector<LeagueRun> runs = made_runs("dense", {2.0, 2.0});
    for (LeagueRun& run : made_runs("olmoe", {1.0, 1.0})) {
      run.curve = {{40, first}, {100, 1.0}};
      runs.push_back(run);
    }
    return verdict(made_league(runs, {"dense", "olmoe"}), "olmoe", "dense").outcome;
  };
  EXPECT_EQ(of(1.9), Outcome::undecided);  // there at 0.4 of the steps, a third is claimed
  EXPECT_EQ(of(2.5), Outcome::no);
}

TEST(LeagueClaims, AMissingArmAndOneThatIsNotCausalAreNotTestable) {
  EXPECT_EQ(verdict(made_league({{"switch", {2.0, 2.1}}}), "switch", "gshard").outcome,
            Outcome::untestable);
  std::vector<LeagueRun> runs = made_runs("gshard", {2.0, 2.0});
  for (const LeagueRun& run : made_runs("switch", {1.0, 1.0})) runs.push_back(run);
  LeagueMatch match;
  match.steps = 100;
  std::vector<LeagueArm> arms = {made_arm("gshard"), made_arm("switch")};
  arms[1].not_causal = "it sees later tokens";
  const Verdict v = verdict(make_league(match, arms, runs, 1), "switch", "gshard");
  EXPECT_EQ(v.outcome, Outcome::untestable);
  EXPECT_NE(v.figure.find("not causal"), std::string::npos) << v.figure;
}

TEST(LeagueClaims, ABestRateAtTheEndDecidesNothing) {
  std::vector<LeagueRun> runs = made_runs("gshard", {2.0, 2.0});
  runs.push_back(made_run("switch", 0.002, 1, 1.0));
  runs.push_back(made_run("switch", 0.004, 1, 1.1));
  const Verdict v = verdict(made_league(runs, {"gshard", "switch"}), "switch", "gshard");
  EXPECT_EQ(v.outcome, Outcome::undecided);
  EXPECT_NE(v.figure.find("end of those tried"), std::string::npos) << v.figure;
}

TEST(LeagueClaims, StandInTheJson) {
  const Json json = to_json(made_league({{"gshard", {2.0, 2.05}}, {"switch", {1.5, 1.5}}}));
  ASSERT_EQ(json.at("rows").size(), 2u);
  EXPECT_EQ(json.at("rows")[0].at("arm"), "switch");
  EXPECT_EQ(json.at("rows")[0].at("loss"), 1.5);
  bool found = false;
  for (const Json& claim : json.at("claims"))
    if (claim.at("arm") == "switch") {
      found = true;
      EXPECT_EQ(claim.at("verdict"), "held");
      EXPECT_EQ(claim.at("against"), "gshard");
    }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace moe::test::league_claims_test
