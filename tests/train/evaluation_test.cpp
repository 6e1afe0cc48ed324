// Runs with held-out text: when it is evaluated, what a stop makes of an evaluation, and the
// weights that predict it best.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/check.h"
#include "support/run_session.h"
#include "train/metrics.h"
#include "train/step_lines.h"

namespace moe::evaluation_test {
namespace {

using namespace test;

TEST(TrainEvaluation, EvaluatesWhenAsked) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.options.eval_every = 2;
  auto model = fresh(s.config);
  std::vector<int64_t> evals;
  TrainCallbacks callbacks;
  callbacks.on_eval = [&](int64_t step, const Evaluation& held_out) {
    const double ce = held_out.ce;
    EXPECT_GT(ce, 0);
    evals.push_back(step);
  };
  const Corpus held_out = tiny_corpus(40);
  TrainJob job = s.job();
  job.held_out = &held_out;
  const TrainSummary summary = train(*model, job, callbacks, kGoOn);
  EXPECT_EQ(evals, (std::vector<int64_t>{2, 4, 5}));
  std::istringstream in(slurp(s.out + "/metrics.jsonl"));
  std::vector<int64_t> with;
  double last = 0;
  for (std::string line; std::getline(in, line);)
    if (const Json json = Json::parse(line); json.contains("eval_ce")) {
      with.push_back(json.at("step"));
      last = json.at("eval_ce");
    }
  EXPECT_EQ(with, evals);
  EXPECT_EQ(last, summary.eval->ce);
}

// The steps between evaluations follow the steps of the run; an evaluation that was just made is
// not made again a few steps later.
TEST(TrainEvaluation, EvaluatesEvenlyWhereTheStepsAreFittedAgain) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.options.eval_tokens = 32;
  const Corpus held_out = tiny_corpus(40);
  double clock = 100, seconds = 0.5;
  TrainJob job = s.job_of_a_minute(clock, 120, 0);
  job.held_out = &held_out;
  std::vector<int64_t> evals = {0};
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepResult&) { clock += seconds *= 0.995; };
  callbacks.on_eval = [&](int64_t step, const Evaluation&) { evals.push_back(step); };
  auto model = fresh(s.config);
  const TrainSummary summary = train(*model, job, callbacks, kGoOn);
  EXPECT_GE(evals.size(), 8u);
  EXPECT_GT(summary.last.step, 150);
  for (size_t i = 1; i + 1 < evals.size(); ++i)
    EXPECT_GE(evals[i] - evals[i - 1], 6) << "evaluated at step " << evals[i];
}

// Ctrl-C ends an evaluation at once, and the run with it; all that was trained is saved.
TEST(TrainEvaluation, AnEvaluationCanBeInterrupted) {
  for (int64_t at : {2, 5}) {
    const TempFolder folder;
    RunSession s{folder / "out"};
    s.options.eval_every = 2;
    const Corpus held_out = tiny_corpus(40);
    TrainJob job = s.job();
    job.held_out = &held_out;
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == at; };
    int64_t evaluated = 0;
    callbacks.on_eval = [&](int64_t step, const Evaluation&) { evaluated = step; };
    auto model = fresh(s.config);
    const TrainSummary summary = train(*model, job, callbacks, stop);
    EXPECT_TRUE(summary.interrupted);
    EXPECT_LT(evaluated, at);
    EXPECT_EQ(load_checkpoint(s.out).step, at);
  }
}

// By the run that goes on, before its first step, where there is another one; stopped again, it is
// still to be taken.
void expect_taken_later(int64_t stopped_at, size_t taken_before) {
  SCOPED_TRACE(stopped_at);
  const TempFolder folder;
  RunSession s;
  s.options.eval_every = 2;
  s.options.keep_best = true;
  const Corpus held_out = tiny_corpus(40);
  using Evals = std::vector<std::pair<int64_t, double>>;
  const auto session = [&](const std::string& out, int64_t stop_at, const Checkpoint* from) {
    auto model = fresh(s.config);
    TrainJob job = s.job();
    job.out = out;
    job.held_out = &held_out;
    job.sources.eval_data = {"held.txt"};
    std::atomic<bool> stop = from && stop_at == from->step;
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepResult& r) { stop = r.step == stop_at; };
    return train(from ? *from->loaded.model : *model, job, callbacks, stop, from);
  };
  const auto evals_in = [](const std::string& out) {
    Evals evals;
    each_last_line(out + "/metrics.jsonl", 100, [&](std::string_view line) {
      if (const auto found = parse_evaluation(line, out))
        evals.emplace_back(found->step, found->loss);
    });
    return evals;
  };
  const std::string whole = folder / "whole", parts = folder / "parts";
  const TrainSummary uninterrupted = session(whole, 0, nullptr);
  EXPECT_TRUE(session(parts, stopped_at, nullptr).interrupted);
  EXPECT_EQ(evals_in(parts).size(), taken_before);
  const Checkpoint stopped = load_checkpoint(parts);
  const TrainSummary again = session(parts, stopped_at, &stopped);
  EXPECT_TRUE(again.interrupted);
  EXPECT_EQ(again.last.step, stopped_at);
  EXPECT_EQ(again.last.tokens, stopped.tokens);
  EXPECT_EQ(load_checkpoint(parts).step, stopped_at);
  const Checkpoint still = load_checkpoint(parts);
  const TrainSummary rest = session(parts, 0, &still);
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(rest.last.step, 5);
  EXPECT_EQ(evals_in(parts), evals_in(whole));
  EXPECT_EQ(evals_in(parts).size(), 3u);
  EXPECT_EQ(steps_in(parts + "/metrics.jsonl"), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  ASSERT_TRUE(rest.best && uninterrupted.best);
  EXPECT_EQ(rest.best->step, uninterrupted.best->step);
  EXPECT_TRUE(
      same_weights(*load_model(best_folder(parts)).model, *load_model(best_folder(whole)).model));
  EXPECT_TRUE(same_weights(*load_model(parts).model, *load_model(whole).model));
  const Checkpoint done = load_checkpoint(parts);
  EXPECT_FAILS(session(parts, 0, &done), "nothing to resume");
}

TEST(TrainEvaluation, AnEvaluationThatWasInterruptedIsTakenLater) {
  expect_taken_later(2, 0);
  expect_taken_later(5, 2);  // the run's last
}

// One that was taken is not taken again, nor is one that was not due.
TEST(TrainEvaluation, ARunThatGoesOnOwesNoOtherEvaluation) {
  for (int64_t at : {2, 3}) {
    SCOPED_TRACE(at);
    const TempFolder folder;
    RunSession s{folder / "out"};
    s.options.eval_every = 2;
    const Corpus held_out = tiny_corpus(40);
    TrainJob job = s.job();
    job.held_out = &held_out;
    std::vector<int64_t> evals;
    const auto session = [&](Model& model, int64_t stop_at, const Checkpoint* from) {
      std::atomic<bool> stop = false;
      TrainCallbacks callbacks;
      callbacks.on_eval = [&](int64_t step, const Evaluation&) { evals.push_back(step); };
      callbacks.on_metrics = [&](const std::string& line) {
        stop = Json::parse(line).at("step") == stop_at;
      };
      return train(model, job, callbacks, stop, from);
    };
    auto model = fresh(s.config);
    session(*model, at, nullptr);
    const Checkpoint middle = load_checkpoint(s.out);
    ASSERT_EQ(middle.step, at);
    session(*middle.loaded.model, 0, &middle);
    EXPECT_EQ(evals, (std::vector<int64_t>{2, 4, 5}));
  }
}

// Found out before the first step, not by the evaluation at the end.
TEST(TrainEvaluation, RefusesAHeldOutTextThatPredictsNothingBeforeItBegins) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  auto model = fresh(s.config);
  const Corpus held_out(std::vector<int32_t>(80, 65), {80}, {{0, 80}});
  TrainJob job = s.job();
  job.held_out = &held_out;
  EXPECT_FAILS(train(*model, job, {}, kGoOn), "in the held-out text is to be predicted");
  EXPECT_FALSE(std::filesystem::exists(s.out));
}

TEST(TrainEvaluation, KeepsTheWeightsOfTheLowestHeldOutLoss) {
  const TempFolder folder;
  RunSession s{folder / "out"};
  s.options.steps = 12;
  s.options.lr = 0.5;  // so high that the loss rises on the way
  s.options.schedule = ScheduleKind::constant;
  s.options.eval_every = 1;
  s.options.keep_best = true;
  const Corpus held_out = tiny_corpus(40);
  TrainJob job = s.job();
  job.held_out = &held_out;
  std::vector<double> evals;
  std::map<int64_t, std::vector<std::vector<double>>> weights;  // by step, of every parameter
  const auto session = [&](Model& model, int64_t stop_after, const Checkpoint* from) {
    std::atomic<bool> stop = false;
    TrainCallbacks callbacks;
    callbacks.on_eval = [&](int64_t step, const Evaluation& found) {
      const double ce = found.ce;
      evals.push_back(ce);
      for (const Param* p : model.params()) weights[step].push_back(values(p->value));
      stop = step == stop_after;
    };
    return train(model, job, callbacks, stop, from);
  };
  auto model = fresh(s.config);
  session(*model, 8, nullptr);
  const Checkpoint middle = load_checkpoint(s.out);
  const TrainSummary summary = session(*middle.loaded.model, 0, &middle);
  const auto lowest = std::min_element(evals.begin(), evals.end());
  const int64_t step = lowest - evals.begin() + 1;
  ASSERT_TRUE(summary.best);
  EXPECT_EQ(summary.best->step, step);
  EXPECT_EQ(summary.best->loss, *lowest);
  EXPECT_NE(step, 12) << "the last is the best, which proves nothing";
  const LoadedModel best = load_model(best_folder(s.out));
  EXPECT_EQ(best.metadata.at("step"), std::to_string(step));
  for (size_t i = 0; i < best.model->params().size(); ++i)
    EXPECT_EQ(values(best.model->params()[i]->value), weights.at(step)[i]);
  EXPECT_FALSE(same_weights(*best.model, *load_model(s.out).model));
}

}  // namespace
}  // namespace moe::evaluation_test
