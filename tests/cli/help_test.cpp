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
  expect_refused({"ls"}, 2, {"what it does is moe get"});
  expect_refused({"llama-cli", "-m", "m.gguf"}, 2, {"what it does is moe generate, moe chat"});
  expect_refused({"llama-bench"}, 2, {"what it does is moe bench"});
  expect_refused({"convert_hf_to_gguf.py", "m"}, 2, {"what it does is moe convert MODEL OUT.gguf"});
  expect_refused({"llama-nothing"}, 2, {"no verb 'llama-nothing'", "moe --help lists"});
  for (const char* model : {"m.gguf", "some/model"})
    expect_refused({"-m", model, "-p", "x"}, 2, {std::string(model) + " is no verb", "moe chat"});
  expect_refused({}, 2, {"moe --help"});
}

TEST(Help, IsWhatTheFlagPrints) {
  EXPECT_EQ(ok({"help"}).out, ok({"--help"}).out);
  EXPECT_EQ(ok({"help"}).out, ok({"-h"}).out);
  for (const Verb& verb : verbs())
    EXPECT_EQ(ok({"help", verb.name}).out, ok({verb.name, "--help"}).out) << verb.name;
  EXPECT_EQ(ok({"help", "bench", "peak"}).out, ok({"bench", "peak", "--help"}).out);
}

TEST(Help, TheTimeOfARunStandsBesideItsSteps) {
  const std::string help = ok({"train", "--help"}).out;
  const size_t steps = help.find("\n  --steps ");
  ASSERT_NE(steps, std::string::npos);
  EXPECT_TRUE(help.substr(help.find('\n', steps + 1)).starts_with("\n  --minutes "));
}

// Each is a line of its verb, and has no flag that the verb has not.
TEST(Help, ExamplesUseWhatThereIs) {
  int lines_seen = 0;
  for (const Verb& verb : verbs()) {
    const std::string help = ok({"help", verb.name}).out;
    EXPECT_EQ(help.find("First steps"), std::string::npos) << verb.name;
    has(help, "show this help\n");
    const size_t at = help.find("Examples:\n");
    if (at == std::string::npos) continue;
    std::istringstream lines(help.substr(help.find('\n', at) + 1));
    for (std::string line; std::getline(lines, line) && line.starts_with("  ");) {
      EXPECT_TRUE(line.starts_with(std::string("  moe ") + verb.name)) << line;
      EXPECT_LE(line.size(), 100u) << line;
      for (const std::string& word : command_line(line))
        if (word.starts_with("-")) {
          EXPECT_TRUE(help.find("  " + word + " ") < at || help.find("  " + word + ",--") < at)
              << line << ": " << word;
        }
      ++lines_seen;
    }
  }
  EXPECT_GT(lines_seen, 20);
}

TEST(Help, TheFirstScreenIsForANewcomer) {
  const std::string screen = ok({"--help"}).out;
  for (const Verb& verb : verbs()) has(screen, std::string("\n  ") + verb.name + " ");
  for (const char* part :
       {"moe train --preset tiny", "moe generate", "moe help VERB", "moe man | man -l -",
        "MODEL is a folder", ".gguf", "show this help, or VERB's"})
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
