#include "train/metrics.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/files.h"

namespace moe {
namespace {

using namespace test;

StepResult at(int64_t step) {
  StepResult r;
  r.step = step;
  r.ce = 1.5;
  r.layers = {{0, {0.25, 0.75}, 0.5, 0.125}};
  return r;
}

std::vector<int64_t> steps_in(const std::string& path) {
  std::istringstream in(slurp(path));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(in, line);) steps.push_back(Json::parse(line).at("step").get<int64_t>());
  return steps;
}

TEST(Metrics, OneObjectAStepWithEveryKey) {
  const Json line = Json::parse(metrics_line(at(3), 2.25));
  for (const char* key : {"step", "tokens", "seconds", "ce", "balance", "z", "grad_norm", "lr", "tokens_per_second", "dropped", "layers"})
    EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_EQ(line.at("eval_ce"), 2.25);
  EXPECT_EQ(line.at("layers").at(0).at("load").at(1), 0.75);
  EXPECT_EQ(line.at("layers").at(0).at("max_vio"), 0.5);
  EXPECT_FALSE(Json::parse(metrics_line(at(3), {})).contains("eval_ce"));
}

TEST(Metrics, LossesThatAreTrainedOnStandInTheLine) {
  StepResult r = at(1);
  r.balance = 1.25;
  r.device = 1.5;
  r.importance = 0.5;
  r.load = 0.75;
  r.coef.importance = r.coef.load = 0.1f;
  const Json line = Json::parse(metrics_line(r, {}));
  EXPECT_EQ(line.at("balance"), 1.25) << "always there, as z is";
  EXPECT_EQ(line.at("importance"), 0.5);
  EXPECT_EQ(line.at("load"), 0.75);
  EXPECT_FALSE(line.contains("device"));
  EXPECT_FALSE(line.contains("communication"));
}

TEST(Metrics, AppendsAndCutsOffWhatIsRunAgain) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int64_t s = 1; s <= 6; ++s) file.append(at(s), {});
    file.sync();
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  {
    MetricsFile file(path, 4);
    EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4}));
    file.append(at(5), {});
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  MetricsFile file(path, 9);
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5})) << "nothing to cut";
}

TEST(Metrics, ALineThatAKillCutShortGoes) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl", good = metrics_line(at(1), {}) + "\n";
  for (const std::string& torn : {std::string("{\"step\":2,\"tok"), std::string("{\"step\":2,\"tok\n"), std::string(100, '\0'), std::string("\n")}) {
    put(path, good + torn);
    MetricsFile file(path, 5);
    EXPECT_EQ(slurp(path), good);
  }
  put(path, "{\"step\":1");
  MetricsFile file(path, 5);
  EXPECT_EQ(slurp(path), "");
}

TEST(Metrics, TwoRunsCannotShareAFolder) {
  const TempFolder folder;
  MetricsFile first(folder / "metrics.jsonl", 0);
  EXPECT_FAILS(MetricsFile(folder / "metrics.jsonl", 0), "another training run");
}

TEST(Metrics, AFolderThatCannotBeWrittenIsNamed) { EXPECT_FAILS(MetricsFile("/nonexistent/metrics.jsonl", 0), "/nonexistent/metrics.jsonl"); }

}  // namespace
}  // namespace moe
