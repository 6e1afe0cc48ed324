// A league as a user runs it: from the text to the page, stopped and gone on with, entered by a
// recipe of his own, and refused by name where its rules would change.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::league_test {
namespace {

namespace fs = std::filesystem;

class LeagueCommand : public ::testing::Test {
 protected:
  LeagueCommand() {
    put(folder_ / "text.txt", small_text(300));
    put(folder_ / "held.txt", small_text(40));
    put(folder_ / "mine.json",
        R"({"stages": {"score": "sigmoid", "select": {"type": "top_k", "bias": true}}, "top_k": 2})");
  }
  std::vector<std::string> start(const std::vector<std::string>& more) const {
    std::vector<std::string> words = command_line(
        "league --width 16 --heads 2 --layers 1 --context 16 --batch 2 --threads 1 --steps 6 --lr "
        "0.01 --times 2",
        {"--data", folder_ / "text.txt", "--eval-data", folder_ / "held.txt", "--out",
         folder_ / "out"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> go_on(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"league", "--out", folder_ / "out"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Of the runs that are done, without what the clock says.
  std::map<std::string, Json> results() const {
    std::map<std::string, Json> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out/runs")) {
      if (entry.path().filename() != "result.json") continue;
      Json run = read_json(entry.path().string());
      run.erase("seconds");
      out[fs::relative(entry.path(), folder_ / "out").string()] = run;
    }
    return out;
  }
  TempFolder folder_;
};

TEST_F(LeagueCommand, WritesAPageATableAndJson) {
  const CommandResult r =
      ok(start({"--recipes", "switch", "mixtral", "--entries", folder_ / "mine.json", "--seeds",
                "2", "--finalists", "1", "--json"}));
  const Json league = parse_json(r.out, "moe league");
  EXPECT_EQ(league.at("done"), true);
  ASSERT_EQ(league.at("rows").size(), 4u);
  std::set<std::string> arms;
  for (const Json& row : league.at("rows")) {
    arms.insert(row.at("arm").get<std::string>());
    EXPECT_GE(row.at("rates").size(), 3u);
    EXPECT_GT(row.at("loss").get<double>(), 0);
    EXPECT_GT(row.at("over_twin").get<double>(), 0);
    EXPECT_GE(row.at("curve").size(), 6u);
    EXPECT_EQ(row.at("routing").is_null(), row.at("arm") == "dense");
    const int64_t active =
        row.at("top_k").get<int64_t>() * row.at("expert_width").get<int64_t>() +
        row.at("shared_experts").get<int64_t>() * row.at("shared_width").get<int64_t>();
    EXPECT_EQ(active, 64) << row.at("arm");
  }
  EXPECT_EQ(arms, (std::set<std::string>{"dense", "mine", "mixtral", "switch"}));
  EXPECT_EQ(parse_json(slurp(folder_ / "out/league.json"), "league.json"), league);
  has(slurp(folder_ / "out/league.html"), "<th>mine</th>");
  has(slurp(folder_ / "out/league.md"), "| mine | 2 of 4 × 32 |");
  has(slurp(folder_ / "out/league.svg"), ">switch<");
  has(r.err, "run 1 of at least 14: dense at 0.01, seed 1");
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "out/runs"))
    if (entry.is_regular_file())
      EXPECT_TRUE(entry.path().filename() == "result.json" ||
                  entry.path().filename() == "clock.json" ||
                  entry.path().filename() == "metrics.jsonl")
          << entry.path();
}

TEST_F(LeagueCommand, GoesOnWhereItWasStoppedAndEndsAlike) {
  const std::vector<std::string> more = {"--recipes", "mixtral", "--seeds", "1"};
  const std::string first = folder_ / "out/runs/dense/lr0.01-seed1/result.json";
  const CommandResult stopped = moe_command(start(more), [&](pid_t child) {
    for (int wait = 0; wait < 20000 && !fs::exists(first); ++wait) usleep(1000);
    kill(child, SIGINT);
  });
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  has(stopped.err, "moe league --out " + folder_ / "out");
  has(slurp(folder_ / "out/league.md"), "The league is not done");
  const auto when = fs::last_write_time(first);
  const CommandResult rest = ok(go_on());
  EXPECT_EQ(rest.err.find("dense at 0.01, seed 1"), std::string::npos) << rest.err;
  EXPECT_EQ(fs::last_write_time(first), when) << "a finished run is not run again";
  const auto parts = results();
  EXPECT_EQ(ok(go_on()).err.find("run "), std::string::npos);
  fs::remove_all(folder_ / "out");
  ok(start(more));
  EXPECT_EQ(results(), parts);
}

TEST_F(LeagueCommand, ChangedRulesAreRefusedByNameAndArmsMayJoin) {
  const std::vector<std::string> more = {"--recipes", "mixtral", "--seeds", "1", "--rates", "1"};
  std::vector<std::string> words = start(more);
  std::replace(words.begin(), words.end(), folder_ / "text.txt",
               fs::relative(folder_ / "text.txt").string());
  ok(words);
  has(slurp(folder_ / "out/match.json"), '"' + folder_ / "text.txt" + '"');
  expect_refused(go_on({"--width", "32"}), 2, {"--width was 16 and is now 32"});
  expect_refused(go_on({"--steps", "7"}), 2, {"--steps was 6 and is now 7"});
  expect_refused(go_on({"--lr", "0.02"}), 2, {"--lr was 0.01 and is now 0.02"});
  put(folder_ / "other.txt", small_text(50));
  expect_refused(go_on({"--data", folder_ / "other.txt"}), 2, {"the text of --data is another"});
  ok(go_on({"--recipes", "hash", "--entries", folder_ / "mine.json"}));
  EXPECT_EQ(results().size(), 4u);
  put(folder_ / "stages.json", R"({"score": "sigmoid"})");
  ok(go_on({"--entries", folder_ / "stages.json"}));
  EXPECT_EQ(results().size(), 5u);
  put(folder_ / "mine.json", R"({"recipe": "mixtral", "balance": 0.5})");
  expect_refused(go_on({"--entries", folder_ / "mine.json"}), 2,
                 {"an arm 'mine' already, whose --balance was not given and is now 0.5"});
}

TEST_F(LeagueCommand, RefusesWhatIsMissingOrUnequal) {
  expect_refused(command_line("league"), 2, {"--out is missing"});
  expect_refused(command_line("league", {"--out", folder_ / "a"}), 2, {"--data is missing"});
  expect_refused(command_line("league", {"--out", folder_ / "b", "--data", folder_ / "text.txt"}),
                 2, {"--eval-data", "--hold-out"});
  put(folder_ / "wide.json", R"({"recipe": "mixtral", "expert_width": 64})");
  expect_refused(start({"--entries", folder_ / "wide.json"}), 2,
                 {"wide: 2 experts of width 64", "64 work in every other arm"});
  put(folder_ / "bad.json", R"({"recipe": "mixtral", "layers": 3})");
  expect_refused(start({"--entries", folder_ / "bad.json"}), 2, {"bad.json", "layers"});
  expect_refused(start({"--minutes", "1"}), 2, {"--minutes", "--steps"});
}

TEST_F(LeagueCommand, AnEntryMayTrainForAShareOfTheTwinsTime) {
  put(folder_ / "half.json",
      R"({"time": 0.5, "recipe": "mixtral", "experts": 4, "width": 8, "lr": 0.02})");
  const std::vector<std::string> more = {
      "--entries", folder_ / "half.json", "--seeds", "1", "--rates", "1", "--json"};
  const Json league = parse_json(ok(start(more)).out, "moe league");
  ASSERT_EQ(league.at("rows").size(), 2u);
  for (const Json& row : league.at("rows")) {
    const bool half = row.at("arm") == "half";
    const double clocked = row.at("over_twin").get<double>();
    EXPECT_EQ(row.at("steps"), half ? std::max<int64_t>(2, std::llround(6 * 0.5 / clocked)) : 6);
    EXPECT_EQ(row.at("rates").at(0).at("lr"), half ? 0.02 : 0.01);
    if (half) EXPECT_EQ(row.at("sets"), "width 8, dense_width 32, lr 0.02");
  }
  has(slurp(folder_ / "out/league.md"), "not matched: 0.5 of the dense twin's time; it sets width");
  has(slurp(folder_ / "out/league.md"), "of the dense twin's time half ends");
  const auto before = results();
  EXPECT_EQ(ok(go_on()).err.find("run "), std::string::npos) << "all is known again";
  EXPECT_EQ(results(), before);
  put(folder_ / "half.json", R"({"time": 0.75, "recipe": "mixtral", "experts": 4, "width": 8})");
  expect_refused(go_on({"--entries", folder_ / "half.json"}), 2, {"an arm 'half' already"});
}

TEST_F(LeagueCommand, MinutesAreThoseOfTheTwinAndStepsTheSameForAll) {
  std::vector<std::string> words = command_line(
      "league --width 16 --heads 2 --layers 1 --context 16 --batch 2 --threads 1 --minutes 0.02 "
      "--recipes mixtral --rates 1 --seeds 1 --tokenizer bpe:300 --json",
      {"--data", folder_ / "text.txt", "--hold-out", "0.5", "--out", folder_ / "out"});
  fs::create_directories(folder_ / "texts");
  for (int i = 0; i < 8; ++i)
    put(folder_ / "texts/" + std::to_string(i) + ".txt", small_text(60 + i));
  *std::find(words.begin(), words.end(), folder_ / "text.txt") = folder_ / "texts";
  const Json league = parse_json(ok(words).out, "moe league");
  const int64_t steps = league.at("match").at("steps").get<int64_t>();
  EXPECT_GE(steps, 2);
  for (const auto& [name, run] : results()) EXPECT_EQ(run.at("steps"), steps) << name;
  EXPECT_EQ(league.at("match").at("tokenizer"), "bpe:300");
  ok(go_on());
  EXPECT_EQ(results().size(), 2u);
}

// Rates and steps are a run's own, and what hangs on them fits them.
TEST_F(LeagueCommand, TheWarmUpAndTheLastRateFitEveryRun) {
  put(folder_ / "short.json",
      R"({"time": 0.1, "recipe": "dense", "lr": 0.04, "min_lr": 0.02, "warmup": 9})");
  std::vector<std::string> words = start(
      {"--entries", folder_ / "short.json", "--seeds", "1", "--min-lr", "0.008", "--warmup", "8"});
  *std::find(words.begin(), words.end(), "6") = "20";
  ok(words);
  const auto last_rate = [&](const std::string& run) {
    const std::string metrics = slurp(folder_ / "out/runs/" + run + "/metrics.jsonl");
    const size_t begin = metrics.rfind('\n', metrics.size() - 2) + 1;
    return parse_json(metrics.substr(begin), run).at("lr").get<double>();
  };
  EXPECT_NEAR(last_rate("dense/lr0.01-seed1"), 0.008, 1e-9);
  EXPECT_NEAR(last_rate("dense/lr0.005-seed1"), 0.004, 1e-9);
  EXPECT_NEAR(last_rate("short/lr0.02-seed1"), 0.01, 1e-9);
  EXPECT_EQ(ok(go_on()).err.find("run "), std::string::npos);
}

TEST_F(LeagueCommand, AFilesWarmUpGivesWayToTheMinutes) {
  put(folder_ / "run.json", R"({"warmup": 1000000})");
  const auto words = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all = command_line(
        "league --width 16 --heads 2 --layers 1 --context 16 --batch 2 --threads 1 --minutes 0.01 "
        "--recipes dense --rates 1 --seeds 1",
        {"--data", folder_ / "text.txt", "--eval-data", folder_ / "held.txt", "--out",
         folder_ / out});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ok(words("out", {"--config", folder_ / "run.json"}));
  EXPECT_EQ(results().size(), 1u);
  EXPECT_EQ(ok(words("out", {"--config", folder_ / "run.json"})).err.find("run "),
            std::string::npos);
  expect_refused(words("no", {"--warmup", "1000000"}), 2, {"--warmup is 1000000 of "});
  EXPECT_FALSE(fs::exists(folder_ / "no"));
}

TEST_F(LeagueCommand, ThatWeightsAreKeptIsOneOfItsRules) {
  ok(start({"--recipes", "dense", "--seeds", "1", "--rates", "1", "--keep-models"}));
  ok(go_on({"--seeds", "2"}));
  for (const char* seed : {"1", "2"})
    EXPECT_TRUE(fs::exists(folder_ / "out/runs/dense/lr0.01-seed" + seed + "/model.safetensors"))
        << seed;
}

TEST_F(LeagueCommand, WhatIsRefusedLeavesNoFolder) {
  expect_refused(start({"--recipes", "mixtrl"}), 2, {"mixtrl"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  std::vector<std::string> words = start({});
  *std::find(words.begin(), words.end(), folder_ / "out") = folder_ / "text.txt/out";
  expect_refused(words, 1, {"cannot create the folder", "Not a directory", "another --out"});
  put(folder_ / "texts/one.txt", small_text());
  *std::find(words.begin(), words.end(), folder_ / "text.txt/out") = folder_ / "texts/out";
  *std::find(words.begin(), words.end(), folder_ / "text.txt") = folder_ / "texts";
  expect_refused(words, 2, {"texts/out lies in --data " + folder_ / "texts"});
  EXPECT_FALSE(fs::exists(folder_ / "texts/out"));
}

}  // namespace
}  // namespace moe::test::league_test
