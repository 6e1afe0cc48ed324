#include "cli/screen.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <functional>

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

// What `act` writes to standard error, which is a terminal or a pipe.
std::string told(bool terminal, const std::function<void()>& act) {
  int ends[2];
  EXPECT_EQ(terminal ? openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) : pipe(ends), 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  act();
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  std::string all;
  char part[4096];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;)
    all.append(part, static_cast<size_t>(n));
  close(ends[0]);
  return all;
}

TEST(Reading, IsShownOnATerminalWhileItIsLongAndGoneBehindIt) {
  const auto read = [](bool wanted, double patience) {
    return [=] {
      ReadingLine line(wanted, patience);
      line.show(512, 1300);
      line.clear();
      line.clear();
    };
  };
  EXPECT_EQ(told(true, read(true, 0)),
            "\r[#######.............] 512/1300  tokens of the prompt read\x1b[K\r\x1b[K");
  EXPECT_EQ(told(true, read(true, 3600)), "") << "it was not long";
  EXPECT_EQ(told(true, read(false, 0)), "");
  EXPECT_EQ(told(false, read(true, 0)), "");
  EXPECT_EQ(told(true, [] { ReadingLine(true, 0).show(512, 1300); }), told(true, read(true, 0)))
      << "an error ends it too";
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
