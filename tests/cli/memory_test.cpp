// What does not fit is refused before it starts, by every verb, with what it needs and what to
// lower; --pack-memory and --show-memory reach them all.
#include "support/command.h"

namespace moe::test::memory_test {
namespace {

namespace fs = std::filesystem;

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string other;
    for (int i = 0; i < 200; ++i)
      other += fmt::format("{} is what two experts say of a token, added up\n", i);
    put(path("text.txt"), small_text(200));
    put(path("other.txt"), other);
    train("moe", {"--experts", "4", "--top-k", "2", "--expert-width", "16"});
    train("dense", {"--recipe", "dense", "--dense-width", "32"});
    train("dense-2", {"--recipe", "dense", "--dense-width", "32", "--seed", "2"});
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string path(const std::string& name) { return *folder_ / name; }
  static void train(const std::string& out, const std::vector<std::string>& more) {
    const CommandResult r = moe_command(training(out, more));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static std::vector<std::string> training(const std::string& out,
                                           const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",   "--data",     path("text.txt"),
                                      "--out",   path(out),    "--architecture",
                                      "llama",   "--width",    "16",
                                      "--heads", "2",          "--layers",
                                      "2",       "--context",  "32",
                                      "--steps", "2",          "--threads",
                                      "2",       "--no-report"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Verbs that run or make a model, on the small ones.
  static std::vector<std::vector<std::string>> verbs() {
    const std::string moe = path("moe"), dense = path("dense"), text = path("text.txt"),
                      other = path("other.txt");
    return {{"generate", moe, "-p", "the router", "-n", "4"},
            {"chat", moe, "-n", "4"},
            {"score", moe, "--text", text},
            {"compare", moe, moe, "--text", text, "--no-speed"},
            {"inspect", moe, "--text", text},
            {"quiz", moe, "--text", text, "--questions", "4", "--context", "4", "--words", "2"},
            {"bench", moe, "--prompt", "8", "--tokens", "2", "--repeats", "1"},
            {"prune", moe, path("new"), "--experts", "2", "--calibration", text, "--verify", other},
            {"carve", dense, path("new"), "--shared", "1", "--active", "1", "--experts", "4",
             "--calibration", text},
            {"upcycle", dense, path("new"), "--experts", "2"},
            {"merge", path("new"), "--base", dense, "--expert", dense, "--expert", path("dense-2"),
             "--gates", "random"},
            {"convert", moe, path("new.gguf"), "--quant", "q8_0"}};
  }
  static void remove_new() {
    fs::remove_all(path("new"));
    fs::remove(path("new.gguf"));
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> Memory::folder_;

TEST_F(Memory, EveryVerbEstimates) {
  for (std::vector<std::string> words : verbs()) {
    words.push_back("--show-memory");
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 0) << words[0] << ": " << r.err;
    EXPECT_NE(r.err.find("memory: "), std::string::npos) << words[0] << ": " << r.err;
    EXPECT_NE(r.err.find(" estimated: taken already "), std::string::npos)
        << words[0] << ": " << r.err;
    remove_new();
  }
}

// The process itself is larger than a mebibyte, so nothing is left.
TEST_F(Memory, EveryVerbRefusesWhatDoesNotFit) {
  for (std::vector<std::string> words : verbs()) {
    words.insert(words.end(), {"--memory", "1M"});
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 1) << words[0] << ": " << r.err;
    EXPECT_NE(r.err.find(" more of memory ("), std::string::npos) << words[0] << ": " << r.err;
    EXPECT_NE(r.err.find("0 B are left of --memory; "), std::string::npos)
        << words[0] << ": " << r.err;
    EXPECT_FALSE(fs::exists(path("new"))) << words[0];
    EXPECT_FALSE(fs::exists(path("new.gguf"))) << words[0];
  }
}

TEST_F(Memory, ABatchThatDoesNotFitIsRefusedWithOneThatDoes) {
  const CommandResult r = moe_command(training("no", {"--batch", "200000", "--memory", "400M"}));
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("activations "), std::string::npos) << r.err;
  const size_t at = r.err.find("lower --batch (now 200000) to ");
  ASSERT_NE(at, std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" and raise --accumulate (now 1) to "), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("finite"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(path("no")));
  EXPECT_EQ(moe_command({"bench", "train", "--batch", "200000", "--memory", "400M"}).code, 1);
}

TEST_F(Memory, ABudgetChangesNoFigure) {
  const std::vector<std::string> words = {"score", path("moe"), "--text", path("text.txt"),
                                          "--json"};
  std::vector<std::string> packing = words;
  packing.insert(packing.end(), {"--pack-memory", "0"});
  EXPECT_EQ(moe_command(words).out, moe_command(packing).out);
}

TEST_F(Memory, SizesAreReadAndRefusedByName) {
  const CommandResult bad =
      moe_command({"score", path("moe"), "--text", path("text.txt"), "--memory", "lots"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("--memory is \"lots\""), std::string::npos) << bad.err;
  const CommandResult none = moe_command(training("no", {"--pack-memory", "1M"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("teacher"), std::string::npos) << none.err;
  const CommandResult alone = moe_command({"inspect", path("moe"), "--pack-memory", "1M"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("--text"), std::string::npos) << alone.err;
}

}  // namespace
}  // namespace moe::test::memory_test
