// The routing of every recipe at sizes a test can afford, for the tests that loop over all rows.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "moe/recipes/recipes.h"

namespace moe::test {

// K is the recipe's where that is fixed, else at most 2. The custom recipe gets stages that no row
// has together.
inline RoutingOptions small_routing(const Recipe& recipe, int64_t experts, int64_t layers) {
  RoutingOptions o =
      default_options(recipe, experts, std::min<int64_t>(recipe.default_top_k, 2), layers);
  if (recipe.name == "custom") {
    o.stages =
        R"({"base":"olmoe","capacity":{"factor":1.0,"order":"by_weight","type":"buffer"},)"
        R"("losses":{"balance":{"probs":"normalised_scores"}},"score":"sigmoid",)"
        R"("select":{"bias":{"rate":0.01},"type":"top_k"},"weigh":{"renormalise":"after_drop","type":"scores"}})";
    o.coef.balance = 0.01f;
  }
  return o;
}

inline RoutingOptions small_routing(std::string_view recipe, int64_t experts, int64_t layers) {
  return small_routing(find_recipe(recipe), experts, layers);
}

// Every recipe that has a router, in the order of the table.
inline std::vector<RoutingOptions> small_routings(int64_t experts, int64_t layers) {
  std::vector<RoutingOptions> all;
  for (const Recipe& recipe : recipes())
    if (recipe.has_router()) all.push_back(small_routing(recipe, experts, layers));
  return all;
}

}  // namespace moe::test
