// Recovering a model as a user does it: moe train --from with a part of it trained, a teacher, a
// time limit; the adapter merged back by moe convert.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"
#include "support/environment.h"
#include "support/made_hub.h"

namespace moe::test::recover_test {
namespace {

class RecoverCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    put(*made_ / "text.txt", repeated_text(100));
    const CommandResult r =
        moe_command(command_line("train --recipe deepseek-v3 --width 32 --heads 2 --layers 1 "
                                 "--experts 4 --top-k 2 --expert-groups 1 --groups-kept 1 "
                                 "--expert-width 16 --context 32 --batch 2 --steps 3 --no-report",
                                 {"--data", *made_ / "text.txt", "--out", *made_ / "m"}));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }

  std::string model() const { return *made_ / "m"; }
  std::string text() const { return *made_ / "text.txt"; }
  std::vector<std::string> train(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train",     "--from", model(),   "--data", text(),
                                      "--context", "32",     "--batch", "2",      "--no-report"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* RecoverCommand::made_ = nullptr;

TEST_F(RecoverCommand, SaysWhatIsTrained) {
  const CommandResult r =
      moe_command(train({"--tune", "router", "--out", folder_ / "r", "--steps", "2", "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.err, "trained (--tune router): 128 of ");
  has(r.err, "attention none");
  has(r.err, "router all 128");
  const Json trained = Json::parse(r.out)["trained"];
  EXPECT_EQ(trained["router"], (Json{{"trained", 128}, {"total", 128}}));
  EXPECT_EQ(trained["experts"]["trained"], 0);
}

TEST_F(RecoverCommand, ADefaultRateOverAllTrainedWeightsIsNamed) {
  const std::string note =
      "note: --lr 0.001 is the default, made for drawn weights; trained ones want some 3e-5 to "
      "3e-4\n";
  const CommandResult r = ok(train({"--out", folder_ / "a", "--steps", "1"}));
  has(r.err, "trained (--tune all): ");
  has(r.err, note);
  for (const std::vector<std::string>& quiet :
       {train({"--out", folder_ / "b", "--steps", "1", "--lr", "1e-4"}),
        train({"--out", folder_ / "c", "--steps", "1", "--tune", "lora"}),
        command_line("train --recipe dense --width 16 --heads 2 --layers 1 --context 32 --steps 1 "
                     "--no-report",
                     {"--data", text(), "--out", folder_ / "d"})})
    EXPECT_EQ(ok(quiet).err.find("made for drawn weights"), std::string::npos);
}

TEST_F(RecoverCommand, AnAdapterIsMergedBack) {
  const CommandResult r = moe_command(train({"--tune", "lora+router", "--lora-rank", "2", "--lr",
                                             "0.01", "--out", folder_ / "l", "--steps", "4"}));
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.err, "attention 512 on 4.10k");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "l/model.safetensors"));
  const CommandResult merged = moe_command({"convert", model(), folder_ / "merged", "--adapter",
                                            folder_ / "l", "--verify", text(), "--json"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  const Json reply = Json::parse(merged.out);
  EXPECT_EQ(reply["adapter"]["matrices"], 4 + 3 * 4 + 3);
  EXPECT_EQ(slurp(folder_ / "merged/config.json"), slurp(model() + "/config.json"));
  const auto score = [&](const std::string& which) {
    const CommandResult s = moe_command({"score", which, "--text", text(), "--json"});
    EXPECT_EQ(s.code, 0) << s.err;
    return Json::parse(s.out)["nats_per_token"].get<double>();
  };
  // The folder of the adapter stands for the model it belongs to with it; so does what is made of
  // it.
  EXPECT_NEAR(score(folder_ / "merged"), score(folder_ / "l"), 1e-5);
  EXPECT_LT(score(folder_ / "merged"), score(model()) - 1e-3);
  const CommandResult beside =
      moe_command({"score", model(), "--adapter", folder_ / "l", "--text", text(), "--json"});
  ASSERT_EQ(beside.code, 0) << beside.err;
  EXPECT_EQ(Json::parse(beside.out)["nats_per_token"].get<double>(), score(folder_ / "l"));
  const CommandResult same = moe_command({"convert", folder_ / "l", folder_ / "same"});
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(score(folder_ / "same"), score(folder_ / "merged"));
  const CommandResult shown =
      moe_command({"convert", model(), folder_ / "shown", "--adapter", folder_ / "l"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  has(shown.out, "adapter " + (folder_ / "l") + ": added to 19 matrices");
}

// Rows of tokens beside the adapters, by name and by number, wherever an adapter goes.
TEST_F(RecoverCommand, TokensAreTrainedBeside) {
  const std::string out = folder_ / "t";
  const CommandResult r =
      moe_command(train({"--tune", "lora", "--tune-tokens", "t", "101", "--lora-rank", "2", "--lr",
                         "0.01", "--out", out, "--steps", "4", "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(Json::parse(r.out)["trained"]["embedding"], (Json{{"trained", 64}, {"total", 8192}}));
  has(r.err, "embedding 64 on 8.19k");
  EXPECT_EQ(read_json(out + "/adapter_config.json")["trainable_token_indices"]["embed_tokens"],
            (Json{101, 116}));
  const auto score = [&](const std::string& which) {
    const CommandResult s = moe_command({"score", which, "--text", text(), "--json"});
    EXPECT_EQ(s.code, 0) << s.err;
    return Json::parse(s.out)["nats_per_token"].get<double>();
  };
  const CommandResult merged = moe_command({"convert", model(), folder_ / "tm", "--adapter", out});
  ASSERT_EQ(merged.code, 0) << merged.err;
  has(merged.out, "; 4 rows of tokens replaced");
  EXPECT_NEAR(score(folder_ / "tm"), score(out), 1e-5);
  const CommandResult told =
      moe_command({"generate", out, "-p", "the", "--tokens", "4", "--temperature", "0"});
  EXPECT_EQ(told.code, 0) << told.err;
  expect_refused({"convert", out, folder_ / "t.gguf", "--adapter-only"}, 1,
                 {"rows of tokens", "merge it into the model instead"});
  const CommandResult again = moe_command({"train", "--out", out, "--resume"});
  EXPECT_EQ(again.code, 0) << again.err;
}

// Another run starts from what the adapter made; only more adapters cannot hang there.
TEST_F(RecoverCommand, ARunStartsFromAnAdapter) {
  const std::string first = folder_ / "first";
  CommandResult r = moe_command(train({"--tune", "lora", "--out", first, "--steps", "2"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const auto from_first = [&](const std::string& out, const std::string& tune) {
    return moe_command({"train", "--from", first, "--data", text(), "--out", out, "--tune", tune,
                        "--steps", "1", "--batch", "2", "--context", "16", "--no-report"});
  };
  r = from_first(folder_ / "whole", "router");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "whole/model.safetensors"));
  r = from_first(folder_ / "more", "lora");
  EXPECT_EQ(r.code, 1);
  has(r.err, "has an adapter already; merge that one first");
  std::filesystem::rename(first + "/adapter_config.json", first + "/kept");
  put(first + "/adapter_config.json", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16,
                                          "base_model_name_or_path": "nowhere/at-all"})");
  expect_refused({"score", first, "--text", text()}, 1,
                 {"the model it belongs to, nowhere/at-all, is not there",
                  "moe generate MODEL --adapter " + first});
  put(first + "/adapter_config.json",
      R"({"peft_type": "LORA", "base_model_name_or_path": ")" + first + "\"}");
  expect_refused({"score", first, "--text", text()}, 1, {"is an adapter itself"});
}

// The choice is measured once: a run that goes on has it from the checkpoint and ends with the same
// bits.
TEST_F(RecoverCommand, HotExperts) {
  const auto words = [&](const std::string& out, const std::string& steps) {
    return train({"--tune", "experts:hot", "--hot-share", "0.5", "--lora-rank", "2", "--lr", "0.01",
                  "--schedule", "constant", "--warmup", "0", "--steps", steps, "--out",
                  folder_ / out, "--json"});
  };
  const CommandResult whole = moe_command(words("whole", "4")),
                      half = moe_command(words("half", "2"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  has(whole.err, "hot experts: ");
  has(whole.err, "of 4, ");
  has(whole.err, "% of the rows of this text, the others stay as they are");
  has(whole.err, "attention none");
  const Json hot = Json::parse(whole.out)["hot"];
  ASSERT_EQ(hot.size(), 1u);
  EXPECT_GE(hot[0]["rows"].get<double>(), 0.5);
  const size_t count = hot[0]["experts"].size();
  ASSERT_LT(count, 4u);
  EXPECT_EQ(Json::parse(whole.out)["trained"]["experts"]["trained"], count * 2 * 3 * (32 + 16));
  const CommandResult resumed =
      moe_command({"train", "--resume", "--out", folder_ / "half", "--steps", "4", "--no-report"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  has(resumed.err, "hot experts: ");
  EXPECT_EQ(slurp(folder_ / "half/adapter_model.safetensors"),
            slurp(folder_ / "whole/adapter_model.safetensors"));
  // read, written as llama.cpp has it, and merged
  const auto score = [&](const std::vector<std::string>& which) {
    std::vector<std::string> command = {"score"};
    command.insert(command.end(), which.begin(), which.end());
    command.insert(command.end(), {"--text", text(), "--json"});
    const CommandResult s = moe_command(command);
    EXPECT_EQ(s.code, 0) << s.err;
    return Json::parse(s.out)["nats_per_token"].get<double>();
  };
  const double tuned = score({folder_ / "whole"});
  EXPECT_LT(tuned, score({model()}) - 1e-4);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"convert", folder_ / "whole", folder_ / "merged"},
        {"convert", folder_ / "whole", folder_ / "a.gguf", "--adapter-only"}}) {
    const CommandResult r = moe_command(command);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  EXPECT_NEAR(score({folder_ / "merged"}), tuned, 1e-5);
  EXPECT_NEAR(score({model(), "--adapter", folder_ / "a.gguf"}), tuned, 1e-5);
  expect_refused(train({"--out", folder_ / "no", "--tune", "lora", "--hot-share", "0.3"}), 2,
                 {"--hot-share is of --tune experts:hot"});
  const auto estimated = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"inspect", model(), "--lora-rank", "2", "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const CommandResult r = moe_command(command);
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out)["bytes"]["adapters"]["adapters"].get<int64_t>();
  };
  EXPECT_EQ(estimated({"--hot-share", "0.5"}), 2 * 4 * 2 * 2 * 3 * (32 + 16));
  EXPECT_GT(estimated({}), estimated({"--hot-share", "0.5"}));
}

TEST_F(RecoverCommand, ATeacherAndALimitOfTime) {
  const std::string out = folder_ / "t";
  const auto words = train(
      {"--teacher", model(), "--teacher-weight", "1", "--minutes", "0.02", "--out", out, "--json"});
  const CommandResult r = moe_command(words);
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.err, "--minutes 0.02: there is time for ");
  has(r.err, "teacher: " + model() + "; the loss is 0 ce + 1 kl");
  const Json reply = Json::parse(r.out);
  EXPECT_GE(reply["step"].get<int64_t>(), 1);
  EXPECT_LT(reply["kl"].get<double>(), 0.1);
  // The number of steps belongs to the run; the same command goes on with it, here by being done.
  auto again = words;
  again.push_back("--resume");
  const CommandResult done = moe_command(again);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(Json::parse(done.out)["step"], reply["step"]);
}

// A name is looked up when the run begins, so that going on needs no more than the folder.
TEST_F(RecoverCommand, ATeacherByItsName) {
  Environment environment;
  environment.set("HF_HUB_CACHE", folder_ / "hub");
  MadeRepository(folder_ / "hub", "some", "teacher").files(std::string(40, 'a'), model());
  const std::string out = folder_ / "t";
  ok(train({"--teacher", "some/teacher", "--out", out, "--steps", "2", "--schedule", "constant"}));
  ok({"train", "--resume", "--out", out, "--steps", "3", "--no-report"});
}

// The same command goes on; other weights and another model do not pass unseen, done or not.
TEST_F(RecoverCommand, ARunKeepsToTheWeightsThatItBeganWith) {
  const std::string out = folder_ / "o", other = folder_ / "other";
  std::vector<std::string> words = train({"--out", out, "--steps", "2", "--schedule", "constant"});
  ASSERT_EQ(moe_command(words).code, 0);
  std::filesystem::copy(model(), other);
  words.push_back("--resume");
  has(ok(words).err, "trained already");
  for (const char* steps : {"2", "3"}) {
    const auto resume = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = {"train", "--resume", "--out", out, "--steps", steps};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    expect_refused(resume({"--recipe", "switch"}), 2,
                   {out + " began with " + model(), "--recipe has no meaning beside it"});
    expect_refused(resume({"--from", other}), 2,
                   {"it began with " + model() + ", not with " + other});
  }
}

TEST_F(RecoverCommand, RefusesWhatHasNoMeaning) {
  const std::string out = folder_ / "x";
  expect_refused({"train", "--data", text(), "--out", out, "--tune", "lora"}, 2,
                 {"--tune lora", "--from"});
  expect_refused(train({"--out", out, "--tune", "loar"}), 2, {"--tune", "lora"});
  expect_refused(train({"--out", out, "--lora-rank", "4"}), 2, {"--lora-rank", "--tune lora"});
  expect_refused(train({"--out", out, "--tune", "lora", "--lora-rank", "0"}), 2,
                 {"--lora-rank is 0"});
  expect_refused(train({"--out", out, "--tune", "router", "--tune-tokens", "t"}), 2,
                 {"--tune-tokens is of adapters"});
  expect_refused(train({"--out", out, "--tune", "lora", "--tune-tokens", "<|im_strat|>"}), 2,
                 {"--tune-tokens <|im_strat|>: the tokenizer has no token '<|im_strat|>'"});
  expect_refused(train({"--out", out, "--tune", "lora", "--tune-tokens", "300"}), 2,
                 {"--tune-tokens 300: the model's vocabulary has 256 tokens"});
  expect_refused(train({"--out", out, "--tune", "lora", "--tune-tokens", "t", "116"}), 2,
                 {"--tune-tokens: token 116 is named twice"});
  expect_refused(train({"--out", out, "--teacher-weight", "0.5"}), 2,
                 {"--teacher-weight", "--teacher"});
  expect_refused(train({"--out", out, "--teacher", model(), "--teacher-weight", "0"}), 2,
                 {"--teacher-weight is 0"});
  expect_refused(train({"--out", out, "--minutes", "1", "--steps", "5"}), 2,
                 {"--minutes", "--steps"});
  expect_refused(train({"--out", out, "--minutes", "0"}), 2, {"--minutes is 0"});
  expect_refused(train({"--out", out, "--teacher", folder_ / "nowhere"}), 1,
                 {"nowhere", "there is no such folder"});
  const CommandResult other =
      moe_command({"train",     "--data",  text(),    "--out",       folder_ / "bpe",
                   "--width",   "16",      "--heads", "2",           "--layers",
                   "1",         "--steps", "1",       "--tokenizer", "bpe:280",
                   "--context", "16",      "--batch", "1",           "--no-report"});
  ASSERT_EQ(other.code, 0) << other.err;
  expect_refused(train({"--out", out, "--teacher", folder_ / "bpe"}), 1,
                 {"--teacher", "its vocabulary is", "must predict the same tokens"});
  EXPECT_FALSE(std::filesystem::exists(out));
  expect_refused({"convert", model(), out, "--adapter", model()}, 1,
                 {"there is no adapter_config.json"});
  for (const char* verb : {"generate -p x", "chat", "serve --port 0"})
    expect_refused(command_line(verb, {model(), "--adapter", folder_ / "nowhere"}), 1,
                   {"nowhere: there is no adapter_config.json"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace moe::test::recover_test
