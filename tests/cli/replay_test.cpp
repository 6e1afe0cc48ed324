// `moe score --record` and `--replay` as a user has them: what the screen says, what the file
// holds, what is refused.
#include <algorithm>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "formats/safetensors.h"
#include "support/command.h"

namespace moe::test::replay_test {
namespace {

// Two models of one shape, a model of another, and a text.
class ReplayCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    put(*made_ / "text.txt", repeated_text(40));
    train("a", {"--experts", "4", "--seed", "1"});
    train("b", {"--experts", "4", "--seed", "2"});
    train("wide", {"--experts", "8"});
    train("dense", {"--recipe", "dense"});
    ASSERT_EQ(moe_command({"score", *made_ / "a", "--text", *made_ / "text.txt", "--record",
                           *made_ / "record"})
                  .code,
              0);
  }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }
  static void train(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words =
        command_line("train --width 16 --heads 2 --layers 2 --context 16 --batch 2 --steps 1",
                     {"--data", *made_ / "text.txt", "--out", *made_ / name});
    if (name != "dense") words.insert(words.end(), {"--expert-width", "16", "--top-k", "2"});
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = moe_command(words);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  std::vector<std::string> score(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.begin(), {"score", *made_ / model, "--text", text_});
    return more;
  }
  Json reply(const std::string& model, std::vector<std::string> more) const {
    more.push_back("--json");
    const CommandResult r = moe_command(score(model, more));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? Json::parse(r.out) : Json();
  }

  static TempFolder* made_;
  TempFolder folder_;
  std::string text_ = *made_ / "text.txt", record_ = *made_ / "record";
};
TempFolder* ReplayCommand::made_ = nullptr;

TEST_F(ReplayCommand, TheModelsOwnRecordGivesItsOwnFigures) {
  const CommandResult plain = moe_command(score("a", {})),
                      recorded = moe_command(score("a", {"--record", folder_ / "r"})),
                      replayed = moe_command(score("a", {"--replay", folder_ / "r"}));
  ASSERT_EQ(replayed.code, 0) << replayed.err;
  EXPECT_TRUE(recorded.out.starts_with(plain.out));
  EXPECT_TRUE(replayed.out.starts_with(plain.out));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      fmt::format("choices of 2 layers for 1712 tokens are in {}", folder_ / "r"),
                      recorded.out);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "(recipe olmoe, dropless, f32)", replayed.out);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "100.00%", replayed.out);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "50.00%", replayed.out);
  EXPECT_EQ(slurp(folder_ / "r"), slurp(record_));  // the same command, the same bytes

  const Json json = reply("a", {"--replay", record_, "--per-token"}),
             own = reply("a", {"--per-token"});
  EXPECT_EQ(json["logprobs"], own["logprobs"]);
  EXPECT_EQ(json["replay"]["tokens_alike"], 1.0);
  EXPECT_EQ(
      json["replay"]["layers"],
      Json::parse(
          R"([{"layer":0,"agreement":1.0,"chance":0.5},{"layer":1,"agreement":1.0,"chance":0.5}])"));
}

TEST_F(ReplayCommand, AnotherModelDisagreesAndKeepsTheChoices) {
  const Json json = reply("b", {"--replay", record_, "--record", folder_ / "again", "--per-token"});
  EXPECT_NE(json["logprobs"], reply("b", {"--per-token"})["logprobs"]);
  EXPECT_EQ(json["record"], folder_ / "again");
  EXPECT_EQ(json["replay"]["file"], record_);
  EXPECT_LT(json["replay"]["layers"][0]["agreement"], 1.0);
  EXPECT_GT(json["replay"]["layers"][0]["agreement"], 0.0);
  const Safetensors first = Safetensors::open(record_),
                    again = Safetensors::open(folder_ / "again");
  const auto same = [&](const char* name) {
    const Tensor x = first.get(name), y = again.get(name);
    return std::equal(static_cast<const char*>(x.data),
                      static_cast<const char*>(x.data) + x.bytes(),
                      static_cast<const char*>(y.data));
  };
  EXPECT_TRUE(same("layers.0.experts") && same("layers.1.experts") && same("ids") &&
              same("bounds"));
  EXPECT_FALSE(same("layers.0.weights") || same("layers.1.weights"));  // those are b's
}

// Windows and routing come from the record; fewer windows may be replayed.
TEST_F(ReplayCommand, TakesWindowsAndRoutingFromTheRecord) {
  ASSERT_EQ(moe_command(score("a", {"--record", folder_ / "r", "--window", "8", "--windows", "5",
                                    "--routing", "as-trained", "--dtype", "bf16"}))
                .code,
            0);
  const Json json = reply("a", {"--replay", folder_ / "r"});
  EXPECT_EQ(json["window"], 8);
  EXPECT_EQ(json["windows"], 5);
  EXPECT_EQ(json["routing"], "as-trained");
  EXPECT_EQ(json["replay"]["dtype"], "bf16");
  EXPECT_EQ(reply("a", {"--replay", folder_ / "r", "--windows", "2"})["windows"], 2);
}

TEST_F(ReplayCommand, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::string& model, const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    expect_refused(score(model, more), code, parts);
  };
  refused("wide", {"--replay", record_}, 1, {record_, "4 experts, this one has 8"});
  refused("dense", {"--replay", record_}, 1, {record_, "2 layers that route, this one has 0"});
  refused("dense", {"--record", folder_ / "r"}, 2, {"no layer that routes"});
  for (const std::vector<std::string>& words :
       {score("dense", {}), std::vector<std::string>{"generate", *made_ / "dense", "-p", "a"},
        std::vector<std::string>{"inspect", *made_ / "dense", "--text", text_}}) {
    std::vector<std::string> routed = words;
    routed.insert(routed.end(), {"--routing", "dropless"});
    expect_refused(routed, 2, {"--routing is dropless, but the model is dense", "leave it out"});
  }
  refused("a", {"--replay", record_, "--window", "8"}, 2, {"--window is 8", record_, "16"});
  refused("a", {"--replay", folder_ / "no"}, 1, {folder_ / "no"});
  refused("a", {"--replay", text_}, 1, {text_, "safetensors"});
  refused("a", {"--replay", *made_ / "a/model.safetensors"}, 1,
          {"model.safetensors", "routing_record"});
  refused("a", {"--record", folder_ / "no/r"}, 1, {folder_ / "no/r", "create its folder"});
  put(folder_ / "other.txt", slurp(text_).replace(100, 1, 1, 'X'));
  text_ = folder_ / "other.txt";
  refused("a", {"--replay", record_}, 1, {record_, "another text: token 100 is"});
  put(text_, slurp(*made_ / "text.txt") + slurp(*made_ / "text.txt"));
  refused("a", {"--replay", record_, "--windows", "150"}, 1, {record_, "lower --windows to 107"});
  // a part of the text has a part of the windows
  put(text_, slurp(*made_ / "text.txt").substr(0, 500));
  EXPECT_EQ(moe_command(score("a", {"--replay", record_})).code, 0);
  EXPECT_EQ(folder_.entries(), std::vector<std::string>{"other.txt"});
}

// A record whose metadata was changed by hand says so in one line.
TEST_F(ReplayCommand, RefusesADamagedRecord) {
  const std::string whole = slurp(record_);
  const auto with = [&](const std::string& from, const std::string& to,
                        const std::vector<std::string>& parts) {
    std::string bytes = whole;
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    put(folder_ / "bad", bytes.replace(at, from.size(), to));
    expect_refused(score("a", {"--replay", folder_ / "bad"}),
                   bytes.find("dropped_") == std::string::npos ? 1 : 2, parts);
  };
  with("\"window\":\"16\"", "\"window\":\"x6\"", {folder_ / "bad", "\"window\""});
  with("\"routing\":\"dropless\"", "\"routing\":\"dropped_\"", {folder_ / "bad", "dropped_"});
  with("layers.1.experts", "layers.1.expertz", {folder_ / "bad", "layers.1.expertz"});
  put(folder_ / "bad", whole.substr(0, whole.size() - 100));
  expect_refused(score("a", {"--replay", folder_ / "bad"}), 1, {folder_ / "bad"});
}

}  // namespace
}  // namespace moe::test::replay_test
