// `moe upcycle`, `moe merge` and `moe prune` as a user runs them: what they print, what they write,
// and what they refuse in one line with nothing left behind.
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"
#include "support/environment.h"
#include "support/made_hub.h"

namespace moe::test::combine_test {
namespace {

namespace fs = std::filesystem;

// Three dense models that differ by their seeds, and one with experts, made once.
class Combine : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    std::string other;
    for (int i = 0; i < 200; ++i)
      other += "what two experts say of a token is added up " + std::to_string(i) + "\n";
    put(*made_ / "text.txt", repeated_text(200));
    put(*made_ / "other.txt", other);
    for (const std::string name : {"a", "b", "c"})
      make(name, {"--recipe", "dense", "--dense-width", "48", "--seed", std::to_string(name[0])});
    make("wide", {"--recipe", "dense", "--dense-width", "64"});
    make("moe", {"--experts", "6", "--top-k", "2", "--expert-width", "32"});
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }
  static void make(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",   "--data",      *made_ / "text.txt",
                                      "--out",   *made_ / name, "--architecture",
                                      "llama",   "--width",     "32",
                                      "--heads", "2",           "--layers",
                                      "2",       "--context",   "32",
                                      "--batch", "2",           "--steps",
                                      "3",       "--no-report"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = moe_command(words);
    ASSERT_EQ(r.code, 0) << r.err;
  }

  static std::string model(const std::string& name) { return *made_ / name; }
  static std::string text() { return *made_ / "text.txt"; }
  static std::string other() { return *made_ / "other.txt"; }
  // The refused command left the folder as it was.
  void refused(const std::vector<std::string>& words, int code,
               const std::vector<std::string>& parts) {
    const std::vector<std::string> before = folder_.entries();
    expect_refused(words, code, parts);
    EXPECT_EQ(folder_.entries(), before);
  }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* Combine::made_ = nullptr;

TEST_F(Combine, UpcycledModelsComputeWhatTheDenseOneDoes) {
  const CommandResult r = ok({"upcycle", model("a"), folder_ / "up", "--experts", "4"});
  has(r.out, "4 copies");
  has(r.out, "drawn from N(0, 0.02)");
  has(r.out,
      "a model of type mixtral in f32, 2 MoE layers of 2 with 4 experts of width 48, 2 a token "
      "(recipe mixtral)");
  has(r.out, "step 0 computes what the dense model does");
  EXPECT_NEAR(perplexity(folder_ / "up", text()) / perplexity(model("a"), text()), 1, 1e-5);
  EXPECT_EQ(folder_.entries(), std::vector<std::string>{"up"});

  const CommandResult groups = ok({"upcycle", model("a"), folder_ / "groups", "--experts", "8",
                                   "--granularity", "4", "--top-k", "4", "--json"});
  const Json reply = Json::parse(groups.out);
  EXPECT_EQ(reply["expert_width"], 12);
  EXPECT_EQ(reply["down_scale"], 4.0);
  EXPECT_EQ(reply["step_0"]["equals_dense"], true);
  EXPECT_LT(reply["step_0"]["largest_difference"].get<double>(), 1e-5);
  EXPECT_GT(reply["step_0"]["largest_logit"].get<double>(), 0.1);
  EXPECT_NEAR(perplexity(folder_ / "groups", text()) / perplexity(model("a"), text()), 1, 1e-5);
}

TEST_F(Combine, ANameThatEndsInGgufIsAFile) {
  ok({"upcycle", model("a"), folder_ / "new/up.gguf", "--experts", "4"});
  ok({"prune", model("moe"), folder_ / "new/p.gguf", "--experts", "4", "--calibration", text()});
  ok({"merge", folder_ / "new/m.gguf", "--base", model("a"), "--expert", model("b"), "--expert",
      model("c"), "--gates", "random"});
  ok({"prune", model("moe"), folder_ / "p", "--experts", "4", "--calibration", text()});
  EXPECT_NEAR(perplexity(folder_ / "new/up.gguf", text()) / perplexity(model("a"), text()), 1,
              1e-5);
  EXPECT_NEAR(perplexity(folder_ / "new/p.gguf", text()) / perplexity(folder_ / "p", text()), 1,
              1e-6);
  for (const char* file : {"new/up.gguf", "new/p.gguf", "new/m.gguf"})
    EXPECT_TRUE(fs::is_regular_file(folder_ / file)) << file;
  EXPECT_EQ(folder_.entries(), (std::vector<std::string>{"new", "p"}));
}

TEST_F(Combine, UpcycleSaysWhatMakesStepZeroDiffer) {
  const CommandResult r = ok({"upcycle", model("a"), folder_ / "up", "--experts", "4", "--top-k",
                              "2", "--recipe", "olmoe", "--layers", "1"});
  has(r.out,
      "step 0 is not the dense model: the weights of recipe 'olmoe' do not add up to the same for "
      "every token");
  has(r.out, "weights of 0.5 together, so down was multiplied by 2");
  has(r.out, "1 MoE layer of 2");
  ok({"train", "--from", folder_ / "up", "--data", text(), "--out", folder_ / "on", "--context",
      "16", "--batch", "1", "--steps", "2", "--no-report"});
}

TEST_F(Combine, MergedModelsRouteByPrompts) {
  put(folder_ / "b.txt", "the router\nsends each token\n\n");
  put(folder_ / "c.json",
      R"({"positive": ["what two experts say"], "negative": ["is added up 7"]})");
  const CommandResult r = ok({"merge", folder_ / "m", "--base", model("a"), "--expert",
                              model("b") + ":" + (folder_ / "b.txt"), "--expert",
                              model("c") + ":" + (folder_ / "c.json")});
  has(r.out, "one of each model");
  has(r.out, "from the prompts");
  has(r.out, "the base's");
  has(r.out, "condition of a layer's gates");
  has(r.out, "with 2 experts of width 48");
  EXPECT_GT(perplexity(folder_ / "m", text()), 1);
  const CommandResult random =
      ok({"merge", folder_ / "r", "--base", model("a"), "--expert", model("a"), "--expert",
          model("b"), "--expert", model("c"), "--gates", "random", "--json"});
  const Json reply = Json::parse(random.out);
  EXPECT_EQ(reply["experts"], 3);
  EXPECT_EQ(reply["gates_of_layers"].size(), 2u);
}

TEST_F(Combine, MergingSaysThatItWidens) {
  const std::string half = folder_ / "half";
  ok({"convert", model("b"), half, "--dtype", "bf16"});
  const CommandResult r = ok({"merge", folder_ / "m", "--base", model("a"), "--expert", half,
                              "--expert", model("c"), "--gates", "random"});
  has(r.err, "note: the FFNs are stored in several types, " + half + " in bf16, " + model("c") +
                 " in f32: their banks are f32 and take");
  has(r.out, "one of each model, of several types: widened to f32");
}

TEST_F(Combine, PruningPrintsTheDamage) {
  const CommandResult r = ok({"prune", model("moe"), folder_ / "p", "--experts", "4",
                              "--calibration", text(), "--verify", other()});
  has(r.out, "experts that go");
  has(r.out, "4 of 6 kept");
  has(r.out, "perplexity on " + other());
  has(r.out, fmt::format("{:.4f} before, {:.4f} (", perplexity(model("moe"), other()),
                         perplexity(folder_ / "p", other())));
  for (const char* saliency : {"mean", "frequency"}) {
    const CommandResult json =
        ok({"prune", model("moe"), folder_ / saliency, "--experts", "3", "--calibration", text(),
            "--saliency", saliency, "--windows", "2", "--json"});
    const Json reply = Json::parse(json.out);
    EXPECT_EQ(reply["experts"], 3);
    ASSERT_EQ(reply["pruned_layers"].size(), 2u);
    for (const Json& layer : reply["pruned_layers"]) {
      EXPECT_EQ(layer["kept"].size(), 3u);
      int64_t tokens = 0;
      for (const Json& n : layer["tokens"]) tokens += n.get<int64_t>();
      EXPECT_EQ(tokens, 2 * 2 * 32);
    }
  }
}

// Rounding is part of the damage: what is told is what the file scores.
TEST_F(Combine, PruningScoresWhatItWrote) {
  const std::string out = folder_ / "p.gguf";
  const Json reply = Json::parse(ok({"prune", model("moe"), out, "--experts", "4", "--calibration",
                                     text(), "--verify", other(), "--quant", "q4_0", "--json"})
                                     .out);
  const Json scored =
      Json::parse(ok({"score", out, "--text", other(), "--dtype", "f32", "--json"}).out);
  EXPECT_NEAR(reply["verify"]["after"]["perplexity"].get<double>(),
              scored["perplexity"].get<double>(), 1e-6);
}

// Some steps behind the pruning, with the whole model as the teacher.
TEST_F(Combine, PruningHeals) {
  const std::string out = folder_ / "p";
  const CommandResult r = ok({"prune", model("moe"), out, "--experts", "4", "--calibration", text(),
                              "--heal", "0.05", "--verify", other(), "--json"});
  const Json reply = Json::parse(r.out);
  EXPECT_EQ(reply["out"], out);
  EXPECT_GT(reply["healed"]["steps"].get<int64_t>(), 0);
  EXPECT_EQ(reply["healed"]["tuned"], "all");
  EXPECT_NEAR(reply["verify"]["healed"]["perplexity"].get<double>(), perplexity(out, other()),
              1e-6);
  EXPECT_NEAR(reply["verify"]["after"]["perplexity"].get<double>(),
              perplexity(out + "/pruned", other()), 1e-6);
  EXPECT_NE(perplexity(out, other()), perplexity(out + "/pruned", other()));
  const Json shape = Json::parse(ok({"inspect", out, "--json"}).out);
  EXPECT_EQ(shape["experts"], 4);
  // the run is one that goes on, and it is done
  has(ok({"train", "--resume", "--out", out}).err, "is trained already");
}

TEST_F(Combine, UpcycleRefusals) {
  const std::string out = folder_ / "out";
  refused({"upcycle", model("a"), out}, 2, {"--experts"});
  refused({"upcycle", model("a"), out, "--experts", "1"}, 2, {"--experts is 1"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--top-k", "5"}, 2, {"5", "4"});
  refused({"upcycle", model("a"), out, "--experts", "10", "--granularity", "5"}, 2,
          {"does not divide", "48", "1, 2, 3, 4, 6"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--recipe", "dense"}, 2, {"dense"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--recipe", "expert-choice"}, 2,
          {"experts choose"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--layers", "every:x"}, 2,
          {"--layers", "every:x"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--layers", "0,7"}, 2, {"layer 7"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--layers", "3-1"}, 2, {"3-1"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--dtype", "q8_0"}, 2, {"q8_0", "bf16"});
  refused({"upcycle", model("a"), out, "--experts", "4", "--noise-share", "0.3"}, 2,
          {"--noise-share", "add --noise STD"});
  refused({"upcycle", model("moe"), out, "--experts", "4"}, 2, {"routes already"});
  refused({"upcycle", folder_ / "nothing", out, "--experts", "4"}, 1, {"nothing"});
  put(folder_ / "there/file", "x");
  refused({"upcycle", model("a"), folder_ / "there", "--experts", "4"}, 1,
          {"there already", "delete it"});
  put(folder_ / "there.gguf", "x");
  refused({"upcycle", model("a"), folder_ / "there.gguf", "--experts", "4"}, 1,
          {"there.gguf", "there already", "delete it"});
  refused({"upcycle", model("a"), text() + "/out", "--experts", "4"}, 1,
          {"text.txt", "choose another"});
}

TEST_F(Combine, MergeRefusals) {
  const std::string out = folder_ / "out";
  put(folder_ / "p.txt", "one\n");
  put(folder_ / "q.txt", "two\n");
  put(folder_ / "blank.txt", "\n \n");
  put(folder_ / "odd.json", R"({"positive": ["x"], "negatve": ["y"]})");
  const auto expert = [&](const char* name, const char* prompts) {
    return model(name) + ":" + (folder_ / prompts);
  };
  const auto merge = [&](std::vector<std::string> experts, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"merge", out, "--base", model("a")};
    for (const std::string& e : experts) words.insert(words.end(), {"--expert", e});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  refused(merge({expert("b", "p.txt")}), 2, {"at least two"});
  refused(merge({expert("b", "p.txt"), expert("wide", "q.txt")}), 2,
          {"wide", "intermediate_size", "64", "48"});
  refused(merge({expert("b", "p.txt"), expert("moe", "q.txt")}), 2, {"moe", "has experts already"});
  refused(merge({expert("b", "p.txt"), expert("c", "p.txt")}), 2, {"the prompts of", "the same"});
  refused(merge({expert("b", "p.txt"), expert("b", "q.txt")}), 2, {"the same FFNs"});
  refused(merge({expert("b", "p.txt"), model("c")}), 2, {"has no prompts", "--gates random"});
  refused(merge({expert("b", "p.txt"), expert("c", "none.txt")}), 1, {"none.txt"});
  refused(merge({expert("b", "p.txt"), expert("c", "blank.txt")}), 1, {"blank.txt", "no prompt"});
  Environment environment;
  environment.set("HF_HUB_CACHE", folder_ / "hub");
  const MadeRepository made(folder_ / "hub", "some", "model");
  for (const char* file : {"m-Q8_0.gguf", "m-Q4_0.gguf"})
    made.file(std::string(40, 'a'), file, "GGUF");
  refused(merge({"some/model:Q8_0", expert("b", "p.txt")}), 1, {"m-Q8_0.gguf: the version"});
  refused(merge({expert("b", "p.txt"), expert("c", "odd.json")}), 1,
          {"odd.json", "negatve", "negative"});
  refused(merge({expert("b", "p.txt"), expert("c", "q.txt")}, {"--gates", "hiden"}), 2,
          {"--gates", "hiden", "hidden"});
  refused(merge({expert("b", "p.txt"), expert("c", "q.txt")}, {"--seed", "2"}), 2,
          {"--seed is of --gates random", "hidden draws nothing"});
  refused(merge({expert("b", "p.txt"), expert("c", "q.txt")}, {"--gates", "random"}), 2,
          {"--gates random", "leave them out"});
  refused(merge({expert("b", "p.txt"), expert("c", "q.txt")}, {"--top-k", "3"}), 2, {"3", "2"});
  refused({"merge", out, "--expert", model("b")}, 2, {"--base"});
}

TEST_F(Combine, PruneRefusals) {
  const std::string out = folder_ / "out";
  const auto prune = [&](const std::string& of, const std::string& experts,
                         std::vector<std::string> more) {
    std::vector<std::string> words = {"prune", of, out, "--experts", experts};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  put(folder_ / "short.txt", "much too short for eight windows of 32 tokens");
  refused(prune(model("moe"), "6", {"--calibration", text()}), 2, {"6", "2 to 5"});
  refused(prune(model("moe"), "1", {"--calibration", text()}), 2, {"--experts is 1", "takes 2"});
  refused(prune(model("a"), "1", {"--calibration", text()}), 2, {"dense"});
  refused(prune(model("moe"), "4", {}), 2, {"--calibration"});
  refused(prune(model("moe"), "4", {"--calibration", folder_ / "none.txt"}), 1, {"none.txt"});
  refused(prune(model("moe"), "4", {"--calibration", folder_ / "short.txt"}), 1,
          {"45 tokens", "8 windows of 32 need 256", "--windows 1"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--window", "64"}), 2,
          {"--window is 64", "32"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--windows", "0"}), 2,
          {"--windows is 0"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--saliency", "freqency"}), 2,
          {"freqency", "frequency"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--verify", text()}), 2,
          {"--verify", "another"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--heal-lr", "1e-3"}), 2,
          {"--heal-lr", "add --heal MINUTES"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--heal", "-1"}), 2, {"--heal"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--heal", "1", "--dtype", "bf16"}), 2,
          {"--dtype", "--heal", "f32"});
  // what heals is looked at before anything is pruned, so nothing stands in the way of the next try
  put(folder_ / "few.txt", "ten tokens");
  put(folder_ / "texts/one.txt", slurp(other()));
  const auto heal = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--calibration", text(), "--heal", "1"});
    return prune(model("moe"), "4", more);
  };
  refused(heal({"--heal-data", folder_ / "none.txt"}), 1, {"none.txt"});
  refused(heal({"--heal-data", folder_ / "few.txt"}), 1,
          {"--heal-data", "few.txt has 10 tokens", "rows of 32"});
  refused(heal({"--heal-lr", "0"}), 2, {"--heal-lr is 0"});
  refused(heal({"--heal-lr", "inf"}), 2, {"--heal-lr is inf"});
  refused(heal({"--heal-teacher-weight", "1.5"}), 2, {"--heal-teacher-weight is 1.5"});
  refused(prune(model("moe"), "4", {"--calibration", text(), "--heal", "inf"}), 2,
          {"--heal is inf minutes"});
  refused({"prune", model("moe"), folder_ / "texts/out", "--experts", "4", "--calibration", text(),
           "--heal", "1", "--heal-data", folder_ / "texts"},
          2, {"moe: OUT", "lies in --heal-data"});
  refused({"prune", model("moe"), out + ".gguf", "--experts", "4", "--calibration", text(),
           "--heal", "1"},
          2, {"--heal", "does not end in .gguf"});
  refused(
      prune(model("moe"), "4",
            {"--calibration", text(), "--heal", "1", "--heal-data", other(), "--verify", other()}),
      2, {"--verify", "another"});
}

// Stopped while it reads the calibration text.
TEST_F(Combine, CtrlCLeavesNothing) {
  std::string text;
  for (int i = 0; i < 40000; ++i)
    text += "tokens that take a while to read " + std::to_string(i) + "\n";
  put(folder_ / "long.txt", text);
  const CommandResult r =
      moe_command({"prune", model("moe"), folder_ / "new/out", "--experts", "4", "--calibration",
                   folder_ / "long.txt", "--windows", "30000"},
                  [&](pid_t child) {
                    for (int wait = 0; wait < 3000 && !fs::exists(folder_ / "new"); ++wait)
                      usleep(2000);
                    kill(child, SIGINT);
                  });
  EXPECT_EQ(r.code, 1) << r.err;
  has(r.err, "interrupted; nothing was written to " + (folder_ / "new/out"));
  EXPECT_EQ(folder_.entries(), std::vector<std::string>{"long.txt"});
}

}  // namespace
}  // namespace moe::test::combine_test
