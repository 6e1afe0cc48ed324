#include "cli/screen.h"

#include <gtest/gtest.h>

namespace moe::cli::screen_test {
namespace {

// What matters most stands first and is there on 80 columns; nothing is cut in its middle.
TEST(ProgressText, FitsTheTerminal) {
  const std::vector<std::string> parts = {"ce 1.234",     "1h05m left",
                                          "8.43k tok/s",  "MaxVio 0.53",
                                          "dropped 0.0%", "31.2 GFLOP/s, 47% of peak"};
  EXPECT_EQ(progress_text(750, 1500, parts, 80),
            "[#####.....] 750/1500  ce 1.234  1h05m left  8.43k tok/s  MaxVio 0.53");
  EXPECT_EQ(progress_text(750, 1500, parts, 200),
            "[##########..........] 750/1500  ce 1.234  1h05m left  8.43k tok/s  MaxVio 0.53  "
            "dropped 0.0%  31.2 GFLOP/s, 47% of peak");
  for (size_t width = 1; width < 140; ++width) {
    const std::string line = progress_text(750, 1500, parts, width);
    EXPECT_LT(line.size(), width);
    if (width > 23)
      EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(line.back())) || line.back() == '%')
          << line;
  }
  EXPECT_EQ(progress_text(0, 0, {}, 80), "[##########] 0/0");
}

TEST(Peak, AShareStandsOnlyBesideAPeakThatIsOne) {
  PeakShare peak(100e9);
  EXPECT_EQ(peak.describe(47e9), "47 GFLOP/s, 47% of peak");
  EXPECT_EQ(peak.describe(147e9), "147 GFLOP/s") << "so it was not the peak";
  EXPECT_EQ(peak.describe(47e9), "47 GFLOP/s") << "nor is it now";
  EXPECT_EQ(PeakShare(0).describe(1.234e9), "1.23 GFLOP/s");
}

}  // namespace
}  // namespace moe::cli::screen_test
