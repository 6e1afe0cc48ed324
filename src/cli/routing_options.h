// The flags that choose a routing recipe and change its numbers: the same for `moe train` and `moe route`.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/choices.h"
#include "moe/recipes.h"

namespace moe::cli {

// Absent ones take the recipe's values.
struct RoutingFlags {
  std::string recipe;  // empty: olmoe, or custom where stages are given
  std::string stages;  // a file, or the JSON itself
  std::optional<int64_t> experts, top_k, expert_groups, groups_kept;
  std::optional<double> capacity_factor, capacity_factor_eval, routed_scaling_factor;
  std::optional<bool> norm_topk_prob;
  std::optional<std::string> balance_over;
};

// Adds the options to `app` in `group`, writing to `flags`, which must outlive the parse.
void add_routing_options(CLI::App& app, RoutingFlags& flags, const std::string& group);

const Recipe& chosen_recipe(const RoutingFlags&);
// The recipe with these numbers, for a model with `moe_layers` MoE layers.
RoutingOptions routing_options(const RoutingFlags&, int64_t moe_layers);

// --top-k-experts of the verbs that run a model over a text.
CLI::Option* add_top_k_experts(CLI::App& app, int64_t& top_k_experts);

// Evaluation as --eval and --routing spell it; `flag` is named where `name` is none of them.
std::vector<std::string> eval_routing_names();
EvalRouting parse_eval_routing(std::string_view name, const char* flag);
std::string_view name_of(EvalRouting);

}  // namespace moe::cli
