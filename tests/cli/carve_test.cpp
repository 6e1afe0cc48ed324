// `moe carve` as a user runs it: what it prints, what it writes, and what it refuses in one line.
#include <map>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::carve_test {
namespace {

class Carve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    put(*made_ / "text.txt", repeated_text(100));
    for (const char* recipe : {"dense", "olmoe"}) {
      std::vector<std::string> words = command_line(
          "train --width 64 --heads 2 --layers 2 --context 32 --batch 2 --steps 3",
          {"--data", *made_ / "text.txt", "--out", *made_ / recipe, "--recipe", recipe});
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
  std::vector<std::string> words(const std::string& out,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"carve", dense(),     out, "--shared",      "1",    "--active",
                                    "2",     "--experts", "6", "--calibration", text(), "--windows",
                                    "8",     "--window",  "32"};
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
    has(r.out,
        "2 layers cut into 6 slices each, 1 always on and 2 of 5 chosen: 50.0% of the FFN works "
        "for a token");
    has(r.out, method);
    EXPECT_NEAR(perplexity(out, text()) / before, 1, 0.3);
    const CommandResult g =
        moe_command({"generate", out, "-p", "the ", "-n", "4", "--temperature", "0"});
    EXPECT_EQ(g.code, 0) << g.err;
  }
}

TEST_F(Carve, TheResultTrainsOn) {
  ASSERT_EQ(moe_command(words(folder_ / "m", {"--dtype", "f32"})).code, 0);
  const CommandResult r =
      moe_command({"train", "--from", folder_ / "m", "--data", text(), "--out", folder_ / "more",
                   "--context", "32", "--batch", "2", "--steps", "2"});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST_F(Carve, LayersThatAreNotAskedForStayDense) {
  const std::string out = folder_ / "m";
  const CommandResult r = moe_command(words(out, {"--layers", "1"}));
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.out,
      "1 of 2 layers cut into 6 slices each, 1 always on and 2 of 5 chosen: 75.0% of the FFN works "
      "for a token");
  has(r.out, "layer  active  shared mass");
  EXPECT_NEAR(perplexity(out, text()) / perplexity(dense(), text()), 1, 0.3);
  const CommandResult i = moe_command({"inspect", out, "--json"});
  ASSERT_EQ(i.code, 0) << i.err;
  EXPECT_EQ(Json::parse(i.out)["moe_layers"], 1);
}

// How many tensors of a model are stored in each type.
std::map<std::string, int64_t> tensors_by_type(const std::string& model) {
  const TempFolder folder;
  const Json rows =
      parse_json(ok({"convert", model, folder / "f32", "--dtype", "f32", "--json"}).out,
                 "moe convert")
          .at("tensors");
  std::map<std::string, int64_t> types;
  for (const Json& row : rows)
    types[row.at("from").get<std::string>()] += row.at("sources").get<int64_t>();
  return types;
}

TEST_F(Carve, WritesTheTypeOfTheSource) {
  const std::string four = folder_ / "four.gguf", halves = folder_ / "halves";
  ok({"convert", dense(), four, "--quant", "q4_1"});
  ok({"convert", dense(), halves, "--dtype", "bf16"});
  const auto carve = [&](const std::string& in, const std::string& out, const char* experts,
                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = words(folder_ / out, more);
    all[1] = in;
    for (size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i] == "--experts") all[i + 1] = experts;
    return ok(all).out;
  };
  std::string out = carve(four, "same.gguf", "3");
  has(out, "weights: q4_1, as most of " + four + " is");
  has(out, "of f32: norms, biases, routers and positions stay f32");
  EXPECT_EQ(tensors_by_type(folder_ / "same.gguf").count("bf16"), 0u);
  EXPECT_GT(tensors_by_type(folder_ / "same.gguf")["q4_1"], 10);
  out = carve(four, "narrow.gguf", "6");  // experts of width 16
  has(out, "of f16: rows are no multiple of 32");
  EXPECT_GT(tensors_by_type(folder_ / "narrow.gguf")["q4_1"], 0);
  out = carve(four, "folder", "3");
  has(out, "weights: bf16; most of " + four +
               " is q4_1, which only a GGUF file holds: an OUT that ends in .gguf keeps it");
  EXPECT_GT(tensors_by_type(folder_ / "folder")["bf16"], 10);
  has(carve(dense(), "whole", "3"), "weights: f32, as most of " + dense() + " is");
  EXPECT_EQ(tensors_by_type(folder_ / "whole").size(), 1u);
  has(carve(halves, "halved", "3"), "weights: bf16, as most of " + halves + " is");
  has(carve(four, "asked.gguf", "3", {"--quant", "q8_0"}), "weights: q8_0\n");
  has(carve(halves, "asked", "3", {"--dtype", "f32"}), "weights: f32\n");
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
    for (const char* key :
         {"shared_mass", "error", "agreement", "largest_load", "smallest_load", "seconds"})
      EXPECT_TRUE(layer.contains(key)) << key;
  EXPECT_GT(reply["parameters"].get<int64_t>(), reply["active_parameters"].get<int64_t>());
}

// What a budget buys depends on the type of the weights: in f32 the sketch is half the share that
// it is in bf16.
TEST_F(Carve, ABudgetIsOfTheTypeThatIsWritten) {
  const std::string out = folder_ / "m";
  const auto sketch = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "carve", dense(),    out,  "--method", "sketch", "--budget",      "0.08", "--windows",
        "8",     "--window", "32", "--fit",    "none",   "--calibration", text()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_refused(sketch({"--dtype", "bf16"}), 2, {"the sketch alone reads 0.104", "in bf16"});
  EXPECT_TRUE(folder_.entries().empty());
  const CommandResult r = moe_command(sketch({}));
  EXPECT_EQ(r.code, 0) << r.err;
  has(r.out, "2 of them for a token");
}

TEST_F(Carve, ReadsWhatItsMethodMarksAndDraws) {
  ok(words(folder_ / "marks", {"--method", "cmoe", "--marks", "5", "--profile", "raw"}));
  ok(words(folder_ / "draws", {"--method", "random", "--seed", "2"}));
}

TEST_F(Carve, RefusesInOneLine) {
  const std::string out = folder_ / "out";
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> all = words(out);
    for (size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i] == option) all[i + 1] = value;
    return all;
  };
  expect_refused(with("--experts", "7"), 2,
                 {"--experts 7", "96", "take one of 2, 3, 4, 6, 8, 12, 16"});
  expect_refused(with("--active", "6"), 2, {"--shared 1", "--active 6", "at most 5"});
  expect_refused(with("--active", "0"), 2, {"--active is 0"});
  expect_refused(words(out, {"--layers", "1-2"}), 2, {"--layers", "no layer 2", "0 to 1"});
  expect_refused(words(out, {"--layers", "last"}), 2, {"--layers 'last'", "every:P"});
  expect_refused(with("--windows", "1000"), 1, {"tokens", "need 32000", "--windows"});
  expect_refused(with("--calibration", "/nowhere/text.txt"), 1, {"/nowhere/text.txt"});
  expect_refused({"carve", dense(), out, "--shared", "1", "--active", "2", "--experts", "6"}, 2,
                 {"--calibration"});
  std::vector<std::string> all = words(out);
  all[1] = *made_ / "olmoe";
  expect_refused(all, 2, {"routes already"});
  all[1] = folder_ / "nothing";
  expect_refused(all, 1, {"nothing"});
  expect_refused(words(dense()), 1, {"there already", "will not be replaced"});
  expect_refused(words(out, {"--quant", "q8_0"}), 2, {"--quant", ".gguf"});
  expect_refused(words(folder_ / "out.gguf", {"--quant", "q8_0", "--dtype", "bf16"}), 2,
                 {"--quant and --dtype"});
  expect_refused(words(out, {"--dtype", "f64"}), 2, {"--dtype", "f64", "bf16"});
  expect_refused(words(out, {"--method", "cmoes"}), 2, {"cmoes", "cmoe"});
  expect_refused(words(out, {"--compute", "f64"}), 2, {"--compute", "f64", "auto"});
  expect_refused(words(out, {"--seed", "2"}), 2,
                 {"--seed", "method 'fitted' draws nothing (kmeans, random do)"});
  expect_refused(words(out, {"--marks", "5"}), 2,
                 {"--marks", "method 'fitted' marks none (cmoe, kmeans do)"});
  expect_refused(words(out, {"--method", "random", "--profile", "raw"}), 2,
                 {"--profile", "method 'random' marks none"});
  expect_refused(words(out, {"--method", "cmoe", "--seed", "2"}), 2, {"'cmoe' draws nothing"});
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
  // Where the signal came before the command listened, it ended it; where after the last layer, the
  // model is whole.
  if (r.code == 0) return;
  if (r.code == 1) has(r.err, "interrupted; nothing was written");
  EXPECT_TRUE(folder_.entries().empty());
}

}  // namespace
}  // namespace moe::test::carve_test
