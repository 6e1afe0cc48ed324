#include "train/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/files.h"

namespace moe::metrics_test {
namespace {

using namespace test;

StepResult at(int64_t step) {
  StepResult r;
  r.step = step;
  r.ce = 1.5;
  r.layers = {{0, {0.25, 0.75}, 0.5, 0.125}};
  return r;
}

TEST(Metrics, OneObjectAStepWithEveryKey) {
  const Json line = Json::parse(metrics_line(at(3), Evaluation{2.25, {}}));
  for (const char* key : {"step", "tokens", "seconds", "ce", "predicted", "balance", "z",
                          "grad_norm", "lr", "tokens_per_second", "dropped", "layers"})
    EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_EQ(line.at("eval_ce"), 2.25);
  EXPECT_EQ(line.at("layers").at(0).at("load").at(1), 0.75);
  EXPECT_EQ(line.at("layers").at(0).at("max_vio"), 0.5);
  EXPECT_FALSE(Json::parse(metrics_line(at(3), {})).contains("eval_ce"));
}

// Neurons are experts by the thousand; who reads the line finds a layer without loads.
TEST(Metrics, LoadsOfVeryManyExpertsAreLeftOut) {
  StepResult r = at(2);
  r.layers[0].load.assign(512, 1.0 / 512);
  EXPECT_EQ(parse_metrics_line(metrics_line(r, {}), "test")->layers[0].load.size(), 512u);
  r.layers[0].load.assign(513, 1.0 / 513);
  const auto read = parse_metrics_line(metrics_line(r, {}), "test");
  ASSERT_TRUE(read.has_value());
  EXPECT_TRUE(read->layers[0].load.empty());
  EXPECT_EQ(read->layers[0].max_vio, 0.5);
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

TEST(Metrics, PreferencePairsHaveFiguresOfTheirOwn) {
  StepResult r = at(4);
  r.pairs = PairFigures{.loss = 0.5, .margin = 0.75, .accuracy = 0.625};
  const Evaluation held_out{2.25, PairFigures{.loss = 0.375, .margin = 1.5, .accuracy = 1}};
  const std::string text = metrics_line(r, held_out);
  const Json line = Json::parse(text);
  EXPECT_EQ(line.at("dpo"), 0.5);
  EXPECT_EQ(line.at("margin"), 0.75);
  EXPECT_EQ(line.at("accuracy"), 0.625);
  EXPECT_EQ(line.at("eval_ce"), 2.25);
  EXPECT_EQ(line.at("eval_dpo"), 0.375);
  EXPECT_EQ(line.at("eval_margin"), 1.5);
  EXPECT_EQ(line.at("eval_accuracy"), 1);
  EXPECT_EQ(parse_metrics_line(text, "test")->loss(), 0.5) << "what alarms look at";
  EXPECT_EQ(parse_evaluation(text, "test")->loss, 0.375) << "what --keep-best goes by";
  const Json plain = Json::parse(metrics_line(at(3), Evaluation{2.25, {}}));
  for (const char* key : {"dpo", "margin", "accuracy", "eval_dpo"})
    EXPECT_FALSE(plain.contains(key)) << key;
}

TEST(Metrics, AlarmsStandInTheLineOfTheirStep) {
  Alarm dead{AlarmKind::dead_expert, 3, 1, {2, 5}, false, "they are dead"},
      over{AlarmKind::loss_spike, 3, -1, {}, true, "it is over"};
  const Json line = Json::parse(metrics_line(at(3), {}, std::vector<Alarm>{dead, over}));
  EXPECT_EQ(
      line.at("alarms"),
      Json::parse(
          R"([{"kind": "dead-expert", "layer": 1, "experts": [2, 5], "text": "they are dead"}])"));
  EXPECT_EQ(line.at("recovered"), Json::parse(R"([{"kind": "loss-spike", "text": "it is over"}])"));
  EXPECT_FALSE(Json::parse(metrics_line(at(3), {})).contains("alarms"));
}

TEST(Metrics, ALineIsReadAgain) {
  StepResult r = at(3);
  r.predicted = 12;
  r.z = 2.5;
  r.grad_norm = 0.5;
  r.lr = 1e-3;
  r.dropped = 0.25;
  const std::optional<StepResult> read =
      parse_metrics_line(metrics_line(r, Evaluation{2.25, {}}), "a test");
  ASSERT_TRUE(read);
  EXPECT_EQ(metrics_line(*read, Evaluation{2.25, {}}), metrics_line(r, Evaluation{2.25, {}}));
  Json older = Json::parse(metrics_line(r, {}));
  older.erase("predicted");
  EXPECT_GT(parse_metrics_line(older.dump(), "a test")->predicted, 0);
  for (const char* other : {"", "{}", "{\"step\": 3}", "[1]", "{\"step\": 3, \"ce\": \"high\"}"})
    EXPECT_FALSE(parse_metrics_line(other, "a test")) << other;
}

// A step whose tokens are all a prompt.
TEST(Metrics, WithoutATargetThereIsNoLoss) {
  StepResult r = at(3);
  r.ce = std::numeric_limits<double>::quiet_NaN();
  r.kl = r.ce;
  const std::string text = metrics_line(r, {});
  const Json line = Json::parse(text);
  EXPECT_TRUE(line.at("ce").is_null());
  EXPECT_TRUE(line.at("kl").is_null());
  EXPECT_EQ(line.at("predicted"), 0);
  const std::optional<StepResult> read = parse_metrics_line(text, "a test");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->predicted, 0);
  EXPECT_TRUE(std::isnan(read->ce));
  EXPECT_EQ(described_ce(r.ce), "nothing to predict");
  EXPECT_EQ(described_ce(1.5), "ce 1.500");
}

TEST(Metrics, AnEvaluationIsAddedLater) {
  const Evaluation held_out{2.25, PairFigures{.loss = 0.375, .margin = 1.5, .accuracy = 1}};
  EXPECT_EQ(with_evaluation(metrics_line(at(3), {}), held_out, "a test"),
            metrics_line(at(3), held_out));
  EXPECT_FAILS(with_evaluation("{\"step\":", held_out, "a test"), "a test");
}

TEST(Metrics, AnEvaluationIsFoundAgain) {
  StepResult r;
  r.step = 7;
  EXPECT_FALSE(parse_evaluation(metrics_line(r, std::nullopt), "test"));
  const std::optional<BestEvaluation> found =
      parse_evaluation(metrics_line(r, Evaluation{1.25, {}}), "test");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 7);
  EXPECT_EQ(found->loss, 1.25);
  EXPECT_FALSE(parse_evaluation("{\"eval_ce\": tor", "test"));
}

}  // namespace
}  // namespace moe::metrics_test
