// The table of published routing recipes. A recipe is a row naming stages; adding one is adding a
// row (docs/recipes.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moe/router.h"

namespace moe {

// Over which tokens the balance loss looks at the load, where the user wants another answer than
// the recipe's.
enum class BalanceOver { micro_batch, sequence, running, step };
const std::vector<std::string>&
balance_over_names();  // in this order, as flags and configs spell them

// What a user chooses about routing; kept in a model's config. Absent options take the recipe's
// values.
struct RoutingOptions {
  std::string recipe = "dense";
  int64_t experts = 1;
  // Beside those: experts that give a token back as it is, which cost nothing (LongCat-Flash, arXiv
  // 2509.01322, section 2.1).
  int64_t zero_experts = 0;
  int64_t top_k = 1;  // where experts choose: the mean number of experts a token gets
  // renormalise the chosen weights; only where the recipe leaves it open
  std::optional<bool> norm_topk_prob;
  std::optional<float> capacity_factor;       // training; only for recipes with a capacity
  std::optional<float> capacity_factor_eval;  // evaluation "as trained"
  std::optional<int64_t> expert_groups;       // of a grouped selection
  std::optional<int64_t> groups_kept;
  std::optional<float> routed_scale;  // factor of the combine weights, for recipes that have one
  std::optional<BalanceOver> balance_over;
  bool noise = true;   // draw the recipe's noise in training
  RoutingLosses coef;  // canonical (moe/losses/aux_loss.h), each of a mean over layers
  std::string stages;  // recipe "custom" only: its stages, JSON (moe/recipes/spec_json.h)

  int64_t scored() const { return experts + zero_experts; }  // of the router, zero experts last
};

// How a paper or codebase states its coefficients. Values are turned into the canonical form when a
// recipe is named.
struct LossConvention {
  RoutingLosses coef;
  bool uniform_is_k = false;     // its balanced balance loss is k, not 1
  bool sum_over_layers = false;  // it adds the layers' losses up instead of averaging them
};

// Shared experts that the recipe's own models have; a user may ask for others.
struct SharedDefaults {
  int64_t experts = 0;
  int64_t widths = 1;  // width of one of them, in widths of a routed expert
  bool gate = false;   // weighed by a sigmoid of the token
};

struct Recipe {
  std::string_view name;
  std::string_view title;
  std::string_view source;
  std::string_view formula;
  std::string_view causality;  // empty: causal in training and evaluation; else why training is not
  std::string_view differs;    // where known implementations differ; may be empty
  int64_t default_experts = 0;
  int64_t default_top_k = 1;
  bool top_k_is_fixed = false;
  bool norm_topk_prob_is_open = false;  // the architecture's config decides
  bool zero_init = false;               // the router's matrices start at zero
  SharedDefaults shared;
  LossConvention losses;
  RoutingSpec train;                           // stages; experts and K are filled in
  CapacityStage eval_as_trained = Dropless{};  // capacity when evaluated the way it was trained

  bool has_router() const { return default_experts > 0; }
};

// The row whose stages come from RoutingOptions::stages.
constexpr std::string_view kCustom = "custom";

const std::vector<Recipe>& recipes();
// Throws (usage) with the nearest name.
const Recipe& find_recipe(std::string_view name);

// The recipe's options for a model with `moe_layers` MoE layers: losses in the canonical form;
// groups fitted to the number of experts (the recipe's own number where it divides them into groups
// that are large enough, else the next smaller one, keeping the same share of them).
RoutingOptions default_options(const Recipe&, int64_t experts, int64_t top_k, int64_t moe_layers);
// The recipe with a custom recipe's stages filled in; other recipes as they are.
Recipe resolved_recipe(const RoutingOptions&);

// dropless: no capacity, no noise; has no meaning where experts choose. as_trained: the recipe's
// evaluation capacity, or expert choice itself, which looks at later tokens. threshold: expert
// choice by the learned thresholds, which is causal.
enum class EvalRouting { dropless, as_trained, threshold };
const std::vector<std::string>&
eval_routing_names();  // in this order, as flags and records spell them
std::string_view name_of(EvalRouting);
// What a recipe is evaluated by unless the user says otherwise: dropless, or threshold where
// experts choose.
EvalRouting default_eval(const RoutingOptions&);
// Why outputs of this evaluation depend on later tokens; empty: they do not.
std::string_view not_causal_because(const RoutingOptions&, EvalRouting);
// Both are validated.
RoutingSpec train_spec(const RoutingOptions&);
RoutingSpec eval_spec(const RoutingOptions&, EvalRouting);
inline RoutingSpec eval_spec(const RoutingOptions& options) {
  return eval_spec(options, default_eval(options));
}

}  // namespace moe
