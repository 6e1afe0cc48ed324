#include "moe/recipes/wanted_routing.h"

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "moe/recipes/spec_json.h"

namespace moe {
namespace {

// Complete and without a base, so that a model keeps what it was trained with.
std::string complete_stages(const std::string& given) {
  const bool inline_text = given.starts_with('{');
  const CustomStages stages =
      parse_stages(inline_text ? given : read_text(given), inline_text ? field("stages") : given);
  return to_json(stages.train, stages.eval_as_trained).dump();
}

}  // namespace

FieldList fields(WantedRouting& w) {
  FieldList list;
  list.group("Routing");
  const std::vector<std::string> names = names_of(recipes());
  list.add("recipe", w.recipe,
           message("how tokens choose experts: {}; default: olmoe, or custom with @stages",
                   listed(names)))
      .values(names);
  list.add("stages", w.stages,
           "recipe custom: a JSON file of stages, or that JSON itself (docs/recipes.md)")
      .takes_json();
  list.add("experts", w.experts, "routed experts a layer; default: the recipe's")
      .also({"num_experts", "num_local_experts", "n_routed_experts"});
  list.add("zero_experts", w.zero_experts,
           "experts beside these that give a token back as it is and cost nothing, which the "
           "router scores and chooses as the others; default: 0")
      .also({"zero_expert_num"});
  list.add("top_k", w.top_k,
           "experts a token takes (where experts choose: on average), not tokens to sample from; "
           "default: the recipe's")
      .also({"num_experts_per_tok"});
  list.add("capacity_factor", w.capacity_factor,
           "buffer of an expert in training, for recipes that drop; where experts choose, how many "
           "take a token on average");
  list.add("capacity_factor_eval", w.capacity_factor_eval, "the same when evaluated as-trained");
  list.add("norm_topk_prob", w.norm_topk_prob,
           "true or false: renormalise the chosen weights, where the recipe leaves it open (olmoe, "
           "qwen2-moe)");
  list.add("expert_groups", w.expert_groups,
           "groups of neighbouring experts, for grouped selection (deepseek-v2, deepseek-v3)")
      .also({"n_group"});
  list.add("groups_kept", w.groups_kept, "groups that a token may choose from")
      .also({"topk_group"});
  list.add("routed_scaling_factor", w.routed_scaling_factor,
           "factor of the combine weights, for recipes that have one");
  list.add_choice("balance_over", w.balance_over, balance_over_names(),
                  message("tokens whose load the balance loss looks at: {} (running, step: over "
                          "the optimizer step's micro-batches)",
                          listed(balance_over_names())));
  return list;
}

const Recipe& chosen_recipe(const WantedRouting& w) {
  if (w.recipe.empty()) return find_recipe(w.stages.empty() ? "olmoe" : kCustom);
  return find_recipe(w.recipe);
}

RoutingOptions routing_options(const WantedRouting& w, int64_t moe_layers) {
  const Recipe& recipe = chosen_recipe(w);
  const int64_t experts = w.experts.value_or(recipe.has_router() ? recipe.default_experts : 1);
  if (!recipe.has_router() && experts > 1)
    fail_usage("recipe 'dense' has one expert, not {}; name a @recipe that routes, e.g. olmoe",
               experts);
  constexpr int64_t kMost = int64_t{1} << 24;  // as ModelConfig's sizes
  if (experts < 1 || experts > kMost)
    fail_usage("@experts is {}; it must be at least 1 and at most {}", experts, kMost);
  const int64_t zero = w.zero_experts.value_or(0);
  if (!recipe.has_router() && zero != 0)
    fail_usage(
        "recipe 'dense' has no router that could choose zero experts; name a @recipe that routes, "
        "e.g. olmoe");
  if (zero < 0 || zero > kMost)
    fail_usage("@zero_experts is {}; it must be at least 0 and at most {}", zero, kMost);
  RoutingOptions options =
      default_options(recipe, experts, w.top_k.value_or(recipe.default_top_k), moe_layers);
  options.zero_experts = zero;
  if (!w.stages.empty()) options.stages = complete_stages(w.stages);
  options.norm_topk_prob = w.norm_topk_prob;
  options.capacity_factor = w.capacity_factor;
  options.capacity_factor_eval = w.capacity_factor_eval;
  if (w.expert_groups) {
    options.expert_groups = w.expert_groups;
    options.groups_kept.reset();  // the default is for the default number of groups
  }
  if (w.groups_kept) options.groups_kept = w.groups_kept;
  if (w.routed_scaling_factor) options.routed_scale = w.routed_scaling_factor;
  options.balance_over = w.balance_over ? w.balance_over : options.balance_over;
  resolved_recipe(options);  // that stages and recipe belong together is said before anything else
  return options;
}

}  // namespace moe
