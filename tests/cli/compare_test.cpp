// `moe compare` as a user meets it: a model beside itself with fewer experts, beside its quantised
// twin, beside what does not fit.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::compare_test {
namespace {

class Compare : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    put(text_file(), small_text(120));
    train(model(), {"--layers", "2"});
    train(deeper(), {"--layers", "3", "--recipe", "dense"});
    const CommandResult r = moe_command({"convert", model(), quantised(), "--quant", "q4_0"});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static void train(const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> words = {"train", "--data",  text_file(), "--out",     out,  "--width",
                                      "32",    "--heads", "2",         "--context", "32", "--batch",
                                      "2",     "--steps", "12",        "--threads", "2"};
    words.insert(words.end(), more.begin(), more.end());
    if (more.size() == 2)
      words.insert(words.end(), {"--experts", "4", "--top-k", "2", "--expert-width", "32"});
    const CommandResult r = moe_command(words);
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static std::string model() { return *folder_ / "m"; }
  static std::string deeper() { return *folder_ / "deeper"; }
  static std::string quantised() { return *folder_ / "m.gguf"; }
  static std::string text_file() { return *folder_ / "text.txt"; }
  static std::vector<std::string> words(const std::string& before, const std::string& after,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {"compare",   before,    after, "--text",
                                    text_file(), "--dtype", "f32"};
    if (std::find(more.begin(), more.end(), "--no-speed") == more.end())
      all.insert(all.end(), {"--prompt", "8", "--tokens", "3", "--repeats", "3"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static Json json_of(const std::vector<std::string>& all) {
    const CommandResult r = moe_command(all);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? Json::parse(r.out) : Json::object();
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> Compare::folder_;

// Each against the same one, in one table and one drawing.
TEST_F(Compare, SeveralModelsStandBesideTheFirst) {
  const std::string page = *folder_ / "ways.html";
  const std::vector<std::string> ways = {"--also", deeper(), model(), "--windows", "4"};
  std::vector<std::string> asked = words(model(), quantised(), ways);
  const std::string charts = *folder_ / "charts";
  asked.insert(asked.end(), {"--html", page, "--pictures", charts, "--json"});
  const Json j = json_of(asked), &points = j.at("frontier");
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points.at(0).at("name"), "m.gguf");
  EXPECT_EQ(points.at(0).at("is_written"), true);
  EXPECT_EQ(points.at(0).at("perplexity"), j.at("after").at("perplexity"));
  EXPECT_EQ(points.at(1).at("name"), "deeper");
  EXPECT_GT(points.at(1).at("kl"), 0);
  EXPECT_EQ(points.at(2).at("kl"), 0);
  EXPECT_EQ(points.at(2).at("perplexity"), j.at("before").at("perplexity"));
  EXPECT_EQ(points.at(3).at("is_before"), true);
  EXPECT_TRUE(points.at(0).at("ffn_share").is_null());
  EXPECT_GT(points.at(1).at("decode_rate"), 0);
  const std::string html = slurp(page);
  EXPECT_NE(html.find("The models in numbers"), std::string::npos);
  EXPECT_NE(html.find("deeper"), std::string::npos);
  for (const char* name : {"frontier.svg", "prompt-frontier.svg", "speed.svg"})
    EXPECT_TRUE(slurp(charts + "/" + name).starts_with("<svg")) << name;
  const CommandResult shown = moe_command(words(model(), quantised(), ways));
  EXPECT_NE(shown.out.find("* m.gguf"), std::string::npos) << shown.out;
  EXPECT_EQ(shown.out.find("FFN   perplexity"), std::string::npos)
      << "no column of shares: " << shown.out;
  EXPECT_NE(slurp(charts + "/frontier.svg").find(">m<"), std::string::npos);

  asked = words(model(), quantised(), {"--also", *folder_ / "absent"});
  EXPECT_NE(moe_command(asked).code, 0);
  asked = words(model(), quantised(), {"--also", model(), "--no-speed"});
  const CommandResult refused = moe_command(asked);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--also"), std::string::npos) << refused.err;
}

TEST_F(Compare, SaysWhatQuantisingCost) {
  const Json j = json_of(words(model(), quantised(), {"--json", "--windows", "20"}));
  EXPECT_EQ(j.at("windows"), 20);
  EXPECT_EQ(j.at("window"), 32);
  for (const char* side : {"before", "after"}) {
    const std::string path = side == std::string("before") ? model() : quantised();
    const Json score = json_of(
        {"score", path, "--text", text_file(), "--windows", "20", "--dtype", "f32", "--json"});
    EXPECT_DOUBLE_EQ(j.at(side).at("perplexity").get<double>(),
                     score.at("perplexity").get<double>())
        << side;
  }
  EXPECT_GT(j.at("kl"), 0);
  EXPECT_LT(j.at("kl"), 1);
  EXPECT_EQ(j.at("same_choices").size(), 2u);
  EXPECT_EQ(j.at("drift").size(), 2u);
  EXPECT_LT(j.at("after").at("weight_bytes"), j.at("before").at("weight_bytes"));
  EXPECT_EQ(j.at("before").at("decode_seconds").size(), 3u);
  std::vector<double> ratios;
  for (size_t i = 0; i < 3; ++i)
    ratios.push_back(j.at("before").at("decode_seconds").at(i).get<double>() /
                     j.at("after").at("decode_seconds").at(i).get<double>());
  std::sort(ratios.begin(), ratios.end());
  EXPECT_DOUBLE_EQ(j.at("speed_up").at("decode").get<double>(), ratios[1]);
}

TEST_F(Compare, ShowsQualityAndSpeedSideBySide) {
  const CommandResult r = moe_command(words(model(), quantised(), {}));
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* part : {"before", "after", "perplexity", "decode, tokens a second", "KL",
                           "choices kept", "MaxVio", "weights q4_0"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  const CommandResult quiet = moe_command(words(model(), quantised(), {"--no-speed"}));
  EXPECT_EQ(quiet.out.find("tokens a second"), std::string::npos);
  EXPECT_TRUE(
      json_of(words(model(), quantised(), {"--no-speed", "--json"})).at("speed_up").is_null());
}

TEST_F(Compare, AModelWithFewerExpertsBesideItself) {
  const Json same = json_of(words(model(), model(), {"--no-speed", "--json"})),
             fewer =
                 json_of(words(model(), model(), {"--no-speed", "--json", "--top-k-experts", "1"}));
  EXPECT_EQ(same.at("kl"), 0);
  EXPECT_EQ(same.at("same_top"), 1);
  EXPECT_GT(fewer.at("kl"), 0);
  EXPECT_EQ(fewer.at("same_choices").at(0), 0.5) << "the better of two";
  EXPECT_LT(fewer.at("after").at("bytes_per_token"), fewer.at("before").at("bytes_per_token"));
}

// What `moe score` takes: a recipe's numbers are those of training.
TEST_F(Compare, FewerExpertsThanTheRecipeTrains) {
  const std::string mixtral = *folder_ / "mixtral";
  train(mixtral, {"--layers", "1", "--recipe", "mixtral", "--experts", "4", "--top-k", "2",
                  "--expert-width", "32"});
  const Json j = json_of(
      words(mixtral, mixtral, {"--windows", "2", "--no-speed", "--json", "--top-k-experts", "1"}));
  EXPECT_EQ(j.at("before").at("active_parameters").get<int64_t>() -
                j.at("after").at("active_parameters").get<int64_t>(),
            3 * 32 * 32);
  EXPECT_LT(j.at("after").at("flops_per_token"), j.at("before").at("flops_per_token"));
  const CommandResult timed = moe_command({"bench", mixtral, "--prompt", "4", "--tokens", "2",
                                           "--repeats", "1", "--top-k-experts", "1"});
  EXPECT_EQ(timed.code, 0) << timed.err;
}

TEST_F(Compare, ModelsOfOtherShapes) {
  const Json j = json_of(words(deeper(), model(), {"--no-speed", "--json"}));
  EXPECT_TRUE(j.at("drift").empty());
  EXPECT_TRUE(j.at("same_choices").empty());
  EXPECT_EQ(j.at("before").at("shape"), "3 layers with a dense FFN of width 80");
}

TEST_F(Compare, WritesAPage) {
  const std::string page = *folder_ / "page.html";
  const CommandResult r = moe_command(words(model(), quantised(), {"--html", page}));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("the page is in " + page), std::string::npos);
  const std::string html = slurp(page);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  for (const char* part :
       {"Comparison", "same_choices", "Before and after", "prefers-color-scheme:dark"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

// Each text's figures are those that it has alone.
TEST_F(Compare, SeveralTextsStandSideBySide) {
  const std::string other = *folder_ / "other.txt", page = *folder_ / "texts.html";
  std::string text;
  for (int i = 0; i < 80; ++i) text += fmt::format("{} of those who never routed anything. ", i);
  put(other, text);
  const auto both = words(model(), quantised(),
                          {"--text", other, "--no-speed", "--windows", "10", "--html", page});
  const CommandResult r = moe_command(both);
  ASSERT_EQ(r.code, 0) << r.err;
  has(r.out, "text 1  " + text_file() + ": 10 windows");
  has(r.out, "text 2  " + other + ": 10 windows");
  has(slurp(page), "text 2, after");
  auto json = both;
  json.push_back("--json");
  const Json together = json_of(json);
  ASSERT_EQ(together.at("others").size(), 1u);
  const auto alone = [&](const std::string& which) {
    return json_of({"compare", model(), quantised(), "--text", which, "--no-speed", "--windows",
                    "10", "--dtype", "f32", "--json"});
  };
  const Json first = alone(text_file()), second = alone(other);
  for (const char* key :
       {"kl", "drift", "same_choices", "before_load", "after_load", "loss_error"}) {
    EXPECT_EQ(together.at(key), first.at(key)) << key;
    EXPECT_EQ(together.at("others")[0].at(key), second.at(key)) << key;
  }
  EXPECT_EQ(together.at("others")[0].at("after").at("perplexity"),
            second.at("after").at("perplexity"));
}

TEST_F(Compare, RefusesWhatCannotBeCompared) {
  const std::string other = *folder_ / "bpe";
  train(other, {"--layers", "2", "--tokenizer", "bpe:300"});
  expect_refused(words(model(), other, {}), 2, {"vocabulary of 256", "the other of", "moe score"});
  expect_refused({"compare", model(), model()}, 2, {"--text"});
  expect_refused(words(model(), *folder_ / "nothing", {}), 1, {"nothing"});
  expect_refused(words(model(), model(), {"--window", "100000"}), 1, {"--window"});
  expect_refused({"compare", model(), model(), "--text", text_file(), "--repeats", "0"}, 2,
                 {"--repeats is 0"});
  for (const char* name : {"--prompt", "--tokens", "--repeats"})
    expect_refused(words(model(), model(), {"--no-speed", name, "4"}), 2,
                   {name, "--no-speed leaves out", "give one of them"});
  expect_refused(words(deeper(), deeper(), {"--top-k-experts", "1"}), 2, {"dense"});
  expect_refused(words(model(), model(), {"--html", *folder_ / "no/such/page.html"}), 1,
                 {"page.html"});
  put(*folder_ / "short.txt", "too short");
  expect_refused({"compare", model(), model(), "--text", *folder_ / "short.txt"}, 1, {"9 tokens"});
}

}  // namespace
}  // namespace moe::test::compare_test
