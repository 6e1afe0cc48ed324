// `moe bench MODEL`, and the flags that generate, score and inspect share with it, as a user meets
// them.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/json.h"
#include "evaluate/routing_record.h"
#include "support/command.h"

namespace moe::test::bench_model_test {
namespace {

class BenchModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    put(text_file(), small_text());
    const CommandResult r =
        moe_command({"train", "--data",  text_file(), "--out",          model(), "--width",
                     "16",    "--heads", "2",         "--layers",       "2",     "--experts",
                     "4",     "--top-k", "2",         "--context",      "32",    "--batch",
                     "2",     "--steps", "3",         "--expert-width", "16",    "--threads",
                     "2"});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string model() { return *folder_ / "m"; }
  static std::string text_file() { return *folder_ / "text.txt"; }
  static Json json_of(const std::vector<std::string>& words) {
    const CommandResult r = moe_command(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? Json::parse(r.out) : Json::object();
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> BenchModel::folder_;

TEST_F(BenchModel, SaysHowFastAndBesideWhat) {
  const Json j = json_of({"bench", model(), "--prompt", "20", "--tokens", "6", "--repeats", "3",
                          "--threads", "1", "--json"});
  EXPECT_EQ(j.at("dtype"), "f32");
  EXPECT_EQ(j.at("cache_dtype"), "f32");
  ASSERT_EQ(j.at("lengths").size(), 1u);
  const Json& at = j.at("lengths")[0];
  EXPECT_EQ(at.at("prompt"), 20);
  EXPECT_EQ(at.at("tokens"), 6);
  for (const auto& [part, tokens] : {std::pair("prompt", 20.0), std::pair("decode", 6.0)}) {
    const Json& speed = at.at(std::string(part) + "_tokens_per_second");
    std::vector<double> seconds = speed.at("seconds");
    ASSERT_EQ(seconds.size(), 3u);
    std::sort(seconds.begin(), seconds.end());
    EXPECT_DOUBLE_EQ(speed.at("median").get<double>(), tokens / seconds[1]);
    EXPECT_DOUBLE_EQ(speed.at("worst").get<double>(), tokens / seconds[2]);
  }
  // Embedding and head [256,16]; a layer: q, k, v, o [16,16], router [4,16], 2 of 4 experts 3 x
  // [16,16], norms.
  const Json info = json_of({"inspect", model(), "--json"});
  const int64_t active = info.at("parameters").at("active"),
                embedding = info.at("parameters").at("embedding");
  EXPECT_EQ(at.at("bytes_per_token"), 4 * (active - embedding + 16));
  // Keys and values of 16 numbers in each of 2 layers; positions 20 to 25 see 23.5 on average.
  EXPECT_DOUBLE_EQ(at.at("cache_bytes_per_token"), 23.5 * 2 * 2 * 16 * 4);
  const double decode = at.at("decode_tokens_per_second").at("median"),
               read = at.at("bytes_per_token").get<double>() +
                      at.at("cache_bytes_per_token").get<double>();
  EXPECT_NEAR(at.at("share_of_read_rate").get<double>(),
              decode * read / j.at("read_bytes_per_second").get<double>(), 1e-9);
  const double prompt = at.at("prompt_tokens_per_second").at("median");
  EXPECT_NEAR(
      at.at("share_of_peak").get<double>(),
      prompt * at.at("operations_per_token").get<double>() / j.at("peak_flops").get<double>(),
      1e-9);
  EXPECT_GT(at.at("share_of_peak"), 0);
  EXPECT_EQ(at.at("joins_per_token"), 0) << "one thread waits for no other";
  EXPECT_GT(j.at("first_token_seconds"), j.at("load_seconds"));
  EXPECT_FALSE(j.contains("hot_set"));
}

// A table of a row for each length, with as many cells in every line.
TEST_F(BenchModel, PrintsTablesByLength) {
  const CommandResult shown = moe_command(
      {"bench", model(), "--prompts", "5,20", "--tokens", "6", "--repeats", "1", "--threads", "1"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  for (const char* part : {"6 tokens", "Gop/s", "read rate", "first token", "tokens/s",
                           "| prompt of |", "| written behind |", "joins a token"})
    EXPECT_NE(shown.out.find(part), std::string::npos) << part;
  std::map<int64_t, int> rows;  // of each number of cells
  std::istringstream lines(shown.out);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("|")) ++rows[std::count(line.begin(), line.end(), '|') - 1];
  EXPECT_EQ(rows, (std::map<int64_t, int>{{6, 4}, {8, 4}})) << shown.out;
  const Json j = json_of({"bench", model(), "--prompts", "5,20", "--tokens", "6", "--repeats", "2",
                          "--threads", "1", "--json"});
  ASSERT_EQ(j.at("lengths").size(), 2u);
  const Json &few = j.at("lengths")[0], &many = j.at("lengths")[1];
  EXPECT_EQ(few.at("prompt"), 5);
  EXPECT_EQ(many.at("prompt"), 20);
  EXPECT_EQ(many.at("decode_tokens_per_second").at("seconds").size(), 2u);
  EXPECT_EQ(many.at("bytes_per_token"), few.at("bytes_per_token"));
  EXPECT_DOUBLE_EQ(many.at("cache_bytes_per_token").get<double>() -
                       few.at("cache_bytes_per_token").get<double>(),
                   15 * 2 * 2 * 16 * 4);
  expect_refused({"bench", model(), "--prompts", "5,0"}, 2, {"--prompts is 0"});
  expect_refused({"bench", model(), "--prompts", "5", "--prompt", "4"}, 2, {"give one of them"});
}

TEST_F(BenchModel, FewerExpertsReadFewerBytes) {
  const auto bytes = [&](const char* k) {
    return json_of({"bench", model(), "--prompt", "4", "--tokens", "2", "--repeats", "1", "--json",
                    "--top-k-experts", k})
        .at("lengths")[0]
        .at("bytes_per_token")
        .get<int64_t>();
  };
  EXPECT_EQ(bytes("2") - bytes("1"), 2 * 3 * 16 * 16 * 4) << "an expert of each of two layers";
}

TEST_F(BenchModel, IsToldFromTheOtherWords) {
  expect_refused({"bench"}, 2, {"peak, ops, train, layer, network or a MODEL"});
  expect_refused({"bench", "paek"}, 1, {"paek"});
  expect_refused({"bench", "--prompt", "5", "peak"}, 2, {"--prompt", "'peak'"});
  expect_refused({"bench", model(), "--prompt", "0"}, 2, {"--prompt is 0"});
  expect_refused({"bench", model(), "--dtype", "bf61"}, 2, {"--dtype", "bf16"});
  EXPECT_EQ(moe_command({"bench", "peak", "--json", "--threads", "1"}).code, 0);
  const CommandResult help = moe_command({"bench", "--help"});
  for (const char* part : {"MODEL", "peak", "--prompt", "--prompts", "--cache-dtype",
                           "--pack-memory", "--top-k-experts"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

TEST_F(BenchModel, GenerateGuessesAndWritesTheSame) {
  const std::vector<std::string> words = {
      "generate",      model(), "-p",    "line 7: the router line 7: the", "-n", "60",
      "--temperature", "0",     "--json"};
  std::vector<std::string> guessing = words;
  guessing.insert(guessing.end(), {"--prompt-lookup", "8"});
  const Json plain = json_of(words), guessed = json_of(guessing);
  EXPECT_EQ(plain.at("ids"), guessed.at("ids"));
  EXPECT_EQ(plain.at("ids").size(), 60u);
  EXPECT_EQ(plain.at("prompt_ids").size(), plain.at("prompt_tokens").get<size_t>());
  EXPECT_EQ(plain.at("proposed"), 0);
  EXPECT_GT(guessed.at("proposed"), 0);
  EXPECT_LE(guessed.at("accepted"), guessed.at("proposed"));
  expect_refused({"generate", model(), "-p", "x", "--prompt-lookup", "-1"}, 2, {"--prompt-lookup"});
  expect_refused({"generate", model(), "-p", "x", "--prompt-lookup", "65"}, 2,
                 {"--prompt-lookup", "64"});
}

TEST_F(BenchModel, TopKExpertsReachesEveryVerb) {
  const auto nats = [&](const char* k) {
    return json_of({"score", model(), "--text", text_file(), "--window", "16", "--windows", "4",
                    "--json", "--top-k-experts", k})
        .at("nats_per_token");
  };
  EXPECT_EQ(nats("0"), nats("2"));
  EXPECT_NE(nats("0"), nats("1"));
  const std::string record = *folder_ / "one.routing";
  json_of({"score", model(), "--text", text_file(), "--window", "16", "--windows", "4", "--json",
           "--top-k-experts", "1", "--record", record});
  EXPECT_EQ(RoutingRecord::open(record).info().slots, 1);
  EXPECT_EQ(RoutingRecord::open(record).window(0).at(0).cols(), 1);
  const std::vector<std::string> replay = {"score",  model(),    "--text", text_file(),
                                           "--json", "--replay", record};
  expect_refused(replay, 1, {"one.routing"});
  std::vector<std::string> same = replay;
  same.insert(same.end(), {"--top-k-experts", "1"});
  EXPECT_EQ(json_of(same).at("nats_per_token"), nats("1"));
  const Json inspected = json_of({"inspect", model(), "--text", text_file(), "--tokens", "200",
                                  "--window", "16", "--json", "--top-k-experts", "1"});
  EXPECT_EQ(inspected.at("routing").at("slots"), 1);
  for (const char* verb : {"generate", "chat"}) {
    std::vector<std::string> words = {verb, model(), "--top-k-experts", "5"};
    if (verb == std::string("generate")) words.insert(words.end(), {"-p", "x"});
    expect_refused(words, 2, {"--top-k-experts is 5", "1 to 4"});
  }
  expect_refused({"inspect", model(), "--top-k-experts", "1"}, 2, {"--top-k-experts needs a text"});
}

TEST_F(BenchModel, HotSetIsPrintedWhenAskedFor) {
  const std::vector<std::string> words = {"generate", model(), "-p", "line", "-n", "29"};
  std::vector<std::string> asked = words;
  asked.push_back("--hot-set");
  const CommandResult quiet = moe_command(words), told = moe_command(asked);
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(told.out, quiet.out);
  EXPECT_NE(told.err.find("of 8 experts"), std::string::npos) << told.err;
  asked.push_back("--json");
  const Json hot = json_of(asked).at("hot_set");
  EXPECT_EQ(hot.at("experts"), 8);
  EXPECT_EQ(hot.at("rows"), (4 + 28) * 2 + (1 + 28) * 2)
      << "the last token written is not read, and of the prompt the last layer takes one";
  expect_refused({"generate", model(), "-p", "x", "--pack-memory", "much"}, 2,
                 {"--pack-memory", "4G"});
}

}  // namespace
}  // namespace moe::test::bench_model_test
