// Edit distance and the suggestions made from it.
#include "core/nearest.h"

#include <gtest/gtest.h>

namespace moe::nearest_test {
namespace {

TEST(Nearest, DistanceOfKnownPairs) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("abcd", "abdc"), 1u) << "neighbours swapped";
  EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "optimal string alignment edits no part twice";
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> recipes = {"dense", "nanomoe", "olmoe", "mixtral", "switch"};
  EXPECT_EQ(nearest("mixtrl", recipes), "mixtral");
  EXPECT_EQ(nearest("OLMoE", recipes), "olmoe");
  EXPECT_EQ(nearest("swithc", recipes), "switch");
  EXPECT_EQ(nearest("nano-moe", recipes), "nanomoe");
  EXPECT_EQ(nearest("expert-width", {"expert_width"}), "expert_width");
  EXPECT_EQ(nearest("--temp", {"--help", "--temperature"}), "--temperature") << "it begins so";
  EXPECT_EQ(nearest("depseek", {"dense", "deepseek-v2", "deepseek-v3"}), "deepseek-v2")
      << "it nearly begins so";
  EXPECT_EQ(nearest("depsek-v3", {"deepseek-v2", "deepseek-v3"}), "deepseek-v3");
  EXPECT_EQ(nearest("dpsek", {"deepseek-v2"}), std::nullopt);
  EXPECT_EQ(nearest("tinny", {"tiny", "small"}), "tiny");
  const std::vector<std::string> mixes = {"q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_k_m", "iq4_nl"};
  EXPECT_EQ(nearest("q4km", mixes), "q4_k_m");
  EXPECT_EQ(nearest("Q5-KM", mixes), "q5_k_m");
  EXPECT_EQ(nearest("q4", mixes), std::nullopt);
  EXPECT_EQ(nearest("a_bcd", {"abcd", "a_bce", "a-bcd"}), "a-bcd") << "more alike than the first";
  EXPECT_EQ(nearest("gpu", {"cpu", "cuda"}), std::nullopt) << "a third is another word";
  EXPECT_EQ(nearest("zzzzzz", recipes), std::nullopt);
  EXPECT_EQ(nearest("", recipes), std::nullopt);
  EXPECT_EQ(nearest("x", {}), std::nullopt);
}

TEST(Nearest, SuggestionEndsAMessage) {
  EXPECT_EQ(suggestion("mixtrl", {"dense", "mixtral"}), "; did you mean \"mixtral\"?");
  EXPECT_EQ(suggestion("qqqq", {"dense", "mixtral"}), "; known are dense, mixtral");
  EXPECT_EQ(suggestion("qqqq", {"dense", "mixtral"}, 1), "");
}

TEST(Nearest, PrintableIsOneLine) {
  EXPECT_EQ(printable("a\nb\x1b[31m\xff"), "a?b?[31m?");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace moe::nearest_test
