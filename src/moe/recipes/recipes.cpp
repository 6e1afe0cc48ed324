// From a user's options to the stages of training and evaluation. The rows themselves are in
// recipe_table.cpp.
#include "moe/recipes/recipes.h"

#include <algorithm>

#include "core/error.h"
#include "core/nearest.h"
#include "moe/recipes/recipe_table.h"
#include "moe/recipes/spec_json.h"

namespace moe {
namespace {

using Renormalise = ChosenScores::Renormalise;

constexpr std::string_view kExpertsLookAhead =
    "whether an expert takes a token depends on later tokens";
constexpr std::string_view kBuffersLookAhead =
    "capacity depends on the other tokens of a text, later ones too, so a token's output does";

struct Groups {
  int64_t groups = 1;
  int64_t keep = 1;
  int64_t group_top = 1;
};

// The recipe's share of `groups` groups, and enough of them for k experts.
int64_t fitted_keep(const GroupedTopK& recipe, int64_t groups, int64_t experts, int64_t k) {
  // rounded
  const int64_t share = (2 * groups * recipe.keep + recipe.groups) / (2 * recipe.groups);
  const int64_t size = std::max<int64_t>(1, experts / groups);
  return std::min(groups, std::max({int64_t{1}, share, (k + size - 1) / size}));
}

// The recipe's number of groups, or the largest below it that divides the experts into groups that
// a selection among them can tell apart.
Groups fitted_groups(const GroupedTopK& recipe, int64_t experts, int64_t k) {
  const int64_t least = std::max<int64_t>(2, recipe.group_top);
  int64_t groups = recipe.groups;
  while (groups > 1 && (experts % groups != 0 || experts / groups < least)) --groups;
  return {groups, fitted_keep(recipe, groups, experts, k),
          std::clamp<int64_t>(recipe.group_top, 1, std::max<int64_t>(1, experts / groups))};
}

void set_groups(RoutingSpec& spec, const Recipe& recipe, const RoutingOptions& options) {
  auto* select = std::get_if<GroupedTopK>(&spec.select);
  if (!select) {
    if (options.expert_groups || options.groups_kept)
      fail_usage(
          "recipe '{}' does not choose among groups of experts; leave @expert_groups and "
          "@groups_kept out, or take deepseek-v2 or deepseek-v3",
          recipe.name);
    return;
  }
  if (recipe.name != kCustom && !options.expert_groups) {
    const Groups fitted = fitted_groups(*select, options.experts, options.top_k);
    select->keep = fitted.keep;
    select->groups = fitted.groups;
    select->group_top = fitted.group_top;
  } else if (options.expert_groups) {
    if (*options.expert_groups > 0)
      select->keep = fitted_keep(*select, *options.expert_groups, options.experts, options.top_k);
    select->groups = *options.expert_groups;
    if (select->groups == 1)
      select->group_top = std::min(
          select->group_top, options.scored());  // all groups are kept: their scores decide nothing
  }
  if (options.groups_kept) select->keep = *options.groups_kept;
  if (recipe.name == kCustom) return;
  // The device and communication losses look at the groups; with one there is nothing to even out.
  for (std::optional<DeviceLoss>* loss : {&spec.losses.device, &spec.losses.communication}) {
    if (select->groups == 1) loss->reset();
    if (!*loss) continue;
    (*loss)->devices = select->groups;
    (*loss)->at_most = std::min(select->keep, select->k);
  }
}

void set_factor(RoutingSpec& spec, const std::optional<float>& factor, const Recipe& recipe) {
  if (!factor) return;
  if (auto* choice = std::get_if<ExpertChoice>(&spec.select)) {
    choice->factor = *factor;
    return;
  }
  auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  if (buffer == nullptr)
    fail_usage(
        "recipe '{}' never drops a token, so a capacity factor of {} has no meaning; leave it out "
        "or take switch or nanomoe",
        recipe.name, *factor);
  buffer->factor = *factor;
}

void set_weighing(RoutingSpec& spec, const Recipe& recipe, const RoutingOptions& options) {
  auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
  if (options.norm_topk_prob) {
    const bool is_so =
        weigh && (weigh->renormalise != Renormalise::never) == *options.norm_topk_prob;
    if (!recipe.norm_topk_prob_is_open && !is_so)
      fail_usage(
          "recipe '{}' fixes whether weights are renormalised; norm_topk_prob = {} is another "
          "recipe: leave it out, or take olmoe or qwen2-moe",
          recipe.name, *options.norm_topk_prob);
    if (!is_so)
      weigh->renormalise = *options.norm_topk_prob ? Renormalise::before_drop : Renormalise::never;
  }
  if (!options.routed_scale) return;
  if (!weigh || weigh->scale == 1)
    fail_usage(
        "recipe '{}' does not scale its combine weights; leave the routed scale out, or take "
        "deepseek-v2, deepseek-v3 or deepseek-v4",
        recipe.name);
  weigh->scale = *options.routed_scale;
}

void set_balance(RoutingSpec& spec, const Recipe& recipe, const RoutingOptions& options) {
  if (!options.balance_over) return;
  if (!spec.losses.balance)
    fail_usage(
        "recipe '{}' has no balance loss, so there is nothing to look at over more or fewer "
        "tokens; leave @balance_over out, or take olmoe",
        recipe.name);
  BalanceLoss& loss = *spec.losses.balance;
  loss.scope = {*options.balance_over == BalanceOver::sequence ? Scope::Kind::sequence
                                                               : Scope::Kind::micro_batch,
                0};
  switch (*options.balance_over) {
    case BalanceOver::micro_batch:
    case BalanceOver::sequence: loss.shares = BalanceLoss::Shares::own; break;
    case BalanceOver::running: loss.shares = BalanceLoss::Shares::running; break;
    case BalanceOver::step: loss.shares = BalanceLoss::Shares::step; break;
  }
}

// The training stages with the user's numbers put in, but for the capacity.
RoutingSpec filled(const Recipe& recipe, const RoutingOptions& options) {
  if (!recipe.has_router())
    fail_usage("recipe '{}' has no router; take one that has (moe recipes lists them)",
               recipe.name);
  if (recipe.top_k_is_fixed && options.top_k != recipe.default_top_k)
    fail_usage(
        "recipe '{}' takes {} expert{} a token, not {}; use @top_k {} or take another recipe (moe "
        "recipes lists them)",
        recipe.name, recipe.default_top_k, recipe.default_top_k == 1 ? "" : "s", options.top_k,
        recipe.default_top_k);
  RoutingSpec spec = recipe.train;
  spec.experts = options.scored();
  spec.zero_experts = options.zero_experts;
  set_top_k(spec.select, options.top_k);
  set_groups(spec, recipe, options);
  set_weighing(spec, recipe, options);
  set_balance(spec, recipe, options);
  if (options.capacity_factor_eval && !experts_choose(spec.select) &&
      !std::holds_alternative<BufferCapacity>(recipe.eval_as_trained))
    fail_usage(
        "recipe '{}' is evaluated without drops, so a capacity factor of {} has no meaning there; "
        "leave it out or take switch or nanomoe",
        recipe.name, *options.capacity_factor_eval);
  return spec;
}

// A coefficient of a loss that the recipe does not have would be silently nothing. One that only
// the user's single group of experts takes away may stay.
void check_coefficients(const Recipe& recipe, const RoutingLosses& coef) {
  each_loss(coef, [&](std::string_view name, float value) {
    if (!has_loss(recipe.train, name) && value != 0)
      fail_usage(
          "recipe '{}' has no {} loss, so its coefficient of {} has no meaning; leave it out (or "
          "give 0), or take another recipe",
          recipe.name, name, value);
  });
}

std::string_view causality_of(const RoutingSpec& spec) {
  if (experts_choose(spec.select))
    return std::holds_alternative<TokenSoftmax>(spec.weigh)
               ? find_recipe("expert-choice-notes").causality
               : find_recipe("expert-choice").causality;
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  if (!buffer) return "";
  return buffer->order == BufferCapacity::Order::token_major ? find_recipe("switch").causality
                                                             : find_recipe("gshard").causality;
}

}  // namespace

const std::vector<std::string>& balance_over_names() {
  static const std::vector<std::string> names = {"micro_batch", "sequence", "running", "step"};
  return names;
}

const std::vector<std::string>& eval_routing_names() {
  static const std::vector<std::string> names = {"dropless", "as-trained", "threshold"};
  return names;
}

std::string_view name_of(EvalRouting routing) {
  return eval_routing_names()[static_cast<size_t>(routing)];
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> table = make_recipe_table();
  return table;
}

const Recipe& find_recipe(std::string_view name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    names.emplace_back(recipe.name);
  }
  fail_usage("no recipe is called '{}'{}", name, suggestion(name, names, names.size()));
}

RoutingOptions default_options(const Recipe& recipe, int64_t experts, int64_t top_k,
                               int64_t moe_layers) {
  const LossConvention& c = recipe.losses;
  RoutingOptions options;
  options.recipe = recipe.name;
  options.experts = experts;
  options.top_k = top_k;
  options.coef = c.coef;
  if (c.uniform_is_k) options.coef.balance *= static_cast<float>(top_k);
  if (c.sum_over_layers)
    each_loss(options.coef,
              [&](const char*, float& value) { value *= static_cast<float>(moe_layers); });
  if (const auto* select = std::get_if<GroupedTopK>(&recipe.train.select);
      select && recipe.name != kCustom) {
    const Groups fitted = fitted_groups(*select, experts, top_k);
    options.expert_groups = fitted.groups;
    options.groups_kept = fitted.keep;
    if (fitted.groups == 1) options.coef.device = options.coef.communication = 0;
  }
  return options;
}

Recipe resolved_recipe(const RoutingOptions& options) {
  Recipe recipe = find_recipe(options.recipe);
  if (recipe.name != kCustom) {
    if (!options.stages.empty())
      fail_usage(
          "stages from a file belong to the recipe '{}', not to '{}'; take @recipe {}, or leave "
          "the file out",
          kCustom, recipe.name, kCustom);
    return recipe;
  }
  if (options.stages.empty())
    fail_usage(
        "the recipe '{}' needs its stages; give a JSON file of them with @stages (docs/recipes.md "
        "shows one)",
        kCustom);
  CustomStages stages = parse_stages(options.stages, "the stages of the recipe 'custom'");
  recipe.train = std::move(stages.train);
  recipe.eval_as_trained = std::move(stages.eval_as_trained);
  recipe.causality = causality_of(recipe.train);
  return recipe;
}

EvalRouting default_eval(const RoutingOptions& options) {
  const Recipe recipe = resolved_recipe(options);
  if (!experts_choose(recipe.train.select)) return EvalRouting::dropless;
  return std::holds_alternative<TokenSoftmax>(recipe.train.weigh) ? EvalRouting::as_trained
                                                                  : EvalRouting::threshold;
}

std::string_view not_causal_because(const RoutingOptions& options, EvalRouting routing) {
  if (routing != EvalRouting::as_trained) return "";
  const Recipe recipe = resolved_recipe(options);
  if (experts_choose(recipe.train.select)) return kExpertsLookAhead;
  return std::holds_alternative<BufferCapacity>(recipe.eval_as_trained) ? kBuffersLookAhead : "";
}

RoutingSpec train_spec(const RoutingOptions& options) {
  const Recipe recipe = resolved_recipe(options);
  RoutingSpec spec = filled(recipe, options);
  set_factor(spec, options.capacity_factor, recipe);
  if (std::holds_alternative<ThresholdChoice>(spec.select))
    fail_usage(
        "thresholds are learned while experts choose, so nothing can be trained by them; use the "
        "selection \"expert_choice\" and evaluate by threshold");
  if (!options.noise) {
    if (recipe.zero_init)
      fail_usage(
          "recipe '{}' starts with a router of zeros, where only noise tells experts apart; give "
          "it its noise, or take another recipe",
          recipe.name);
    spec.noise = NoNoise{};
    if (auto* near = std::get_if<NearBestChoice>(&spec.select)) near->draw = false;
  }
  validate(spec);
  check_coefficients(recipe, options.coef);
  return spec;
}

RoutingSpec eval_spec(const RoutingOptions& options, EvalRouting routing) {
  const Recipe recipe = resolved_recipe(options);
  RoutingSpec spec = filled(recipe, options);
  const bool experts_take = experts_choose(spec.select);
  spec.noise = NoNoise{};
  spec.capacity = Dropless{};
  spec.losses.load = spec.losses.z_of_clean = false;  // both are about the noise
  switch (routing) {
    case EvalRouting::dropless:
      if (experts_take)
        fail_usage(
            "recipe '{}' lets experts choose, who leave tokens out by design; use the routing "
            "threshold (causal) or as-trained",
            recipe.name);
      if (!std::holds_alternative<ThresholdSecond>(spec.second)) spec.second = KeepSecond{};
      break;
    case EvalRouting::as_trained:
      if (!experts_take) spec.capacity = recipe.eval_as_trained;
      if (const auto& factor = options.capacity_factor_eval; factor || experts_take)
        set_factor(spec, factor ? factor : options.capacity_factor, recipe);
      break;
    case EvalRouting::threshold:
      if (!experts_take)
        fail_usage(
            "recipe '{}' lets tokens choose and has no thresholds; use the routing dropless or "
            "as-trained",
            recipe.name);
      if (std::holds_alternative<TokenSoftmax>(spec.weigh))
        fail_usage(
            "recipe '{}' weighs by a softmax over an expert's tokens, later ones too, which "
            "thresholds cannot replace; use the routing as-trained to measure "
            "it, or train the recipe expert-choice",
            recipe.name);
      spec.select = ThresholdChoice{};
      break;
  }
  validate(spec);
  return spec;
}

}  // namespace moe
