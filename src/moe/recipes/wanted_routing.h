// What a user says about routing, each thing in a field of its own: the same for `moe train`, `moe
// route` and `moe upcycle`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moe/recipes/recipes.h"
#include "options/fields.h"

namespace moe {

// Absent ones take the recipe's values.
struct WantedRouting {
  std::string recipe;  // empty: olmoe, or custom where stages are given
  std::string stages;  // a file, or the JSON itself
  std::optional<int64_t> experts, zero_experts, top_k, expert_groups, groups_kept;
  std::optional<float> capacity_factor, capacity_factor_eval, routed_scaling_factor;
  std::optional<bool> norm_topk_prob;
  std::optional<BalanceOver> balance_over;
};
FieldList fields(WantedRouting&);

const Recipe& chosen_recipe(const WantedRouting&);
// The recipe with these numbers, for a model with `moe_layers` MoE layers. Usage errors name the
// field.
RoutingOptions routing_options(const WantedRouting&, int64_t moe_layers);

}  // namespace moe
