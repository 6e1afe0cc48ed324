// `moe carve ... --verify --report --sweep`: the carved files beside the dense one, and the
// frontier.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::carve_report_test {
namespace {

class CarveReport : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string other;
    for (int i = 0; i < 60; ++i)
      other += fmt::format("the experts of line {} send each token to the router\n", 3 * i);
    put(text_file(), small_text(120));
    put(verify_file(), other);
    const CommandResult r =
        moe_command({"train", "--data",        text_file(), "--out",     dense(), "--recipe",
                     "dense", "--dense-width", "64",        "--layers",  "2",     "--width",
                     "32",    "--heads",       "2",         "--context", "64",    "--batch",
                     "2",     "--steps",       "20",        "--threads", "2"});
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string dense() { return *folder_ / "dense"; }
  static std::string text_file() { return *folder_ / "text.txt"; }
  static std::string verify_file() { return *folder_ / "verify.txt"; }
  static std::vector<std::string> words(const std::string& out,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "carve", dense(),         out,         "--shared",  "1", "--active", "1",  "--experts",
        "4",     "--calibration", text_file(), "--windows", "8", "--window", "64", "--dtype",
        "f32",   "--compute",     "f32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> CarveReport::folder_;

TEST_F(CarveReport, SweepsTheActiveExpertsAndDrawsThem) {
  const std::string out = *folder_ / "swept", page = *folder_ / "page.html";
  const std::vector<std::string> entries = folder_->entries();
  const CommandResult r = moe_command(
      words(out, {"--method", "random", "--verify", verify_file(), "--sweep", "--report", page,
                  "--prompt", "8", "--tokens", "3", "--repeats", "1", "--json"}));
  ASSERT_EQ(r.code, 0) << r.err;
  const Json report = Json::parse(r.out).at("report"), frontier = report.at("frontier");
  EXPECT_EQ(report.at("kind"), "Carving");
  EXPECT_EQ(report.at("steps").at("method"), "random");
  EXPECT_EQ(report.at("layers").size(), 2u);
  EXPECT_TRUE(report.at("layers").at(0).at("reconstruction_error").is_number());
  ASSERT_EQ(frontier.size(), 4u) << "1, 2 and 3 active, and the dense model";
  for (int a = 0; a < 3; ++a)
    EXPECT_EQ(frontier.at(a).at("ffn_share").get<double>(), (a + 2) / 4.0);
  EXPECT_EQ(frontier.at(0).at("is_written"), true);
  EXPECT_EQ(frontier.at(0).at("perplexity"), report.at("after").at("perplexity"));
  EXPECT_GT(frontier.at(0).at("kl"), frontier.at(1).at("kl"));
  EXPECT_GT(frontier.at(1).at("kl"), frontier.at(2).at("kl"));
  EXPECT_LT(frontier.at(2).at("kl"), 1e-5) << "all experts active are the dense FFN";
  EXPECT_LT(frontier.at(0).at("bytes_per_token"), frontier.at(1).at("bytes_per_token"));
  EXPECT_EQ(frontier.at(3).at("is_before"), true);
  EXPECT_EQ(frontier.at(3).at("perplexity"), report.at("before").at("perplexity"));
  std::vector<std::string> expected = entries;
  expected.insert(expected.end(), {"page.html", "swept"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(folder_->entries(), expected) << "nothing else is left";
  const std::string html = slurp(page);
  for (const char* part : {"Carving", "id=\"frontier\"", "id=\"reconstruction_error\"",
                           "id=\"router_agreement\"", "3 active"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST_F(CarveReport, PrintsQualityBesideSpeed) {
  const CommandResult r =
      moe_command(words(*folder_ / "one", {"--verify", verify_file(), "--prompt", "8", "--tokens",
                                           "3", "--repeats", "1"}));
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"perplexity", "decode, tokens a second", "weights read a token", "KL",
                           "as oracle", "error", "MaxVio"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
}

TEST_F(CarveReport, RefusesBeforeAnythingIsWritten) {
  const std::string out = *folder_ / "never";
  expect_refused(words(out, {"--sweep"}), 2, {"--sweep", "--verify TEXT"});
  expect_refused(words(out, {"--report", "x.html"}), 2, {"--report", "--verify TEXT"});
  expect_refused(words(out, {"--verify", text_file()}), 2,
                 {"100% of", "--verify", "give another text"});
  expect_refused(words(out, {"--verify", *folder_ / "no.txt"}), 1, {"no.txt"});
  expect_refused(words(out, {"--verify", verify_file(), "--repeats", "0"}), 2, {"--repeats is 0"});
  expect_refused(words(out, {"--verify", verify_file(), "--no-speed", "--prompt", "8"}), 2,
                 {"--prompt", "--no-speed", "give one of them"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace moe::test::carve_report_test
