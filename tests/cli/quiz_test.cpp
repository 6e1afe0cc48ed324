// `moe quiz` as a user meets it: a model beside itself, quantised, and what cannot be asked.
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "support/command.h"

namespace moe::test::quiz_test {
namespace {

TEST(QuizCommand, HoldsModelsAgainstTheFirst) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += fmt::format("line {}: the router sends each token to {} experts\n", i, 1 + i % 7);
  const std::string file = folder / "text.txt", model = folder / "m";
  put(file, text);
  CommandResult r = moe_command({"train", "--data",    file, "--out",    model, "--width",
                                 "32",    "--heads",   "2",  "--layers", "1",   "--context",
                                 "96",    "--experts", "2",  "--top-k",  "1",   "--expert-width",
                                 "32",    "--batch",   "4",  "--steps",  "30",  "--lr",
                                 "5e-3"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::vector<std::string> asked = {
      "quiz", model, model, "--text", file, "--questions", "20", "--context", "6", "--words", "3"};
  std::vector<std::string> words = asked;
  words.push_back("--json");
  r = moe_command(words);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json j = Json::parse(r.out), &models = j.at("models");
  EXPECT_EQ(j.at("questions"), 20);
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models.at(0).at("continuation"), models.at(1).at("continuation"));
  EXPECT_GT(models.at(0).at("continuation").at("value"), 0.25) << "it has learned the text";
  EXPECT_GT(models.at(0).at("continuation").at("error"), 0);
  EXPECT_EQ(models.at(1).at("word_change").at("value"), 0);
  EXPECT_EQ(models.at(1).at("word_change").at("error"), 0);
  r = moe_command(asked);
  EXPECT_NE(r.out.find("against the first"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("25.0%"), std::string::npos) << r.out;

  r = moe_command({"quiz", model, "--text", file, "--questions", "5000"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("lower --questions"), std::string::npos) << r.err;
  r = moe_command({"quiz", model, "--text", file});
  EXPECT_EQ(r.code, 0) << "what is longer than the model's context is cut: " << r.err;
}

}  // namespace
}  // namespace moe::test::quiz_test
