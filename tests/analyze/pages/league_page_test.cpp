// The page, the picture and the Markdown file of a league.
#include "analyze/pages/league_page.h"

#include <gtest/gtest.h>

#include "analyze/made_league.h"
#include "analyze/page_check.h"
#include "analyze/pictures/league_figures.h"
#include "analyze/texts/league_text.h"

namespace moe::test::league_page_test {
namespace {

League some_league() {
  League league = made_league({{"dense", {2.0, 2.05}},
                               {"gshard", {1.9, 1.92}},
                               {"switch", {1.95}},
                               {"expert-choice", {1.5, 1.51}},
                               {"mixtral", {1.8}}});
  league.match.text = "a<b>.txt & more";
  return league;
}

TEST(LeaguePage, IsWellFormedAndHoldsEveryArm) {
  const League league = some_league();
  const std::string page = league_page(league);
  EXPECT_EQ(fault_of(page), "");
  for (const LeagueRow& row : league.rows)
    EXPECT_NE(page.find("<th>" + row.arm.name + "</th>"), std::string::npos) << row.arm.name;
  EXPECT_EQ(page.find("a<b>.txt"), std::string::npos) << "what a user named is escaped";
  EXPECT_NE(page.find("reaches the loss of top-2"), std::string::npos);
  EXPECT_NE(page.find(">held<"), std::string::npos);
  EXPECT_EQ(page, league_page(some_league()));
}

TEST(LeaguePage, ThePictureStandsAlone) {
  const std::string svg = league_picture(some_league());
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find(">expert-choice<"), std::string::npos);
}

TEST(LeaguePage, SaysWhereAnArmEndsAfterATimeOfItsOwn) {
  std::vector<LeagueRun> runs = made_runs("dense", {2.0, 2.02});
  for (LeagueRun run : made_runs("switch", {1.9})) {
    run.steps = 40;
    runs.push_back(run);
  }
  LeagueArm timed = made_arm("switch");
  timed.time = 0.5;
  timed.steps = 40;
  timed.own = "width 64";
  const League league =
      make_league({.steps = 100, .step_tokens = 64}, {made_arm("dense"), timed}, runs, 1);
  EXPECT_EQ(*league.rows[0].run_times, 0.5);
  const std::string text = league_text(league);
  EXPECT_NE(text.find("In 0.50 of the dense twin's time switch ends 0.1100 below it; seeds differ"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("**switch**: not matched: 0.5 of the dense twin's time; it sets width 64"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("No arm here has a claim"), std::string::npos)
      << "a paper's claim is not judged by an arm of other work";
  EXPECT_EQ(fault_of(league_page(league)), "");
}

TEST(LeaguePage, SaysWhatIsMissing) {
  const League league = made_league(made_runs("dense", {2.0}), {"dense", "hash"});
  EXPECT_EQ(fault_of(league_page(league)), "");
  const std::string text = league_text(league);
  EXPECT_NE(text.find("**Not run yet: hash.**"), std::string::npos) << text;
  League none;
  EXPECT_EQ(fault_of(league_page(none)), "");
}

TEST(LeaguePage, CellsAreAsManyAsColumns) {
  LeagueRun broken = made_run("switch", 0.002, 1, 0);
  broken.diverged = "why";
  std::vector<LeagueRun> runs = made_runs("dense", {2.0});
  for (const LeagueRun& run : made_runs("mixtral", {1.0})) runs.push_back(run);
  runs.push_back(broken);
  for (const auto& cells : league_cells(made_league(runs, {"dense", "mixtral", "switch"})))
    EXPECT_EQ(cells.size(), league_columns().size());
}

TEST(LeaguePage, TheMarkdownHasTheFigures) {
  const std::string text = league_text(some_league());
  for (const char* part :
       {"| expert-choice | 2 of 8 × 64 |", "| 1.5050 (2, 0.0100) |", "| -0.5200 |",
        "Held-out loss after the last step", "arXiv 2202.09368", "| held |", "not testable here"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace moe::test::league_page_test
