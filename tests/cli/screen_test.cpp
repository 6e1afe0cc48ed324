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

TEST(Help, IsFoldedUnderTheColumnItBeginsIn) {
  const std::string help =
      "talk with a model in the terminal, and what else one line may say of a verb, to its end\n"
      "\n"
      "Options:\n"
      "  --system TEXT               what stands before the dialogue, in all of it, from its start "
      "on\n"
      "  --chat-template-kwargs TEXT variables of the model's chat template as a JSON object\n"
      "  --capacity-factor-eval FLOAT\n"
      "                              the same when evaluated as-trained, with drops if it has any\n"
      "  league       routing recipes against a dense twin, matched, and what papers claim\n"
      "  moe generate smollm2 -p \"The capital of France is\" -n 8 --temperature 0\n";
  EXPECT_EQ(folded_help(help, 60),
            "talk with a model in the terminal, and what else one line\n"
            "may say of a verb, to its end\n"
            "\n"
            "Options:\n"
            "  --system TEXT               what stands before the\n"
            "                              dialogue, in all of it, from\n"
            "                              its start on\n"
            "  --chat-template-kwargs TEXT variables of the model's chat\n"
            "                              template as a JSON object\n"
            "  --capacity-factor-eval FLOAT\n"
            "                              the same when evaluated\n"
            "                              as-trained, with drops if it\n"
            "                              has any\n"
            "  league       routing recipes against a dense twin,\n"
            "               matched, and what papers claim\n"
            "  moe generate smollm2 -p \"The capital of France is\" -n 8 --temperature 0\n");
  EXPECT_EQ(folded_help(help, 100), help) << "what fits stays as it is";
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
