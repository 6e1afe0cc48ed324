#include "moe/recipes.h"

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

using Rounding = BufferCapacity::Rounding;
using Order = BufferCapacity::Order;
using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;

constexpr std::string_view kChoiceMajorLeaks =
    "training is not causal: a later token's first choice can evict an earlier token's second one; evaluated without drops it is causal";
constexpr std::string_view kCapacityLeaks = "training is not causal across rows of a batch, which share the buffers; evaluated without drops it is causal";

std::vector<Recipe> make_table() {
  return {
      {.name = "dense",
       .title = "no routing: every token goes through one feed-forward network",
       .source = "Vaswani et al. 2017, arXiv 1706.03762",
       .formula = "y = FFN(x)",
       .causality = "",
       .default_experts = 0,
       .default_top_k = 1,
       .top_k_is_fixed = true,
       .norm_topk_prob_is_open = false,
       .losses = {},
       .train = {},
       .eval_as_trained = Dropless{}},
      {.name = "nanomoe",
       .title = "noisy top-k, softmax over the chosen, capacity per micro-batch",
       .source = "github wolfecameron/nanoMoE, manager.py and model.py",
       .formula = "z = Wg x + softplus(Wn x) n;  K = top-k(z);  w = softmax(z[K]);  C = max(4, even(floor(k cf N / E))), first choices before second; "
                  "balance over the chosen probabilities",
       .causality = kChoiceMajorLeaks,
       .default_experts = 8,
       .default_top_k = 2,
       .top_k_is_fixed = false,
       .norm_topk_prob_is_open = false,
       .losses = {.balance = 0.01f, .z = 0.001f, .uniform_is_k = true, .sum_over_layers = true},
       .train = {.noise = LearnedNoise{.floor = 0},
                 .score = RawScore{},
                 .weigh = ChosenSoftmax{},
                 .capacity =
                     BufferCapacity{.factor = 1.25f, .count_choices = true, .rounding = Rounding::floor_to_even, .minimum = 4, .order = Order::choice_major},
                 .balance = BalanceLoss{Counts::all_choices, Probs::chosen_weights}},
       .eval_as_trained = BufferCapacity{.factor = 2, .count_choices = true, .rounding = Rounding::floor_to_even, .minimum = 4, .order = Order::choice_major}},
      {.name = "olmoe",
       .title = "dropless token choice, softmax over all experts, not renormalised",
       .source = "Muennighoff et al. 2024, arXiv 2409.02060, eq. 1-3 and section 4.1; transformers:models/olmoe",
       .formula = "p = softmax(Wg x);  K = top-k(p);  w = p[K]",
       .causality = "",
       .default_experts = 64,
       .default_top_k = 8,
       .top_k_is_fixed = false,
       .norm_topk_prob_is_open = true,
       .losses = {.balance = 0.01f, .z = 0.001f},
       .train = {.score = SoftmaxScore{}, .weigh = ChosenScores{.renormalise = false}, .balance = BalanceLoss{Counts::all_choices, Probs::scores}},
       .eval_as_trained = Dropless{}},
      {.name = "mixtral",
       .title = "dropless token choice, weights renormalised over the chosen",
       .source = "Jiang et al. 2024, arXiv 2401.04088, section 2.1; transformers:models/mixtral",
       .formula = "p = softmax(Wg x);  K = top-k(p);  w = p[K] / sum p[K]  (= softmax of the chosen logits)",
       .causality = "",
       .default_experts = 8,
       .default_top_k = 2,
       .top_k_is_fixed = false,
       .norm_topk_prob_is_open = false,
       .losses = {.balance = 0.02f, .z = 0, .uniform_is_k = true},
       .train = {.score = SoftmaxScore{}, .weigh = ChosenScores{.renormalise = true}, .balance = BalanceLoss{Counts::all_choices, Probs::scores}},
       .eval_as_trained = Dropless{}},
      {.name = "switch",
       .title = "top-1 with the raw probability, capacity, input jitter",
       .source = "Fedus et al. 2021, arXiv 2101.03961, section 2.2; tensorflow/mesh:mesh_tensorflow/transformer/moe.py",
       .formula = "x' = x u, u ~ U[0.99, 1.01];  p = softmax(Wg x');  e = argmax p;  w = p[e];  C = max(4, floor(cf N / E)), in token order",
       .causality = kCapacityLeaks,
       .default_experts = 8,
       .default_top_k = 1,
       .top_k_is_fixed = true,
       .norm_topk_prob_is_open = false,
       .losses = {.balance = 0.01f, .z = 0, .sum_over_layers = true},
       .train = {.noise = InputJitter{.eps = 1e-2f},
                 .score = SoftmaxScore{},
                 .weigh = ChosenScores{.renormalise = false},
                 .capacity = BufferCapacity{.factor = 1.25f, .count_choices = false, .rounding = Rounding::floor, .minimum = 4, .order = Order::token_major},
                 .balance = BalanceLoss{Counts::first_choice, Probs::scores}},
       .eval_as_trained = BufferCapacity{.factor = 2, .count_choices = false, .rounding = Rounding::floor, .minimum = 4, .order = Order::token_major}},
  };
}

void set_factor(CapacityStage& stage, const std::optional<float>& factor, const Recipe& recipe) {
  if (!factor) return;
  auto* buffer = std::get_if<BufferCapacity>(&stage);
  if (buffer == nullptr)
    fail_usage("recipe '{}' never drops a token, so a capacity factor of {} has no meaning; leave it out or take switch or nanomoe", recipe.name, *factor);
  buffer->factor = *factor;
}

// The stages with the user's numbers put in.
RoutingSpec filled(const RoutingOptions& options) {
  const Recipe& recipe = find_recipe(options.recipe);
  if (!recipe.has_router()) fail_usage("recipe '{}' has no router", recipe.name);
  if (recipe.top_k_is_fixed && options.top_k != recipe.default_top_k)
    fail_usage("recipe '{}' takes {} expert a token, not {}; take another recipe (moe recipes lists them)", recipe.name, recipe.default_top_k, options.top_k);
  RoutingSpec spec = recipe.train;
  spec.experts = options.experts;
  std::get<TopK>(spec.select).k = options.top_k;
  if (options.norm_topk_prob) {
    auto* weigh = std::get_if<ChosenScores>(&spec.weigh);
    if (!recipe.norm_topk_prob_is_open && (weigh == nullptr || weigh->renormalise != *options.norm_topk_prob))
      fail_usage("recipe '{}' fixes whether weights are renormalised; norm_topk_prob = {} is another recipe", recipe.name, *options.norm_topk_prob);
    if (weigh) weigh->renormalise = *options.norm_topk_prob;
  }
  return spec;
}

}  // namespace

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> table = make_table();
  return table;
}

const Recipe& find_recipe(std::string_view name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
    names.emplace_back(recipe.name);
  }
  fail_usage("no recipe is called '{}'{}", name, suggestion(name, names));
}

RoutingOptions default_options(const Recipe& recipe, int64_t experts, int64_t top_k, int64_t moe_layers) {
  const LossConvention& c = recipe.losses;
  const float layers = c.sum_over_layers ? static_cast<float>(moe_layers) : 1;
  RoutingOptions options;
  options.recipe = recipe.name;
  options.experts = experts;
  options.top_k = top_k;
  options.balance_coef = c.balance * layers * (c.uniform_is_k ? static_cast<float>(top_k) : 1);
  options.z_coef = c.z * layers;
  return options;
}

RoutingSpec train_spec(const RoutingOptions& options) {
  RoutingSpec spec = filled(options);
  set_factor(spec.capacity, options.capacity_factor, find_recipe(options.recipe));
  if (!options.noise) spec.noise = NoNoise{};
  validate(spec);
  return spec;
}

RoutingSpec eval_spec(const RoutingOptions& options, EvalRouting routing) {
  RoutingSpec spec = filled(options);
  spec.noise = NoNoise{};
  spec.capacity = Dropless{};
  if (routing == EvalRouting::as_trained) {
    spec.capacity = find_recipe(options.recipe).eval_as_trained;
    set_factor(spec.capacity, options.capacity_factor_eval, find_recipe(options.recipe));
  }
  validate(spec);
  return spec;
}

}  // namespace moe
