// `moe carve` as a user runs it: what it prints, what it writes, and what it refuses in one line.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test {
namespace {

class Carve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    std::string text;
    for (int i = 0; i < 100; ++i) text += "the router sends each token to two experts\n";
    put(*made_ / "text.txt", text);
    for (const char* recipe : {"dense", "olmoe"}) {
      std::vector<std::string> words = {"train",   "--data", *made_ / "text.txt", "--out", *made_ / recipe, "--recipe", recipe,    "--width", "64",
                                        "--heads", "2",      "--layers",          "2",     "--context",     "32",       "--batch", "2",       "--steps",
                                        "3"};
      if (std::string(recipe) == "dense") words.insert(words.end(), {"--dense-width", "96"});
      const CommandResult r = moe_command(words);
      ASSERT_EQ(r.code, 0) << r.err;
    }
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }

  std::string dense() const { return *made_ / "dense"; }
  std::string text() const { return *made_ / "text.txt"; }
  std::vector<std::string> words(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"carve", dense(),         out,    "--shared",  "1", "--active", "2", "--experts",
                                    "6",     "--calibration", text(), "--windows", "8", "--window", "32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* Carve::made_ = nullptr;

TEST_F(Carve, EveryMethodMakesAModelThatScoresAndGenerates) {
  const double before = perplexity(dense(), text());
  for (const char* method : {"fitted", "cmoe", "kmeans", "random"}) {
    SCOPED_TRACE(method);
    const std::string out = folder_ / method;
    const CommandResult r = moe_command(words(out, {"--method", method}));
    ASSERT_EQ(r.code, 0) << r.err;
    has(r.out, "2 layers cut into 6 slices each, 1 always on and 2 of 5 chosen: 50.0% of the FFN works for a token");
    has(r.out, method);
    EXPECT_NEAR(perplexity(out, text()) / before, 1, 0.3);
    const CommandResult g = moe_command({"generate", out, "-p", "the ", "-n", "4", "--temperature", "0"});
    EXPECT_EQ(g.code, 0) << g.err;
  }
}

TEST_F(Carve, TheResultTrainsOn) {
  ASSERT_EQ(moe_command(words(folder_ / "m", {"--dtype", "f32"})).code, 0);
  const CommandResult r =
      moe_command({"train", "--from", folder_ / "m", "--data", text(), "--out", folder_ / "more", "--context", "32", "--batch", "2", "--steps", "2"});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(Carve, LayersThatAreNotAskedForStayDense) {
  const std::string out = folder_ / "m";
  const CommandResult r = moe_command(words(out, {"--layers", "1"}));
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.out, "1 of 2 layers cut into 6 slices each, 1 always on and 2 of 5 chosen: 75.0% of the FFN works for a token");
  has(r.out, "layer  active  shared mass");
  EXPECT_NEAR(perplexity(out, text()) / perplexity(dense(), text()), 1, 0.3);
  const CommandResult i = moe_command({"inspect", out, "--json"});
  ASSERT_EQ(i.code, 0) << i.err;
  EXPECT_EQ(Json::parse(i.out)["moe_layers"], 1);
}

TEST_F(Carve, JsonHoldsEveryLayer) {
  const CommandResult r = moe_command(words(folder_ / "m", {"--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json reply = Json::parse(r.out);
  EXPECT_EQ(reply["method"], "fitted");
  EXPECT_EQ(reply["tokens"], 256);
  EXPECT_DOUBLE_EQ(reply["ffn_active"].get<double>(), 0.5);
  ASSERT_EQ(reply["layers"].size(), 2u);
  for (const Json& layer : reply["layers"])
    for (const char* key : {"shared_mass", "error", "agreement", "largest_load", "smallest_load", "seconds"}) EXPECT_TRUE(layer.contains(key)) << key;
  EXPECT_GT(reply["parameters"].get<int64_t>(), reply["active_parameters"].get<int64_t>());
}

TEST_F(Carve, RefusesInOneLine) {
  const std::string out = folder_ / "out";
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> all = words(out);
    for (size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i] == option) all[i + 1] = value;
    return all;
  };
  expect_refused(with("--experts", "7"), 2, {"--experts 7", "96", "take one of 2, 3, 4, 6, 8, 12, 16"});
  expect_refused(with("--active", "6"), 2, {"--shared 1", "--active 6", "at most 5"});
  expect_refused(with("--active", "0"), 2, {"--active is 0"});
  expect_refused(words(out, {"--layers", "1-2"}), 2, {"--layers", "no layer 2", "0 to 1"});
  expect_refused(words(out, {"--layers", "last"}), 2, {"--layers 'last'", "every:P"});
  expect_refused(with("--windows", "1000"), 1, {"tokens", "need 32000", "--windows"});
  expect_refused(with("--calibration", "/nowhere/text.txt"), 1, {"/nowhere/text.txt"});
  expect_refused({"carve", dense(), out, "--shared", "1", "--active", "2", "--experts", "6"}, 2, {"--calibration"});
  std::vector<std::string> all = words(out);
  all[1] = *made_ / "olmoe";
  expect_refused(all, 2, {"routes already"});
  all[1] = folder_ / "nothing";
  expect_refused(all, 1, {"nothing"});
  expect_refused(words(dense()), 1, {"there already", "will not be replaced"});
  expect_refused(words(out, {"--quant", "q8_0"}), 2, {"--quant", ".gguf"});
  expect_refused(words(out, {"--method", "cmoes"}), 2, {"cmoes", "cmoe"});
  expect_refused(words(out, {"--compute", "f64"}), 2, {"--compute", "f64", "auto"});
  EXPECT_TRUE(folder_.entries().empty());
}

TEST_F(Carve, AnInterruptLeavesNothing) {
  const CommandResult r = moe_command(words(folder_ / "m"), [](pid_t pid) {
    for (int i = 0; i < 40; ++i) {
      usleep(50000);
      kill(pid, SIGINT);
      break;
    }
  });
  // Where the signal came before the command listened, it ended it; where after the last layer, the model is whole.
  if (r.code == 0) return;
  if (r.code == 1) has(r.err, "interrupted; nothing was written");
  EXPECT_TRUE(folder_.entries().empty());
}

}  // namespace
}  // namespace moe::test
