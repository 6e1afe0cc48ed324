// What a league makes of its runs: the best rate, means over seeds, order, and when the twin's loss
// was reached.
#include "analyze/data/league.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analyze/made_league.h"

namespace moe::test::league_test {
namespace {

TEST(League, TakesTheBestRateAndTheMeanOfItsSeeds) {
  const League league = made_league({{"dense", {2.0, 2.1, 2.2}}, {"mixtral", {1.8, 1.9}}});
  ASSERT_EQ(league.rows.size(), 2u);
  const LeagueRow &first = league.rows[0], &twin = league.rows[1];
  EXPECT_EQ(first.arm.name, "mixtral");
  EXPECT_EQ(first.lr, 0.002);
  EXPECT_FALSE(first.at_end);
  EXPECT_EQ(first.rates.size(), 3u);
  EXPECT_EQ(first.losses, (std::vector<double>{1.8, 1.9}));
  EXPECT_NEAR(first.loss, 1.85, 1e-12);
  EXPECT_NEAR(first.range, 0.1, 1e-12);
  EXPECT_NEAR(twin.loss, 2.1, 1e-12);
  EXPECT_NEAR(*first.loss_change, -0.25, 1e-12);
  EXPECT_EQ(*first.over_twin, 1.25);
  EXPECT_EQ(league.runs, 9);
}

TEST(League, SaysThatTheBestRateIsAtTheEnd) {
  const League league =
      made_league({made_run("dense", 0.001, 1, 2.0), made_run("dense", 0.002, 1, 1.9)}, {"dense"});
  EXPECT_TRUE(league.rows[0].at_end);
  EXPECT_EQ(league.rows[0].lr, 0.002);
}

TEST(League, PutsArmsThatDivergedLastAndNamesThoseThatWait) {
  LeagueRun broken = made_run("switch", 0.002, 1, 0);
  broken.diverged = "step 3: the loss is not finite";
  std::vector<LeagueRun> runs = made_runs("dense", {2.0});
  runs.push_back(broken);
  const League league = made_league(runs, {"switch", "dense", "hash"});
  ASSERT_EQ(league.rows.size(), 2u);
  EXPECT_EQ(league.rows[0].arm.name, "dense");
  EXPECT_TRUE(league.rows[1].losses.empty());
  EXPECT_EQ(league.rows[1].diverged, 1);
  EXPECT_FALSE(league.rows[1].loss_change.has_value());
  EXPECT_EQ(league.waiting, std::vector<std::string>{"hash"});
  EXPECT_EQ(find_row(league, "switch"), nullptr);
}

TEST(League, PassesOverRunsOfOtherLengths) {
  std::vector<LeagueRun> runs = made_runs("dense", {2.0});
  runs.push_back(made_run("dense", 0.002, 2, 1.0));
  runs.back().steps = 50;
  EXPECT_EQ(made_league(runs, {"dense"}).rows[0].loss, 2.0);
}

TEST(League, ReadsWhenALossWasReachedAlongTheCurve) {
  const std::vector<std::pair<int64_t, double>> curve = {{25, 3.0}, {50, 2.0}, {100, 1.0}};
  EXPECT_NEAR(*share_to_reach(curve, 2.5), 0.375, 1e-12);
  EXPECT_NEAR(*share_to_reach(curve, 2.0), 0.5, 1e-12);
  EXPECT_NEAR(*share_to_reach(curve, 1.5), 0.75, 1e-12);
  EXPECT_NEAR(*share_to_reach(curve, 3.5), 0.25, 1e-12);
  EXPECT_FALSE(share_to_reach(curve, 0.9).has_value());
  EXPECT_FALSE(share_to_reach({}, 0.9).has_value());
}

TEST(League, TakesTheNoiseOfTheSeeds) {
  const League league =
      made_league({{"dense", {2.0, 2.1}}, {"mixtral", {1.8, 1.83}}, {"switch", {1.9}}});
  const auto noise = [&](const char* a, const char* b) {
    return *noise_of(league, *find_row(league, a), *find_row(league, b));
  };
  EXPECT_NEAR(noise("dense", "mixtral"), 0.1, 1e-12);
  EXPECT_NEAR(noise("mixtral", "switch"), 0.1, 1e-12);  // one seed: the league's widest
  const League single = made_league({{"dense", {2.0}}, {"switch", {1.9}}});
  EXPECT_FALSE(noise_of(single, single.rows[0], single.rows[1]).has_value());
}

TEST(League, ARunReadsBackAsItWas) {
  LeagueRun run = made_run("mixtral", 0.002, 3, 1.5);
  run.routing = LeagueRouting{0.25, 0.75, 2, 16, 1.5, 0.6};
  run.dropped = 0.125;
  const LeagueRun back = read_league_run(to_json(run), "test");
  EXPECT_EQ(to_json(back), to_json(run));
  EXPECT_EQ(back.routing->domain, 1.5);
  run.diverged = "why";
  run.routing.reset();
  const LeagueRun broken = read_league_run(to_json(run), "test");
  EXPECT_EQ(broken.diverged, "why");
  EXPECT_FALSE(broken.routing.has_value());
}

}  // namespace
}  // namespace moe::test::league_test
