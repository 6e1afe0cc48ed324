// A report as JSON: every figure under its definition's key, absent ones null, samples as lists of
// what was sent.
#include "analyze/data/report_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analyze/data/definitions.h"
#include "analyze/made_report.h"
#include "core/error.h"
#include "support/files.h"

namespace moe::test::report_json_test {
namespace {

TEST(ReportJson, EveryFigureHasADefinition) {
  const Json layer = to_json(made_report()).at("moe_layers").at(0);
  for (const auto& [key, value] : layer.items())
    if (key != "layer" && key != "counts") EXPECT_NO_THROW(definition(key)) << key;
  EXPECT_THROW(definition("depth"), Error);
}

// docs/figures.md shows the same list.
TEST(ReportJson, DocsTellEveryDefinition) {
  const std::string docs = slurp(MOE_TEST_DATA "/../../docs/figures.md");
  for (const Definition& d : definitions())
    EXPECT_NE(docs.find(fmt::format("| `{}` | {} | {} | {} |", d.key, d.title, d.line, d.source)),
              std::string::npos)
        << d.key;
}

TEST(ReportJson, GridsAreListsOfRows) {
  const RoutingReport report = made_report();
  const Json layer = to_json(report).at("moe_layers").at(1);
  const LayerStats& s = report.moe_layers[1];
  ASSERT_EQ(layer.at("domain").size(), report.domains.size());
  EXPECT_EQ(layer.at("domain").at(1).at(2).get<double>(), s.domain(1, 2));
  EXPECT_EQ(layer.at("coactivation").at(2).at(0).get<double>(), s.coactivation(2, 0));
  EXPECT_EQ(layer.at("favourites").at(0).size(), s.favourites[0].size());
}

TEST(ReportJson, WhatIsAbsentIsNull) {
  RoutingReport report;
  report.moe_layers.emplace_back();
  const Json json = to_json(report);
  EXPECT_TRUE(json.at("earlier").is_null());
  for (const char* key : {"router_entropy", "margin", "top_score", "saturation"})
    EXPECT_TRUE(json.at("moe_layers").at(0).at(key).is_null()) << key;
}

TEST(ReportJson, SamplesTellWhatWasSent) {
  RoutingReport report;
  report.samples.push_back(
      {"french", {"a", "b"}, {0, 1.5}, {{3, -1, 0, 2}}, {{0.5f, 0, 0.1f, 0.25f}}});
  const Json sample = to_json(report).at("samples").at(0);
  EXPECT_EQ(sample.at("experts"), parse_json("[[[3], [0, 2]]]", "test"));
  EXPECT_EQ(sample.at("weights"), parse_json("[[[0.5], [0.1, 0.25]]]", "test"));
  EXPECT_EQ(sample.at("nll"), parse_json("[0.0, 1.5]", "test"));
}

TEST(ReportJson, HistoryKeepsItsPoints) {
  const TrainingHistory history = made_history();
  const Json json = to_json(history);
  ASSERT_EQ(json.at("points").size(), history.points.size());
  EXPECT_EQ(json.at("points").at(0).at("step").get<int64_t>(), history.points[0].step);
  EXPECT_EQ(json.at("eval_ce").size(), history.eval_ce.size());
  EXPECT_EQ(json.at("alarms").size(), history.alarms.size());
  EXPECT_FALSE(json.at("points").at(0).contains("pairs"));
  EXPECT_TRUE(json.at("eval_pairs").empty());
}

TEST(ReportJson, PairsStandBesideTheRest) {
  TrainingHistory history = made_history();
  history.points[0].pairs = PairPoint{3, 0.5, 0.25, 1};
  history.eval_pairs = {{4, 0.75, 2, 0.5}};
  const Json json = to_json(history);
  const Json pairs{{"step", 3}, {"dpo", 0.5}, {"margin", 0.25}, {"accuracy", 1.0}},
      held{{"step", 4}, {"dpo", 0.75}, {"margin", 2.0}, {"accuracy", 0.5}};
  EXPECT_EQ(json.at("points").at(0).at("pairs"), pairs);
  EXPECT_EQ(json.at("eval_pairs"), Json::array({held}));
}

}  // namespace
}  // namespace moe::test::report_json_test
