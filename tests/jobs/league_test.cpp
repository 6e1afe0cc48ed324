// A league as a program runs it: stopped wherever that is, it ends as one that was not; and what it
// cannot run it refuses before anything is run.
#include "jobs/league.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/json.h"
#include "core/memory.h"
#include "support/files.h"
#include "train/memory.h"

namespace moe::test::league_test {
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

// As a stop in the last evaluation leaves one.
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

// Of an arm that comes last, and whose runs would too.
TEST_F(LeagueJob, AnArmThatDoesNotFitIsRefusedBeforeAnyIsTimed) {
  put(folder_ / "wide.json",
      R"({"time": 1, "recipe": "dense", "width": 1024, "dense_width": 4096, "heads": 2})");
  LeagueOptions o = league("out");
  o.entries = {folder_ / "wide.json"};
  o.memory.all = taken_memory() + (int64_t{100} << 20);
  bool begun = false;
  LeagueWatch watch;
  watch.watch.begin = [&] {
    begun = true;
    return [](int64_t, int64_t, std::string_view) {};
  };
  for (const double minutes : {0.0, 0.01}) {
    SCOPED_TRACE(minutes);
    o.setup.train.minutes = minutes;
    const std::string said = message_of([&] { run_league(o, {}, watch); });
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "wide: this needs ", said);
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "are left of memory", said);
    EXPECT_FALSE(begun);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
}

// A clock has two models, and what is done needs none.
TEST_F(LeagueJob, WhatAClockHoldsIsCountedAndWhatIsDoneIsNot) {
  LeagueOptions o = league("out");
  o.recipes = {"dense"};
  o.setup.model.width = 256;
  o.setup.train.steps = 2;
  const ModelConfig twin = [&] {
    WantedModel m = o.setup.model;
    m.architecture = "olmoe";
    m.routing.recipe = "dense";
    m.dense_width = 4 * m.width;
    return make_config(m, 256, o.setup.train.context);
  }();
  const int64_t one = training_need(twin, resolved(o.setup.train), Held::nothing).total();
  o.memory.all = taken_memory() + one + one / 2;
  const std::string said = message_of([&] { run_league(o, {}, {}); });
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "dense: this needs ", said);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "the dense twin that is timed beside it ", said);
  o.memory.all.reset();
  EXPECT_TRUE(run_league(o, {}, {}).done);
  o.memory.all = 1;
  EXPECT_TRUE(run_league(o, {}, {}).done);
}

// They move a model that answers already, which no arm is: one way to hold text out as the other.
TEST_F(LeagueJob, PreferencePairsAreRefusedWithWhatALeagueReads) {
  std::string pairs;
  for (int i = 0; i < 100; ++i)
    pairs += fmt::format(R"({{"prompt": "line {}:", "chosen": " yes", "rejected": " no"}})"
                         "\n",
                         i);
  put(folder_ / "pairs.jsonl", pairs);
  LeagueOptions o = league("out");
  o.data = {folder_ / "pairs.jsonl"};
  for (const double hold_out : {0.0, 0.5}) {
    SCOPED_TRACE(hold_out);
    o.setup.train.hold_out = hold_out;
    if (hold_out > 0) o.eval_data.clear();
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "pairs.jsonl holds preference pairs, which only ",
                        message_of([&] { run_league(o, {}, {}); }));
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
}

}  // namespace
}  // namespace moe::test::league_test
