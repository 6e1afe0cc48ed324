// The table of published routing recipes. A recipe is a row naming stages; adding one is adding a row (docs/recipes.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moe/router.h"

namespace moe {

// What a user chooses about routing; kept in a model's config. Absent options take the recipe's values.
struct RoutingOptions {
  std::string recipe = "dense";
  int64_t experts = 1;
  int64_t top_k = 1;
  std::optional<bool> norm_topk_prob;         // renormalise the chosen weights; only where the recipe leaves it open
  std::optional<float> capacity_factor;       // training; only for recipes with a capacity
  std::optional<float> capacity_factor_eval;  // evaluation "as trained"
  bool noise = true;                          // draw the recipe's noise in training
  float balance_coef = 0;                     // canonical: of a loss that is 1 when balanced, averaged over layers
  float z_coef = 0;                           // of a loss averaged over layers
};

// How a paper or codebase states its balance coefficient. Values are turned into the canonical form when a recipe is named.
struct LossConvention {
  float balance = 0;  // its coefficient
  float z = 0;
  bool uniform_is_k = false;     // its balanced loss is k, not 1
  bool sum_over_layers = false;  // it adds the layers' losses up instead of averaging them
};

struct Recipe {
  std::string_view name;
  std::string_view title;
  std::string_view source;
  std::string_view formula;
  std::string_view causality;  // empty: causal in training and evaluation; else why training is not
  int64_t default_experts;
  int64_t default_top_k;
  bool top_k_is_fixed;
  bool norm_topk_prob_is_open;  // the architecture's config decides
  LossConvention losses;
  RoutingSpec train;              // stages; experts and K are filled in
  CapacityStage eval_as_trained;  // capacity when evaluated the way it was trained

  bool has_router() const { return default_experts > 0; }
};

const std::vector<Recipe>& recipes();
// Throws (usage) with the nearest name.
const Recipe& find_recipe(std::string_view name);

// The recipe's options for a model with `moe_layers` MoE layers: losses in the canonical form.
RoutingOptions default_options(const Recipe&, int64_t experts, int64_t top_k, int64_t moe_layers);

enum class EvalRouting { dropless, as_trained };
// Both are validated.
RoutingSpec train_spec(const RoutingOptions&);
RoutingSpec eval_spec(const RoutingOptions&, EvalRouting = EvalRouting::dropless);

}  // namespace moe
