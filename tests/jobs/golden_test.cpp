// Small routings of every recipe with the answers of tools/golden (transformers' own modules, or
// the papers' formulas in float64 with gradients by autograd), the examples worked by hand among
// them. tools/golden/recipes_check.py compares two hundred a recipe through the command.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "jobs/worked_routing.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"

namespace moe::test::golden_test {
namespace {

const std::map<std::string, EvalRouting> kModes = {{"dropless", EvalRouting::dropless},
                                                   {"as-trained", EvalRouting::as_trained},
                                                   {"threshold", EvalRouting::threshold}};
const std::map<std::string, BalanceOver> kOver = {{"micro_batch", BalanceOver::micro_batch},
                                                  {"sequence", BalanceOver::sequence},
                                                  {"running", BalanceOver::running},
                                                  {"step", BalanceOver::step}};

RoutingSpec spec_of(const Json& given) {
  const Json& said = given.at("options");
  RoutingOptions options;
  options.recipe = said.at("recipe").get<std::string>();
  options.top_k = said.at("top_k").get<int64_t>();
  options.experts = said.contains("experts") ? said.at("experts").get<int64_t>()
                                             : route_experts(given.at("input"), "golden");
  if (said.contains("capacity_factor"))
    options.capacity_factor = said.at("capacity_factor").get<float>();
  if (said.contains("routed_scale")) options.routed_scale = said.at("routed_scale").get<float>();
  if (said.contains("expert_groups"))
    options.expert_groups = said.at("expert_groups").get<int64_t>();
  if (said.contains("groups_kept")) options.groups_kept = said.at("groups_kept").get<int64_t>();
  if (said.contains("norm_topk_prob"))
    options.norm_topk_prob = said.at("norm_topk_prob").get<bool>();
  if (said.contains("balance_over"))
    options.balance_over = kOver.at(said.at("balance_over").get<std::string>());
  if (!given.at("stages").is_null()) options.stages = given.at("stages").dump();
  if (!said.contains("eval")) return train_spec(options);
  return eval_spec(options, kModes.at(said.at("eval").get<std::string>()));
}

std::vector<double> flat(const Json& value) {
  if (!value.is_array()) return {value.get<double>()};
  std::vector<double> out;
  for (const Json& item : value)
    for (double x : flat(item)) out.push_back(x);
  return out;
}

// Of the whole, relative to its norm; what is nearly nothing is compared with 0.01.
double difference(const Json& got, const Json& want) {
  const std::vector<double> a = flat(got), b = flat(want);
  if (a.size() != b.size()) return HUGE_VAL;
  double norm = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i)
    norm += b[i] * b[i], square += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(square) / std::max(std::sqrt(norm), 1e-2);
}

bool compared_exactly(const std::string& key) {
  return key == "experts" || key == "kept" || key == "counts" || key == "dropped" ||
         key == "capacity";
}

TEST(Golden, EveryRecipeRoutesAsItsOracle) {
  const Json file = read_json(MOE_TEST_DATA "/golden/recipes.json");
  std::map<std::string, int> cases, gradients, of_inputs;
  for (const Json& given : file.at("cases")) {
    const auto name = given.at("name").get<std::string>(), row = given.at("row").get<std::string>();
    const Json got = route(spec_of(given), given.at("input"), name, 1);
    for (const auto& [key, want] : given.at("want").items()) {
      ASSERT_TRUE(got.contains(key)) << name << ": " << key;
      if (compared_exactly(key) || want.is_null())
        EXPECT_EQ(got.at(key), want) << name << ": " << key;
      else EXPECT_LE(difference(got.at(key), want), kTwinF32) << name << ": " << key;
    }
    for (const auto& [key, value] : got.items())
      EXPECT_TRUE(given.at("want").contains(key)) << name << " says more: " << key << " " << value;
    ++cases[row];
    gradients[row] += given.at("want").contains("dlogits");
    of_inputs[row] += given.at("want").contains("dx");
  }
  for (const Recipe& recipe : recipes()) {
    if (!recipe.has_router() && recipe.name != "custom") continue;
    const std::string row(recipe.name);
    EXPECT_GE(cases[row], 6) << row;
    if (row == "hash") continue;  // no router, no gradient
    EXPECT_GE(gradients[row], 3) << row;
    EXPECT_GE(of_inputs[row], 1) << row;
  }
}

}  // namespace
}  // namespace moe::test::golden_test
