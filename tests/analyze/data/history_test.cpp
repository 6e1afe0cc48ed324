// metrics.jsonl thinned: means over equal spans, and what a broken file says.
#include "analyze/data/history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "support/files.h"

namespace moe::test::history_test {
namespace {

std::string row(int64_t step, double ce, const std::string& more = "") {
  return fmt::format(
      R"({{"step":{},"tokens":{},"ce":{},"balance":1.5,"z":0,"grad_norm":2,"lr":0.001,"tokens_per_second":100,"layers":[{{"layer":1,"load":[0.25,0.75],"max_vio":{},"dropped":0.5}}]{}}})"
      "\n",
      step, step * 10, ce, ce * 2, more);
}

TrainingHistory parse(const std::string& text) {
  std::istringstream in(text);
  return parse_history(in, "metrics.jsonl");
}

TEST(History, ShortRunsKeepEveryStep) {
  const TrainingHistory h =
      parse(row(1, 3) + row(2, 2, R"(,"eval_ce":2.5)") +
            row(3, 1, R"(,"alarms":[{"kind":"dead","text":"layer 1: expert 0"}])"));
  ASSERT_EQ(h.points.size(), 3u);
  EXPECT_EQ(h.points[1].step, 2);
  EXPECT_EQ(h.points[1].tokens, 20);
  EXPECT_EQ(h.points[1].ce, 2);
  EXPECT_EQ(h.points[1].max_vio, std::vector<double>{4});
  EXPECT_EQ(h.points[1].load, (std::vector<std::vector<double>>{{0.25, 0.75}}));
  EXPECT_EQ(h.loss_names, std::vector<std::string>{"balance"});  // z was 0 all along
  EXPECT_EQ(h.points[1].losses, std::vector<double>{1.5});
  EXPECT_EQ(h.layers, std::vector<int64_t>{1});
  ASSERT_EQ(h.eval_ce.size(), 1u);
  EXPECT_EQ(h.eval_ce[0], (std::pair<int64_t, double>{2, 2.5}));
  ASSERT_EQ(h.alarms.size(), 1u);
  EXPECT_EQ(h.alarms[0].step, 3);
  EXPECT_EQ(h.alarms[0].text, "layer 1: expert 0");
}

TEST(History, PairsAreMeansLikeTheRest) {
  EXPECT_FALSE(parse(row(1, 3)).points[0].pairs);
  std::string text;
  for (int64_t step = 1; step <= 1024; ++step) {
    const std::string held =
        step == 4 ? R"(,"eval_ce":1,"eval_dpo":0.5,"eval_margin":2,"eval_accuracy":0.75)" : "";
    text += row(
        step, 1,
        fmt::format(R"(,"dpo":{},"margin":{},"accuracy":{}{})", step, 2 * step, step % 2, held));
  }
  const TrainingHistory h = parse(text);
  ASSERT_EQ(h.points.size(), 512u);
  for (size_t i = 0; i < h.points.size(); ++i) {
    ASSERT_TRUE(h.points[i].pairs);
    EXPECT_EQ(h.points[i].pairs->step, h.points[i].step);
    EXPECT_EQ(h.points[i].pairs->loss, 2 * static_cast<double>(i) + 1.5);
    EXPECT_EQ(h.points[i].pairs->margin, 4 * static_cast<double>(i) + 3);
    EXPECT_EQ(h.points[i].pairs->accuracy, 0.5);
  }
  ASSERT_EQ(h.eval_pairs.size(), 1u);
  EXPECT_EQ(h.eval_pairs[0].step, 4);
  EXPECT_EQ(h.eval_pairs[0].loss, 0.5);
  EXPECT_EQ(h.eval_pairs[0].margin, 2);
  EXPECT_EQ(h.eval_pairs[0].accuracy, 0.75);
}

// 1,500 steps: spans of 4, of which there are 375.
TEST(History, LongRunsBecomeMeansOverEqualSpans) {
  std::string text;
  for (int64_t step = 1; step <= 1500; ++step) text += row(step, static_cast<double>(step));
  const TrainingHistory h = parse(text);
  ASSERT_EQ(h.points.size(), 375u);
  for (size_t i = 0; i < h.points.size(); ++i) {
    const auto last = static_cast<int64_t>(4 * i + 4);
    EXPECT_EQ(h.points[i].step, last);
    EXPECT_EQ(h.points[i].ce, static_cast<double>(last) - 1.5);
    EXPECT_EQ(h.points[i].load[0][1], 0.75);
    EXPECT_EQ(h.points[i].losses[0], 1.5);
  }
}

// Steps without a target, as null and as older versions wrote them, count for all but the loss.
TEST(History, AStepWithoutALossIsLeftOutOfItsMean) {
  std::string none = row(2, 0);
  none.replace(none.find("\"ce\":0"), 6, "\"ce\":null");
  const TrainingHistory h = parse(row(1, 3) + none + row(3, 0, R"(,"predicted":0)"));
  ASSERT_EQ(h.points.size(), 3u);
  EXPECT_EQ(h.points[0].ce, 3);
  for (size_t i : {1, 2}) {
    EXPECT_TRUE(std::isnan(h.points[i].ce));
    EXPECT_EQ(h.points[i].load[0][1], 0.75);
  }
  std::string text;
  for (int64_t step = 1; step <= 1024; ++step)
    text += row(step, step % 2 ? 3 : 0, step % 2 ? R"(,"predicted":4)" : R"(,"predicted":0)");
  const TrainingHistory means = parse(text);
  ASSERT_EQ(means.points.size(), 512u);
  EXPECT_EQ(means.points[7].ce, 3);
  EXPECT_EQ(means.points[7].grad_norm, 2);
}

// The rate of a point is its tokens over its seconds: of a fast and a slow step, not the mean of
// both rates. Seconds are those of the run.
TEST(History, RatesAreTokensOverSeconds) {
  std::string text;
  double seconds = 0;
  for (int64_t step = 1; step <= 1024; ++step) {
    const double took = step % 2 ? 0.1 : 0.9;
    seconds += took;
    text += fmt::format(
        R"({{"step":{},"tokens":{},"seconds":{},"ce":1,"tokens_per_second":{},"layers":[]}})"
        "\n",
        step, step * 10, seconds, 10 / took);
  }
  const TrainingHistory h = parse(text);
  ASSERT_EQ(h.points.size(), 512u);
  for (const HistoryPoint& p : h.points) EXPECT_NEAR(p.tokens_per_second, 20, 1e-9);
  EXPECT_NEAR(h.points.back().seconds, 512, 1e-6);
  EXPECT_EQ(h.points.back().tokens, 10240);
}

TEST(History, CutLastLineIsPassedOver) {
  const std::string whole = row(1, 3);
  EXPECT_EQ(parse(whole + whole.substr(0, 40)).points.size(), 1u);
  EXPECT_EQ(parse("").points.size(), 0u);
  EXPECT_FAILS(parse(whole + "{\"step\":2\n" + row(3, 1)), "metrics.jsonl, row 2");
}

TEST(History, RowsOfOtherRunsAreRefused) {
  EXPECT_FAILS(parse(row(5, 3) + row(4, 3)), "step 4 comes after step 5");
  std::string other = row(2, 3);
  other.replace(other.find("\"layer\":1"), 9, "\"layer\":0");
  EXPECT_FAILS(parse(row(1, 3) + other), "row 2: its MoE layers are not those of the rows before");
  other = row(2, 3);
  other.replace(other.find("[0.25,"), 6, "[0.25,0,");
  EXPECT_FAILS(parse(row(1, 3) + other), "row 2: its MoE layers");
  EXPECT_FAILS(parse("{\"step\":1,\"ce\":\"low\",\"layers\":[]}\n"), "ce");
  EXPECT_FAILS(parse("[1]\n"), "row 1");
  other = row(2, 3);
  other.replace(other.find("[0.25,"), 6, "[1.25,");
  EXPECT_FAILS(parse(row(1, 3) + other), "a load is 1.25");
}

TEST(History, FolderWithoutMetricsHasNone) {
  const TempFolder folder;
  EXPECT_FALSE(read_history(folder.path()));
  put(folder / "metrics.jsonl", row(1, 3));
  EXPECT_EQ(read_history(folder.path())->points.size(), 1u);
}

}  // namespace
}  // namespace moe::test::history_test
