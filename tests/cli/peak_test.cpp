#include "cli/peak.h"

#include <gtest/gtest.h>

namespace moe::cli {
namespace {

TEST(Peak, AShareStandsOnlyBesideAPeakThatIsOne) {
  PeakShare peak(100e9);
  EXPECT_EQ(peak.describe(47e9), "47 GFLOP/s, 47% of peak");
  EXPECT_EQ(peak.describe(147e9), "147 GFLOP/s") << "so it was not the peak";
  EXPECT_EQ(peak.describe(47e9), "47 GFLOP/s") << "nor is it now";
  EXPECT_EQ(PeakShare(0).describe(1.234e9), "1.23 GFLOP/s");
}

}  // namespace
}  // namespace moe::cli
