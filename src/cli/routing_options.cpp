#include "cli/routing_options.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command_tree.h"
#include "core/file.h"
#include "moe/spec_json.h"

namespace moe::cli {
namespace {

const std::vector<Choice<BalanceOver>>& balance_choices() {
  static const std::vector<Choice<BalanceOver>> choices = [] {
    std::vector<Choice<BalanceOver>> named;
    for (const std::string& name : balance_over_names()) named.push_back({name, static_cast<BalanceOver>(named.size())});
    return named;
  }();
  return choices;
}

const std::vector<Choice<EvalRouting>>& eval_choices() {
  static const std::vector<Choice<EvalRouting>> choices = {
      {"dropless", EvalRouting::dropless}, {"as-trained", EvalRouting::as_trained}, {"threshold", EvalRouting::threshold}};
  return choices;
}

// Complete and without a base, so that a model keeps what it was trained with.
std::string complete_stages(const std::string& given) {
  const bool inline_text = given.starts_with('{');
  const CustomStages stages = parse_stages(inline_text ? given : read_text(given), inline_text ? "--stages" : given);
  return to_json(stages.train, stages.eval_as_trained).dump();
}

std::optional<float> narrow(const std::optional<double>& x) { return x ? std::make_optional(static_cast<float>(*x)) : std::nullopt; }

}  // namespace

void add_routing_options(CLI::App& app, RoutingFlags& f, const std::string& group) {
  takes(app.add_option("--recipe", f.recipe, fmt::format("how tokens choose experts: {}; default: olmoe, or custom with --stages", listed(recipes())))
            ->group(group),
        names_of(recipes()));
  app.add_option("--stages", f.stages, "recipe custom: a JSON file of stages, or that JSON itself (docs/recipes.md)")->group(group);
  app.add_option("--experts", f.experts, "routed experts a layer; default: the recipe's")->group(group);
  app.add_option("--top-k", f.top_k, "experts a token takes (where experts choose: on average); default: the recipe's")->group(group);
  app.add_option("--capacity-factor", f.capacity_factor,
                 "buffer of an expert in training, for recipes that drop; where experts choose, how many take a token on average")
      ->group(group);
  app.add_option("--capacity-factor-eval", f.capacity_factor_eval, "the same when evaluated as-trained")->group(group);
  app.add_option("--norm-topk-prob", f.norm_topk_prob, "true or false: renormalise the chosen weights, where the recipe leaves it open (olmoe)")->group(group);
  app.add_option("--expert-groups", f.expert_groups, "groups of neighbouring experts, for grouped selection (deepseek-v2, deepseek-v3)")->group(group);
  app.add_option("--groups-kept", f.groups_kept, "groups that a token may choose from")->group(group);
  app.add_option("--routed-scaling-factor", f.routed_scaling_factor, "factor of the combine weights, for recipes that have one")->group(group);
  takes(app.add_option("--balance-over", f.balance_over,
                       fmt::format("tokens whose load the balance loss looks at: {} (running, step: over the optimizer step's micro-batches)",
                                   listed(balance_choices())))
            ->group(group),
        names_of(balance_choices()));
}

const Recipe& chosen_recipe(const RoutingFlags& f) {
  if (f.recipe.empty()) return find_recipe(f.stages.empty() ? "olmoe" : kCustom);
  return find_recipe(f.recipe);
}

RoutingOptions routing_options(const RoutingFlags& f, int64_t moe_layers) {
  const Recipe& recipe = chosen_recipe(f);
  const int64_t experts = f.experts.value_or(recipe.has_router() ? recipe.default_experts : 1);
  if (!recipe.has_router() && experts > 1) fail_usage("recipe 'dense' has one expert, not {}; name a --recipe that routes, e.g. olmoe", experts);
  constexpr int64_t kMost = int64_t{1} << 24;  // as ModelConfig's sizes
  if (experts < 1 || experts > kMost) fail_usage("--experts is {}; it must be at least 1 and at most {}", experts, kMost);
  RoutingOptions options = default_options(recipe, experts, f.top_k.value_or(recipe.default_top_k), moe_layers);
  if (!f.stages.empty()) options.stages = complete_stages(f.stages);
  options.norm_topk_prob = f.norm_topk_prob;
  options.capacity_factor = narrow(f.capacity_factor);
  options.capacity_factor_eval = narrow(f.capacity_factor_eval);
  if (f.expert_groups) {
    options.expert_groups = f.expert_groups;
    options.groups_kept.reset();  // the default is for the default number of groups
  }
  if (f.groups_kept) options.groups_kept = f.groups_kept;
  if (f.routed_scaling_factor) options.routed_scale = narrow(f.routed_scaling_factor);
  if (f.balance_over) options.balance_over = choose(*f.balance_over, "--balance-over", balance_choices());
  resolved_recipe(options);  // that stages and recipe belong together is said before anything else
  return options;
}

CLI::Option* add_top_k_experts(CLI::App& app, int64_t& top_k_experts) {
  return app.add_option("--top-k-experts", top_k_experts, "experts a token takes, fewer or more than the model was trained with; 0: the model's number")
      ->capture_default_str();
}

std::vector<std::string> eval_routing_names() { return names_of(eval_choices()); }

EvalRouting parse_eval_routing(std::string_view name, const char* flag) { return choose(name, flag, eval_choices()); }

std::string_view name_of(EvalRouting routing) {
  for (const auto& choice : eval_choices())
    if (choice.value == routing) return choice.name;
  return "";
}

}  // namespace moe::cli
