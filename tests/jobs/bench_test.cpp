// Timed training steps of a whole run's options.
#include "jobs/bench.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace moe::test::bench_test {
namespace {

BenchTrainJob small(const std::string& config) {
  BenchTrainJob job;
  job.setup.config = config;
  job.setup.model.layers = 1;
  job.setup.model.width = 16;
  job.setup.model.heads = 2;
  job.setup.train.context = 16;
  job.setup.train.batch = 2;
  job.setup.train.threads = 1;
  return job;
}

// A preset's and a file's are those of a whole run, of which a few steps are timed.
TEST(BenchTrain, TheWarmUpOfAFileGivesWay) {
  const TempFolder folder;
  put(folder / "run.json", R"({"recipe": "dense", "warmup": 2000, "steps": 50000})");
  Given given;
  EXPECT_EQ(bench_train(small(folder / "run.json"), given, {}).ms.size(), 5u);
  BenchTrainJob job = small("");
  job.setup.train.warmup = 2000;
  Given asked;
  asked.add("warmup", GivenBy::caller);
  EXPECT_FAILS(bench_train(job, asked, {}), "warmup is 2000 of 7 steps");
}

}  // namespace
}  // namespace moe::test::bench_test
