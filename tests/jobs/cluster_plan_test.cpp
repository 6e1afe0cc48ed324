#include "jobs/cluster_plan.h"

#include <gtest/gtest.h>

#include "convert/carve.h"
#include "hub/folder/config_json.h"
#include "jobs/run_options.h"
#include "support/files.h"

namespace moe::cluster_plan_test {
namespace {

using namespace test;

// One whose figures can be worked out by hand: a network that takes all the time, or none.
ClusterPlanJob job_of(int64_t processes) {
  ClusterPlanJob job;
  job.preset = "olmoe-mini";
  job.processes = processes;
  job.shape.batch = 2;
  job.shape.context = 64;
  job.rates.flops = 1e12;
  job.rates.read = 1e10;
  return job;
}

TEST(ClusterPlan, HasEveryLayoutThatDivides) {
  const ClusterPlan plan = plan_cluster(job_of(12));
  std::vector<int64_t> spreads;
  for (const LayoutPlan& l : plan.layouts) spreads.push_back(l.expert_parallel);
  // olmoe-mini has 8 experts
  EXPECT_EQ(spreads, (std::vector<int64_t>{1, 2, 3, 4, 6}));
  EXPECT_EQ(plan.tokens_a_step(), 12 * 2 * 64);
}

TEST(ClusterPlan, NeuronsAreNotSpread) {
  const ModelConfig dense = preset_config("dense-mini");
  CarveOptions o;
  o.method = "sketch";
  o.budget = 0.5;
  const TempFolder folder;
  put(folder / "config.json",
      config_to_json(carved_config(dense, with_shape(dense, o, DType::bf16))));
  ClusterPlanJob job = job_of(2);
  job.preset.clear();
  job.model = folder.path();
  EXPECT_EQ(plan_cluster(job).layouts.size(), 1u);
}

TEST(ClusterPlan, AProcessAloneOnlyComputes) {
  const ClusterPlan plan = plan_cluster(job_of(1));
  ASSERT_EQ(plan.layouts.size(), 1u);
  const LayoutPlan& l = plan.layouts[0];
  EXPECT_DOUBLE_EQ(l.compute, 128 * count_flops(plan.config, 64).training() / (1e12 * 0.5));
  EXPECT_EQ(l.gradients + l.rows + l.waiting + l.sent, 0);
  EXPECT_EQ(plan.best, 0u);
}

TEST(ClusterPlan, MuonKeepsOneMomentOfMatrices) {
  ClusterPlanJob job = job_of(2);
  const ClusterPlan adamw = plan_cluster(job);
  job.optimizer = OptimizerKind::muon;
  const ClusterPlan muon = plan_cluster(job);
  ASSERT_EQ(adamw.layouts.size(), muon.layouts.size());
  const ParamCount count = count_params(adamw.config);
  for (size_t i = 0; i < adamw.layouts.size(); ++i) {
    const int64_t saved = adamw.layouts[i].memory.moments - muon.layouts[i].memory.moments;
    EXPECT_GE(saved, 4 * count[Part::experts] / 2);
    EXPECT_LE(saved, 4 * (count[Part::experts] + count[Part::attention]) / 2);
  }
}

TEST(ClusterPlan, TheNetworkDecides) {
  ClusterPlanJob job = job_of(4);
  job.rates.latency = 0;
  const ClusterPlan slow = plan_cluster(job);
  for (const LayoutPlan& l : slow.layouts)
    EXPECT_NEAR(l.gradients + l.rows, l.sent / 0.125e9, 1e-12 + 1e-9 * l.gradients);
  // gradients of the experts shrink with the spread, rows grow with the tokens
  job.micro_batches = 4096;
  EXPECT_EQ(plan_cluster(job).best, 0u);
  job.micro_batches = 4;
  EXPECT_EQ(plan_cluster(job).best, 2u);
}

TEST(ClusterPlan, MarksWhatDoesNotFit) {
  ClusterPlanJob job = job_of(4);
  const ClusterPlan all = plan_cluster(job);
  job.rates.memory = (all.layouts[0].memory.total() + all.layouts[1].memory.total()) / 2;
  const ClusterPlan plan = plan_cluster(job);
  EXPECT_FALSE(plan.layouts[0].fits);
  EXPECT_TRUE(plan.layouts[1].fits);
  job.rates.memory = 1;
  EXPECT_FALSE(plan_cluster(job).best.has_value());
}

TEST(ClusterPlan, RefusesWhatItCannotPlan) {
  ClusterPlanJob job = job_of(4);
  job.micro_batches = 6;
  EXPECT_FAILS(plan_cluster(job), "accumulate is 6, which 4 processes cannot share evenly");
  job = job_of(0);
  EXPECT_FAILS(plan_cluster(job), "processes is 0");
  job = job_of(4);
  job.preset.clear();
  EXPECT_FAILS(plan_cluster(job), "needs a model, or preset");
  job = job_of(4);
  job.rates.reached = 0;
  EXPECT_FAILS(plan_cluster(job), "reached up to 1");
}

}  // namespace
}  // namespace moe::cluster_plan_test
