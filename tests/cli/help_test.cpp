// The way in: `moe help`, the first screens, and what a mistyped verb is told.
#include "cli/verbs.h"
#include "support/command.h"

namespace moe::cli::help_test {
namespace {

using namespace moe::test;

TEST(Help, AVerbThatIsNoneIsRefusedWhateverFollowsIt) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"trian", "--help"},
                                             {"--help", "trian"},
                                             {"trian"},
                                             {"trian", "--data", "x"},
                                             {"help", "trian"},
                                             {"trian", "generate", "--help"}})
    expect_refused(words, 2, {"moe has no verb 'trian'", "\"train\""});
  expect_refused({"xyzzy", "--help"}, 2, {"no verb 'xyzzy'", "moe --help lists"});
  expect_refused({"help", "bench", "peek"}, 2, {"moe bench has no verb 'peek'", "\"peak\""});
  expect_refused({"help", "train", "peak"}, 2, {"moe train has no verb 'peak'"});
  expect_refused({"quantize", "m", "m.gguf"}, 2, {"moe convert MODEL OUT.gguf --quant TYPE"});
  expect_refused({}, 2, {"moe --help"});
}

TEST(Help, IsWhatTheFlagPrints) {
  EXPECT_EQ(ok({"help"}).out, ok({"--help"}).out);
  EXPECT_EQ(ok({"help"}).out, ok({"-h"}).out);
  for (const Verb& verb : verbs())
    EXPECT_EQ(ok({"help", verb.name}).out, ok({verb.name, "--help"}).out) << verb.name;
  EXPECT_EQ(ok({"help", "bench", "peak"}).out, ok({"bench", "peak", "--help"}).out);
}

TEST(Help, TheFirstScreenIsForANewcomer) {
  const std::string screen = ok({"--help"}).out;
  for (const Verb& verb : verbs()) has(screen, std::string("\n  ") + verb.name + " ");
  for (const char* part :
       {"moe train --preset tiny", "moe generate", "moe help VERB", "MODEL is a folder", ".gguf"})
    has(screen, part);
  EXPECT_EQ(screen.find("build/"), std::string::npos)
      << "the usage line names the command, not where it lies";
  EXPECT_EQ(screen.find("SUBCOMMAND"), std::string::npos);
  std::istringstream lines(screen);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const std::string version = ok({"--version"}).out;
  EXPECT_TRUE(version.starts_with("moe " MOE_VERSION "\n")) << version;
}

}  // namespace
}  // namespace moe::cli::help_test
