// Data as a user gives it: JSON Lines, a mix, a held-out part, and tokens made beforehand.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::data_test {
namespace {

namespace fs = std::filesystem;

class Data : public ::testing::Test {
 protected:
  Data() {
    for (const char* name : {"english", "german"}) {
      std::string text;
      for (int i = 0; i < 900; ++i)
        text += fmt::format("{} line {}: the router sends each token to two experts{}", name, i,
                            i % 9 == 0 ? "\n\n" : "\n");
      put(folder_ / fmt::format("in/{}.txt", name), text);
    }
    std::string lines;
    for (int i = 0; i < 60; ++i)
      lines += R"({"messages": [{"role": "user", "content": "say )" + std::to_string(i) +
               R"("}, {"role": "assistant", "content": "it is )" + std::to_string(i) + "\"}]}\n";
    put(folder_ / "in/talk.jsonl", lines);
  }
  std::vector<std::string> train(const std::string& out,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words = {
        "train",    "--out",     folder_ / out, "--width", "16",      "--heads",   "2",
        "--layers", "2",         "--experts",   "4",       "--top-k", "2",         "--expert-width",
        "16",       "--context", "32",          "--batch", "2",       "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TempFolder folder_;
  std::string in_ = folder_ / "in";
};

TEST_F(Data, TokensTrainAsTheirTextDoes) {
  const CommandResult made = ok({"tokenize", "--data", in_, "--tokenizer", "bpe:300", "--out",
                                 folder_ / "tokens", "--hold-out", "0.3", "--json"});
  const Json reply = Json::parse(made.out);
  EXPECT_EQ(reply.at("vocab"), 300);
  EXPECT_GT(reply.at("train").at("tokens"), reply.at("valid").at("tokens"));
  EXPECT_LT(reply.at("train").at("trained"), reply.at("train").at("tokens"));
  ok(train("shards", {"--data", folder_ / "tokens/train", "--eval-data", folder_ / "tokens/valid",
                      "--steps", "10", "--mix", "talk=2", "german=0.5"}));
  ok(train("text", {"--data", in_, "--tokenizer", folder_ / "tokens/train", "--hold-out", "0.3",
                    "--steps", "10", "--mix", "german=0.5", "talk=2"}));
  EXPECT_EQ(slurp(folder_ / "shards/model.safetensors"), slurp(folder_ / "text/model.safetensors"));
  EXPECT_EQ(slurp(folder_ / "shards/tokenizer.json"),
            slurp(folder_ / "tokens/train/tokenizer.json"));
  std::istringstream shards(slurp(folder_ / "shards/metrics.jsonl")),
      text(slurp(folder_ / "text/metrics.jsonl"));
  int64_t predicted = 0;
  Json a;
  for (std::string line, other; std::getline(shards, line) && std::getline(text, other);) {
    a = Json::parse(line);
    const Json b = Json::parse(other);
    EXPECT_EQ(a.at("ce"), b.at("ce"));
    EXPECT_EQ(a.value("eval_ce", 0.0), b.value("eval_ce", 0.0));
    EXPECT_EQ(a.at("predicted"), b.at("predicted"));
    predicted += a.at("predicted").get<int64_t>();
  }
  EXPECT_EQ(a.at("step"), 10);
  EXPECT_TRUE(a.contains("eval_ce"));
  EXPECT_LT(predicted, 640) << "the talk has tokens that are not learned from";
}

// What a preset or --config says of the tokenizer is for text; one that is named beside tokens is a
// mistake.
TEST_F(Data, TokensBringTheirTokenizer) {
  ok({"tokenize", "--data", in_, "--tokenizer", "bpe:300", "--out", folder_ / "tokens"});
  put(folder_ / "run.json", R"({"tokenizer": "bpe:280", "steps": 1})");
  ok(train("out", {"--data", folder_ / "tokens", "--config", folder_ / "run.json"}));
  EXPECT_EQ(slurp(folder_ / "out/tokenizer.json"), slurp(folder_ / "tokens/tokenizer.json"));
  ok(train("out", {"--data", folder_ / "tokens", "--config", folder_ / "run.json", "--resume"}));
  expect_refused(
      train("no", {"--data", folder_ / "tokens", "--tokenizer", "bpe:280", "--steps", "1"}), 2,
      {"brings their tokenizer", "leave --tokenizer bpe:280 out"});
}

TEST_F(Data, TheScreenSaysWhatGoesWhere) {
  const CommandResult r =
      ok(train("out", {"--data", in_, "--hold-out", "0.3", "--mix", "german=2", "--steps", "1"}));
  for (const char* part : {"documents (english, german, talk)", "an epoch visits german ",
                           "% of the tokens are learned from", " are held out", "held-out ce"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in " << r.err;
  put(folder_ / "run.json", R"({"mix": {"german": 2}, "hold_out": 0.3, "steps": 1})");
  ok(train("again", {"--data", in_, "--config", folder_ / "run.json"}));
  EXPECT_EQ(slurp(folder_ / "out/model.safetensors"), slurp(folder_ / "again/model.safetensors"));
}

TEST_F(Data, TheScreenCountsInWords) {
  put(folder_ / "few/notes.txt", std::string(70, 'n'));
  put(folder_ / "few/words.txt", std::string(300, 'w'));
  const auto said = [&](const std::string& out, const std::vector<std::string>& mix) {
    std::vector<std::string> words =
        train(out, {"--data", folder_ / "few", "--steps", "1", "--no-report", "--mix"});
    words.insert(words.end(), mix.begin(), mix.end());
    return ok(words).err;
  };
  const std::string same = said("a", {"notes=1.2"}), all = said("b", {"notes=2", "words=3"});
  EXPECT_NE(same.find("an epoch visits each window once\n"), std::string::npos) << same;
  EXPECT_NE(all.find("an epoch visits notes 4 windows for 2, words 27 windows for 9\n"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("run: 1 step of"), std::string::npos) << all;
  EXPECT_NE(all.find("done: 1 step in"), std::string::npos) << all;
  const std::string made =
      ok({"tokenize", "--data", folder_ / "few/notes.txt", "--out", folder_ / "tokens"}).err;
  EXPECT_NE(made.find("70 tokens in 1 document, 1 shard,"), std::string::npos) << made;
}

TEST_F(Data, ATextWithoutAWindowIsRefusedBeforeARunIsDescribed) {
  put(folder_ / "short.txt", "too short");
  const CommandResult r = moe_command(train("short", {"--data", folder_ / "short.txt"}));
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err,
            "moe: the text has 9 tokens, at least 33 are needed for a context of 32; give more "
            "text or a smaller --context\n");
}

TEST_F(Data, RefusesWhatDoesNotGoTogether) {
  const auto refused = [&](const std::vector<std::string>& more, int code,
                           const std::vector<std::string>& parts) {
    expect_refused(train("refused", more), code, parts);
    EXPECT_FALSE(fs::exists(folder_ / "refused/model.safetensors"));
    fs::remove_all(folder_ / "refused");
  };
  refused({"--data", in_, "--mix", "germna=2"}, 2, {"germna", "\"german\""});
  refused({"--data", in_, "--mix", "german"}, 2, {"DOMAIN=WEIGHT"});
  refused({"--data", in_, "--mix", "german=1", "german=2"}, 2, {"german", "twice"});
  refused({"--data", in_, "--mix", "german=-1"}, 2, {"german=-1", "1000"});
  refused({"--data", in_, "--mix", "german=2", "--shuffle", "none"}, 2, {"--mix", "--shuffle"});
  refused({"--data", in_, "--hold-out", "1"}, 2, {"--hold-out"});
  refused({"--data", in_, "--hold-out", "0.1", "--eval-data", in_}, 2,
          {"--hold-out", "--eval-data"});
  ok({"tokenize", "--data", in_, "--out", folder_ / "tokens"});
  refused({"--data", folder_ / "tokens", "--hold-out", "0.1"}, 2, {"tokens", "moe tokenize"});
  refused({"--data", folder_ / "tokens", "--tokenizer", "bpe:300"}, 2, {"brings their tokenizer"});
  ok({"tokenize", "--data", in_, "--tokenizer", "bpe:300", "--out", folder_ / "bpe"});
  refused({"--data", folder_ / "bpe", "--tokenizer", "bytes"}, 1,
          {"another tokenizer", "bpe", "bytes"});
  refused({"--data", in_, "--eval-data", folder_ / "bpe"}, 1,
          {"another tokenizer", "--tokenizer " + folder_ / "bpe"});
  ok(train("advised", {"--data", in_, "--eval-data", folder_ / "bpe", "--tokenizer",
                       folder_ / "bpe", "--steps", "1", "--no-report"}));
  expect_refused({"tokenize", "--data", in_, "--out", folder_ / "bpe"}, 1, {"there already"});
  expect_refused({"tokenize", "--data", folder_ / "none.txt", "--out", folder_ / "no"}, 1,
                 {"none.txt"});
  expect_refused({"tokenize", "--data", in_}, 2, {"--out"});
  expect_refused({"tokenize", "--out", folder_ / "no"}, 2, {"--data"});
  put(folder_ / "empty.jsonl", "{\"text\": \"\"}\n");
  expect_refused({"tokenize", "--data", folder_ / "empty.jsonl", "--out", folder_ / "no"}, 1,
                 {"empty.jsonl", "every document is empty"});
  EXPECT_FALSE(fs::exists(folder_ / "no"));
}

TEST_F(Data, ARunKeepsItsTokenizer) {
  const auto steps = [&](const std::string& out, const char* n, const std::string& tokenizer) {
    return train(out, {"--data", in_, "--schedule", "constant", "--warmup", "0", "--no-report",
                       "--resume", "--steps", n, "--tokenizer", tokenizer});
  };
  ok(steps("bpe", "1", "bpe:300"));
  ok(steps("bytes", "1", "bytes"));
  for (const char* other : {"bytes", "bpe:299"})
    expect_refused(steps("bpe", "2", other), 2, {"cannot resume", "bpe of 300 entries", other});
  expect_refused(steps("bytes", "2", "bpe:300"), 2,
                 {"cannot resume", "bytes of 256 entries", "bpe:300"});
  ok(steps("bpe", "2", "bpe:300"));
  ok(steps("bytes", "2", "bytes"));
}

TEST_F(Data, ResumesOnTokens) {
  ok({"tokenize", "--data", in_, "--tokenizer", "bpe:300", "--out", folder_ / "tokens"});
  const std::vector<std::string> same = {
      "--data", folder_ / "tokens", "--schedule", "constant", "--warmup", "0", "--mix", "talk=3"};
  const auto steps = [&](const char* n, std::vector<std::string> more = {}) {
    more.insert(more.begin(), same.begin(), same.end());
    more.insert(more.end(), {"--steps", n});
    return more;
  };
  ok(train("whole", steps("5")));
  ok(train("parts", steps("2")));
  ok(train("parts", steps("5", {"--resume"})));
  EXPECT_EQ(slurp(folder_ / "whole/model.safetensors"), slurp(folder_ / "parts/model.safetensors"));
  ok(train("more", steps("2")));
  expect_refused(train("more", {"--data", in_, "--resume", "--schedule", "constant", "--warmup",
                                "0", "--mix", "talk=2", "--steps", "5"}),
                 2, {"--mix was"});
}

}  // namespace
}  // namespace moe::test::data_test
