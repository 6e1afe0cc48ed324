// What moe train tells on the way: alarms on runs made to fail, silence on one that is well,
// samples; and that none of it changes a bit of the weights.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::watch_test {
namespace {

class Watch : public ::testing::Test {
 protected:
  Watch() { put(text_, small_text(2000)); }
  std::vector<std::string> train(const std::string& out,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"train", "--out",   out,  "--data",  text_, "--layers",
                                      "2",     "--width", "16", "--heads", "2",   "--expert-width",
                                      "16"};
    words.insert(words.end(), {"--context", "16", "--batch", "8", "--threads", "1"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The kinds of the alarms in metrics.jsonl, which must be those on the screen.
  std::set<std::string> alarms_of(const std::string& out, const CommandResult& r,
                                  int64_t* count = nullptr) const {
    EXPECT_EQ(r.code, 0) << r.err;
    std::set<std::string> kinds;
    int64_t alarms = 0;
    for (const Json& line : lines(out + "/metrics.jsonl")) {
      if (!line.contains("alarms")) continue;
      for (const Json& alarm : line.at("alarms")) {
        ++alarms;
        kinds.insert(alarm.at("kind").get<std::string>());
        EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                            fmt::format("alarm: step {}: {}\n", line.at("step").get<int64_t>(),
                                        alarm.at("text").get<std::string>()),
                            r.err);
      }
    }
    if (count) *count = alarms;
    return kinds;
  }
  static std::vector<Json> lines(const std::string& path) {
    std::istringstream in(slurp(path));
    std::vector<Json> all;
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }

  TempFolder folder_;
  std::string text_ = folder_ / "text.txt";
};

using Kinds = std::set<std::string>;

TEST_F(Watch, ARunThatIsWellIsSilent) {
  const std::string out = folder_ / "well";
  const CommandResult r = moe_command(
      train(out, {"--experts", "8", "--top-k", "2", "--steps", "300", "--lr", "3e-3", "--json"}));
  EXPECT_EQ(alarms_of(out, r), Kinds{}) << r.err;
  EXPECT_EQ(Json::parse(r.out).at("alarms"), 0);
  EXPECT_EQ(r.err.find("alarm"), std::string::npos);
}

TEST_F(Watch, WithoutBalanceAtTooHighARateTheRouterFailsAloud) {
  const std::string out = folder_ / "collapse";
  const CommandResult r =
      moe_command(train(out, {"--recipe", "switch", "--experts", "16", "--balance", "0", "--lr",
                              "0.3", "--warmup", "5", "--steps", "200", "--json"}));
  int64_t count = 0;
  const Kinds kinds = alarms_of(out, r, &count);
  // Whether to few favourites or by experts that die, and at which step, and so whether a longer
  // warm-up would still help, is for the rounding of the machine to say; scripts/alarm_check.sh
  // judges ten seeds.
  const bool collapses =
      kinds.contains("collapsed-router") &&
      r.err.find("(even would be 6.25%): the router is collapsing") != std::string::npos;
  const bool dies =
      kinds.contains("dead-expert") &&
      r.err.find("of its 16 experts next to nothing for 20 steps") != std::string::npos;
  EXPECT_TRUE(collapses || dies) << r.err;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "try --balance 0.02", r.err);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a lower --lr (now 0.3)", r.err);
  EXPECT_EQ(Json::parse(r.out).at("alarms"), count);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, fmt::format("{} alarms on the way", count), r.err);
}

TEST_F(Watch, AnExpertThatNoTokenWantsIsNamed) {
  put(text_, std::string(5000, 'a'));  // every token takes the same three experts, on any machine
  const std::string out = folder_ / "dead";
  const CommandResult r = moe_command(train(out, {"--experts", "4", "--top-k", "3", "--balance",
                                                  "0", "--steps", "200", "--warmup", "5"}));
  int64_t count = 0;
  EXPECT_EQ(alarms_of(out, r, &count), Kinds{"dead-expert"}) << r.err;
  EXPECT_EQ(count, 2) << "one in each layer\n" << r.err;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "has sent 1 of its 4 experts next to nothing for 50 steps: expert ", r.err);
}

TEST_F(Watch, ALossThatJumpsIsSaid) {
  std::string text;  // 80 steps of one kind, then another
  while (text.size() < 80 * 128) text += "the router ";
  for (int i = 0; i < 3000; ++i) text += fmt::format("{}", i * i);
  put(text_, text);
  const std::string out = folder_ / "spike";
  const CommandResult r = moe_command(train(out, {"--experts", "4", "--top-k", "2", "--shuffle",
                                                  "none", "--lr", "0.01", "--steps", "120"}));
  EXPECT_TRUE(alarms_of(out, r).contains("loss-spike")) << r.err;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "alarm: step 83: the loss jumped to", r.err);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "try --shuffle epoch, if the text changes its kind here", r.err);
}

TEST_F(Watch, ALossThatClimbsIsSaid) {
  const std::string out = folder_ / "climb";
  const CommandResult r =
      moe_command(train(out, {"--experts", "4", "--top-k", "2", "--lr", "2", "--clip", "0",
                              "--warmup", "120", "--schedule", "constant", "--steps", "160"}));
  EXPECT_TRUE(alarms_of(out, r).contains("diverging-loss")) << r.err;
}

TEST_F(Watch, AResumedRunDoesNotRepeatAnAlarmThatIsOn) {
  const std::vector<std::string> bad = {"--recipe",   "switch",   "--experts", "16",
                                        "--balance",  "0",        "--lr",      "0.3",
                                        "--schedule", "constant", "--warmup",  "5"};
  const auto until = [&](const std::string& out, const char* steps) {
    std::vector<std::string> words = bad;
    words.insert(words.end(), {"--steps", steps, "--resume"});
    return moe_command(train(out, words));
  };
  const std::string parts = folder_ / "parts", whole = folder_ / "whole";
  until(parts, "110");
  until(parts, "150");
  until(whole, "150");
  const auto told = [&](const std::string& out) {
    std::vector<std::pair<int64_t, std::string>> all;
    for (const Json& line : lines(out + "/metrics.jsonl"))
      for (const char* key : {"alarms", "recovered"})
        if (line.contains(key))
          all.emplace_back(line.at("step").get<int64_t>(), line.at(key).dump());
    return all;
  };
  EXPECT_FALSE(told(whole).empty());
  EXPECT_EQ(told(parts), told(whole));
}

TEST_F(Watch, SamplesChangeNothingButTheScreen) {
  const std::string plain = folder_ / "plain", sampled = folder_ / "sampled";
  for (const char* dtype : {"f32", "bf16"}) {
    std::vector<std::string> words = {"--experts", "4",  "--top-k", "2",
                                      "--steps",   "20", "--dtype", dtype};
    EXPECT_EQ(moe_command(train(plain + dtype, words)).code, 0);
    words.insert(words.end(),
                 {"--sample-every", "5", "--sample-prompt", "line\n1", "--sample-tokens", "12"});
    const CommandResult r = moe_command(train(sampled + dtype, words));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(slurp(sampled + dtype + "/model.safetensors"),
              slurp(plain + dtype + "/model.safetensors"));
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, "sample: step 5: line\\n1", r.err);
    const std::vector<Json> samples = lines(sampled + dtype + "/samples.jsonl");
    ASSERT_EQ(samples.size(), 4u);
    EXPECT_EQ(samples[3].at("step"), 20);
    EXPECT_EQ(samples[3].at("prompt"), "line\n1");
    EXPECT_FALSE(samples[3].at("text").get<std::string>().empty());
  }
  const Json text = lines(sampled + "f32/samples.jsonl").back().at("text");
  const CommandResult again =
      moe_command({"generate", sampled + "f32", "-p", "line\n1", "-n", "12", "--json"});
  EXPECT_EQ(Json::parse(again.out).at("text"), text)
      << "what moe generate writes from the same weights";
}

TEST_F(Watch, AResumedRunWritesItsSamplesOnce) {
  const std::string out = folder_ / "out";
  const std::vector<std::string> words = {
      "--experts",       "4", "--top-k",        "2",      "--schedule",      "constant",
      "--warmup",        "2", "--sample-every", "2",      "--sample-prompt", "line",
      "--sample-tokens", "8", "--resume",       "--steps"};
  const auto until = [&](const char* steps) {
    std::vector<std::string> all = words;
    all.push_back(steps);
    EXPECT_EQ(moe_command(train(out, all)).code, 0);
  };
  until("5");
  const std::string kept = slurp(out + "/samples.jsonl");
  put(out + "/samples.jsonl",
      kept + "{\"step\":6,\"prompt\":\"line\",\"text\":\"of a run that was killed\"}\n{\"ste");
  until("7");
  std::vector<int64_t> steps;
  for (const Json& line : lines(out + "/samples.jsonl"))
    steps.push_back(line.at("step").get<int64_t>());
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 6}));
  EXPECT_EQ(slurp(out + "/samples.jsonl").find("killed"), std::string::npos);
}

TEST_F(Watch, SamplesThatCannotBeAreRefusedAtTheDoor) {
  const std::string out = folder_ / "refused";
  const auto refused = [&](const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    expect_refused(train(out, more), code, parts);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused({"--sample-every", "5"}, 2, {"--sample-prompt TEXT"});
  refused({"--sample-every", "-5", "--sample-prompt", "a"}, 2, {"--sample-every is -5"});
  refused({"--sample-prompt", "a"}, 2, {"--sample-prompt", "without --sample-every"});
  refused({"--sample-tokens", "9"}, 2, {"--sample-tokens", "without --sample-every"});
  refused({"--sample-routing", "threshold"}, 2, {"--sample-routing", "without --sample-every"});
  refused({"--sample-every", "5", "--sample-prompt", "a", "--sample-tokens", "0"}, 2,
          {"--sample-tokens is 0"});
  refused({"--recipe", "expert-choice", "--experts", "4", "--sample-every", "5", "--sample-prompt",
           "a"},
          2, {"expert-choice", "add --sample-routing threshold"});
  refused({"--recipe", "expert-choice-notes", "--experts", "4", "--sample-every", "5",
           "--sample-prompt", "a", "--sample-routing", "threshold"},
          2, {"expert-choice-notes", "leave --sample-every out"});
  refused({"--architecture", "gpt2", "--sample-every", "5", "--sample-prompt",
           "far more than the sixteen tokens it has positions for"},
          1, {"shorten the prompt"});
  expect_refused(command_line("train --layers 1 --width 16 --heads 2 --recipe dense --context 16 "
                              "--sample-every 5 --sample-prompt a --sample-routing threshold",
                              {"--out", out, "--data", text_}),
                 2, {"--sample-routing is of routers, and a dense model has none"});
  const CommandResult asked = moe_command(
      train(out, {"--recipe", "expert-choice", "--experts", "4", "--steps", "4", "--sample-every",
                  "2", "--sample-prompt", "a", "--sample-routing", "threshold"}));
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_EQ(lines(out + "/samples.jsonl").size(), 2u);
}

}  // namespace
}  // namespace moe::test::watch_test
