// `moe inspect` of models whose layers are not all attention and an FFN, by their configuration
// alone.
#include <algorithm>

#include "hub/configs.h"
#include "hub/folder/config_json.h"
#include "support/command.h"

namespace moe::test::inspect_kinds_test {
namespace {

// The first of a family's small configurations, as a folder without weights.
CommandResult inspected(const char* family, const std::vector<std::string>& more = {}) {
  const std::vector<NamedConfig> families = small_families();
  const auto found = std::ranges::find(families, family, &NamedConfig::name);
  if (found == families.end()) return {-1, "", "there is no such family"};
  const TempFolder folder;
  put(folder / "config.json", config_to_json(found->config));
  std::vector<std::string> words = {"inspect", folder.path()};
  words.insert(words.end(), more.begin(), more.end());
  return moe_command(words);
}

void expect_line(const CommandResult& r, const std::string& line) {
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find(line), std::string::npos) << r.out;
}

TEST(InspectKinds, LayersOfOneSublayerAloneAreNamed) {
  const CommandResult r = inspected("nemotron_h");
  expect_line(r, "layers of one sublayer alone: 2 without an FFN, 3 that are an FFN\n");
  const CommandResult j = inspected("nemotron_h", {"--json"});
  ASSERT_EQ(j.code, 0) << j.err;
  const Json kinds = Json::parse(j.out).at("layer_kinds");
  EXPECT_EQ(kinds.at("mixer_alone"), 2);
  EXPECT_EQ(kinds.at("ffn_alone"), 3);
  EXPECT_EQ(kinds.at("attention").get<int>() + kinds.at("state_space").get<int>(), 2);
}

TEST(InspectKinds, WhatStandsInPlaceOfAttentionIsNamed) {
  const CommandResult r = inspected("kimi_linear");
  expect_line(r, "2 of 4 layers have linear attention in place of attention\n");
  EXPECT_EQ(r.out.find("sublayer"), std::string::npos) << r.out;
}

TEST(InspectKinds, SharedExpertsThatAreAveragedAreNamed) {
  expect_line(inspected("cohere2_moe"), ", averaged with these\n");
  const CommandResult j = inspected("cohere2_moe", {"--json"}), sum = inspected("deepseek_v3");
  ASSERT_EQ(j.code, 0) << j.err;
  EXPECT_EQ(Json::parse(j.out).at("shared_average"), true);
  expect_line(sum, " shared of width ");
  EXPECT_EQ(sum.out.find("averaged"), std::string::npos) << sum.out;
}

}  // namespace
}  // namespace moe::test::inspect_kinds_test
