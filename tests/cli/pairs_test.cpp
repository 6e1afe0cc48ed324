// Preference pairs as a user trains on them: what is said, that a killed run goes on to the same
// bits, and one clear line for what does not go together.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::pairs_test {
namespace {

class PairsCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    std::string talk, pairs, lists;
    for (int i = 0; i < 60; ++i) {
      const char* topic = i % 2 == 0 ? "router" : "token";
      talk += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "{} {}"}}, {{"role": "assistant", "content": "yes {}"}}]}})"
          "\n",
          topic, i, i % 3);
      pairs += fmt::format(R"({{"prompt": "{} {}:", "chosen": " yes {}", "rejected": " no{}"}})"
                           "\n",
                           topic, i, i % 3, std::string(i == 7 || i == 8 ? 150 : 1, '.'));
      lists += fmt::format(
          R"({{"prompt": [{{"role": "user", "content": "{} {}"}}], "chosen": [{{"role": "assistant", "content": "yes"}}], "rejected": [{{"role": "assistant", "content": "no"}}]}})"
          "\n",
          topic, i);
    }
    put(*made_ / "talk.jsonl", talk);
    put(*made_ / "text.txt", small_text());
    put(*made_ / "pairs.jsonl", pairs);
    put(*made_ / "lists.jsonl", lists);
    for (const char* of : {"talk.jsonl", "text.txt"})
      ok(command_line(
          "train --recipe olmoe --width 16 --heads 2 --layers 1 --experts 4 --top-k 2 "
          "--expert-width 16 --context 128 --batch 2 --steps 2 --threads 1 --no-report",
          {"--data", *made_ / of, "--out", *made_ / (std::string("of-") + of)}));
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }

  static std::string at(const std::string& name) { return *made_ / name; }
  std::vector<std::string> train(const std::string& from, const std::string& data,
                                 const std::string& out,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words =
        command_line("train --context 128 --threads 1 --no-report --lr 0.01",
                     {"--from", at(from), "--data", at(data), "--out", folder_ / out});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static TempFolder* made_;
  TempFolder folder_;
};
TempFolder* PairsCommand::made_ = nullptr;

TEST_F(PairsCommand, SaysWhatItReadsAndHowFarItCame) {
  const CommandResult r = ok(train("of-text.txt", "pairs.jsonl", "out",
                                   {"--tune", "lora", "--dpo-beta", "0.5", "--steps", "30",
                                    "--batch", "4", "--hold-out", "0.2", "--json"}));
  has(r.err, "preference pairs (chosen, rejected), held to the model as the run starts from it");
  has(r.err, "data: 1 pair left out, as a text has more than 129 tokens (--context 128)");
  has(r.err, "data: 1 held-out pair left out");
  has(r.err, "run: 30 steps of 4 pairs, 120 in all");
  has(r.err, "beta 0.5");
  has(r.err, "step 30: held-out dpo 0.");
  const Json reply = Json::parse(r.out);
  EXPECT_GT(reply.at("margin"), 0.1);
  EXPECT_GT(reply.at("accuracy"), 0.7);
  EXPECT_LT(reply.at("eval_dpo"), 0.69);
  EXPECT_GT(reply.at("eval_margin"), 0);
  EXPECT_TRUE(reply.at("best").contains("eval_dpo"));
  const std::string metrics = slurp(folder_ / "out/metrics.jsonl");
  const Json first = Json::parse(metrics.substr(0, metrics.find('\n')));
  EXPECT_NEAR(first.at("dpo").get<double>(), std::log(2), 1e-9);
  EXPECT_EQ(first.at("margin"), 0);
  EXPECT_FALSE(first.contains("kl"));
  ok({"generate", folder_ / "out", "-p", "router 1:", "-n", "4"});
}

TEST_F(PairsCommand, ListsAreWrittenByTheModelsTemplate) {
  const std::vector<std::string> more = {"--steps", "2",         "--batch",
                                         "2",       "--teacher", at("of-talk.jsonl")};
  const CommandResult r = ok(train("of-talk.jsonl", "lists.jsonl", "out", more));
  has(r.err, "held to " + at("of-talk.jsonl"));
  has(r.err, "data: 60 preference pairs");
  expect_refused(train("of-text.txt", "lists.jsonl", "no"), 1,
                 {"lists.jsonl: line 1", "no chat template", "strings"});
  for (const char* data : {"pairs.jsonl", "lists.jsonl"})
    expect_refused({"score", at("of-text.txt"), "--text", at(data)}, 1,
                   {std::string(data) + " holds preference pairs, which only --data and "});
}

// SIGKILL in the midst of the steps, whatever is trained.
TEST_F(PairsCommand, AKilledRunGoesOnToTheSameBits) {
  for (const char* tune : {"all", "lora"}) {
    SCOPED_TRACE(tune);
    const std::string name = tune;
    const std::vector<std::string> more = {"--tune",     tune,  "--steps",      "300",
                                           "--hold-out", "0.2", "--save-every", "10"};
    ok(train("of-text.txt", "pairs.jsonl", name + "-whole", more));
    const std::string out = folder_ / (name + "-parts");
    const CommandResult killed =
        moe_command(train("of-text.txt", "pairs.jsonl", name + "-parts", more), [&](pid_t child) {
          for (int wait = 0; wait < 10000 && slurp(out + "/metrics.jsonl").find("\"step\":25,") ==
                                                 std::string::npos;
               ++wait)
            usleep(1000);
          kill(child, SIGKILL);
        });
    ASSERT_EQ(killed.code, 128 + SIGKILL);
    ok({"train", "--resume", "--out", out, "--no-report"});
    const std::string result = name == "all" ? "/model.safetensors" : "/adapter_model.safetensors";
    EXPECT_TRUE(slurp(folder_ / (name + "-whole") + result) == slurp(out + result));
  }
}

TEST_F(PairsCommand, RefusesWhatDoesNotGoTogether) {
  expect_refused({"train", "--data", at("pairs.jsonl"), "--out", folder_ / "x", "--context", "64"},
                 2, {"preference pairs", "--from"});
  expect_refused(train("of-text.txt", "text.txt", "x", {"--dpo-beta", "0.2"}), 2,
                 {"--dpo-beta", "--data holds none"});
  expect_refused(train("of-text.txt", "pairs.jsonl", "x", {"--dpo-beta", "0"}), 2,
                 {"--dpo-beta is 0"});
  expect_refused(train("of-text.txt", "pairs.jsonl", "x",
                       {"--teacher", at("of-text.txt"), "--teacher-weight", "0.5"}),
                 2, {"--teacher-weight", "--dpo-beta"});
  expect_refused(train("of-text.txt", "pairs.jsonl", "x", {"--mix", "pairs=2"}), 2,
                 {"--mix", "preference pairs"});
  expect_refused(train("of-text.txt", "pairs.jsonl", "x", {"--eval-data", at("text.txt")}), 1,
                 {"held-out text is not", "--eval-data"});
  expect_refused(train("of-text.txt", "pairs.jsonl", "x", {"--data", at("text.txt")}), 1,
                 {"pairs.jsonl", "text.txt", "pairs only or none"});
  expect_refused({"tokenize", "--data", at("pairs.jsonl"), "--out", folder_ / "t"}, 1,
                 {"pairs.jsonl holds preference pairs"});
  expect_refused({"train", "--from", at("of-text.txt"), "--data", at("pairs.jsonl"), "--out",
                  folder_ / "x", "--context", "8"},
                 1,
                 {"each of the 60 preference pairs has a text of more than 9 tokens", "--context"});
  put(folder_ / "bad.jsonl", R"({"prompt": "a", "chosen": "b"})");
  expect_refused({"train", "--from", at("of-text.txt"), "--data", folder_ / "bad.jsonl", "--out",
                  folder_ / "x"},
                 1, {"bad.jsonl: line 1: \"rejected\" is missing"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
}

// A pair is two rows.
TEST_F(PairsCommand, TheMemoryEstimatedIsThatOfTwoRowsAPair) {
  const auto estimated = [&](const std::string& data, const std::string& batch) {
    const CommandResult r = ok(train("of-text.txt", data, data + batch,
                                     {"--batch", batch, "--steps", "1", "--show-memory"}));
    const size_t at = r.err.find("activations "), end = r.err.find('\n', at);
    EXPECT_NE(at, std::string::npos) << r.err;
    return at == std::string::npos ? "" : r.err.substr(at, end - at);
  };
  const std::string two = estimated("pairs.jsonl", "2");
  EXPECT_EQ(two, estimated("text.txt", "4"));
  EXPECT_NE(two, estimated("text.txt", "2"));
}

}  // namespace
}  // namespace moe::test::pairs_test
