// A league as a program runs it: stopped wherever that is, it ends as one that was not.
#include "jobs/league.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/json.h"
#include "support/files.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;

class LeagueJob : public ::testing::Test {
 protected:
  LeagueJob() {
    std::string text;
    for (int i = 0; i < 100; ++i)
      text += fmt::format("line {}: the router sends each token to two experts\n", i);
    put(folder_ / "text.txt", text);
    put(folder_ / "held.txt", text.substr(text.size() / 2));
  }
  // Two runs of 20 steps, evaluated after every second one.
  LeagueOptions league(const std::string& out) const {
    LeagueOptions o;
    o.setup.model.width = 16;
    o.setup.model.heads = 2;
    o.setup.model.layers = 1;
    o.setup.train.context = 16;
    o.setup.train.batch = 2;
    o.setup.train.threads = 1;
    o.setup.train.steps = 20;
    o.setup.train.lr = 0.01;
    o.data = {folder_ / "text.txt"};
    o.eval_data = {folder_ / "held.txt"};
    o.out = folder_ / out;
    o.recipes = {"mixtral"};
    o.times = 2;
    o.rates = 1;
    o.seeds = 1;
    return o;
  }
  // Of the runs that are done, without what the clock says.
  std::map<std::string, Json> results(const std::string& out) const {
    std::map<std::string, Json> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / out + "/runs")) {
      if (entry.path().filename() != "result.json") continue;
      Json run = read_json(entry.path().string());
      run.erase("seconds");
      found[fs::relative(entry.path(), folder_ / out).string()] = run;
    }
    return found;
  }
  TempFolder folder_;
};

// After a step that is evaluated, and after the last one.
TEST_F(LeagueJob, StoppedAfterAnyStepItEndsAlike) {
  EXPECT_TRUE(run_league(league("whole"), {}, {}).done);
  ASSERT_EQ(results("whole").size(), 2u);
  for (int64_t step : {10, 20}) {
    SCOPED_TRACE(step);
    const std::string out = fmt::format("stopped-{}", step);
    bool stopped = false;
    LeagueWatch watch;
    watch.watch.begin = [&] {
      return [&](int64_t done, int64_t, std::string_view) { stopped |= done == step; };
    };
    watch.watch.stopped = [&] { return stopped; };
    int calls = 1;
    for (; !run_league(league(out), {}, watch).done && calls < 10; ++calls) stopped = false;
    EXPECT_GT(calls, 1) << "it was not stopped, which proves nothing";
    EXPECT_EQ(results(out), results("whole"));
  }
}

// As a stop in the last evaluation once left one.
TEST_F(LeagueJob, ARunThatIsDoneWithoutItsLastEvaluationIsEvaluatedAnew) {
  LeagueOptions o = league("out");
  o.keep_models = true;
  run_league(o, {}, {});
  const auto before = results("out");
  const std::string run = folder_ / "out/runs/mixtral/lr0.01-seed1";
  fs::remove(run + "/result.json");
  std::istringstream in(slurp(run + "/metrics.jsonl"));
  std::string metrics;
  for (std::string text; std::getline(in, text);) {
    Json line = parse_json(text, "metrics.jsonl");
    if (line.at("step") == 20) line.erase("eval_ce");
    metrics += line.dump() + "\n";
  }
  put(run + "/metrics.jsonl", metrics);
  EXPECT_TRUE(run_league(o, {}, {}).done);
  EXPECT_EQ(results("out"), before);
}

}  // namespace
}  // namespace moe::test
