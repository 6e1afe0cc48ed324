// `moe plan` as people and programs read it. The figures: jobs/cluster_plan_test.cpp.
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace moe::plan_test {
namespace {

using namespace test;

const std::string kLine =
    "plan --preset olmoe-mini --processes 4 --accumulate 8 --context 64 --flops 1e12 --read 1e10";

TEST(Plan, GivesTheBestLayoutAsACommand) {
  const CommandResult r = moe_command(command_line(kLine + " --tokens 1e9 --price 2"));
  EXPECT_EQ(r.code, 0) << r.err;
  has(r.out, "8 micro-batches on 4 processes");
  has(r.out, "all experts each");
  has(r.out, "experts over 2, 2 copies");
  has(r.out, "*: mpirun -n 4 moe train --accumulate 8");
  has(r.out, "hours of a process");
}

TEST(Plan, SaysWhatDoesNotFit) {
  const CommandResult r = moe_command(command_line(kLine + " --memory 10M"));
  EXPECT_EQ(r.code, 0) << r.err;
  has(r.out, "x: takes more than --memory");
  has(r.out, "none of them fits");
}

TEST(Plan, TellsPrograms) {
  const Json plan = Json::parse(moe_command(command_line(kLine + " --json")).out);
  ASSERT_EQ(plan["layouts"].size(), 3u);
  double parts = 0;
  for (const char* part : {"compute", "waiting", "update", "gradients", "rows"})
    parts += plan["layouts"][1][std::string(part) + "_seconds"].get<double>();
  EXPECT_NEAR(plan["layouts"][1]["step_seconds"].get<double>(), parts, 1e-12);
}

TEST(Plan, RefusesInOneLine) {
  const CommandResult r =
      moe_command(command_line("plan --preset olmoe-mini --processes 3 "
                               "--accumulate 8"));
  EXPECT_EQ(r.code, 2);
  has(r.err, "--accumulate is 8, which 3 processes cannot share evenly");
}

}  // namespace
}  // namespace moe::plan_test
