#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "core/json.h"
#include "moe/recipes.h"

namespace moe::cli {
namespace {

struct Flags {
  std::string name;
  bool json = false;
};

// The coefficient as the recipe states it, and what it is in the canonical form for one MoE layer.
std::string describe_losses(const Recipe& r) {
  if (r.losses.balance == 0 && r.losses.z == 0) return "none";
  std::string text = fmt::format("balance {:g}", r.losses.balance);
  if (r.losses.uniform_is_k || r.losses.sum_over_layers) {
    const RoutingOptions one = default_options(r, r.default_experts, r.default_top_k, 1);
    text += fmt::format(" in its own terms ({}{}); here {:g}{}", r.losses.uniform_is_k ? "k when balanced" : "1 when balanced",
                        r.losses.sum_over_layers ? ", layers added up" : "", one.balance_coef, r.losses.sum_over_layers ? " x MoE layers" : "");
  }
  if (r.losses.z > 0) text += fmt::format("; z {:g}{}", r.losses.z, r.losses.sum_over_layers ? " x MoE layers" : "");
  return text;
}

Json to_json(const Recipe& r) {
  return {{"name", r.name},
          {"title", r.title},
          {"formula", r.formula},
          {"source", r.source},
          {"experts", r.default_experts},
          {"top_k", r.default_top_k},
          {"losses", describe_losses(r)},
          {"causal", r.causality.empty()},
          {"causality", r.causality}};
}

void print_recipe(const Recipe& r) {
  fmt::print("{}: {}\n  formula   {}\n", r.name, r.title, r.formula);
  if (r.has_router())
    fmt::print("  defaults  {} experts, top-{}{}\n  losses    {}\n", r.default_experts, r.default_top_k, r.top_k_is_fixed ? " (fixed)" : "",
               describe_losses(r));
  fmt::print("  causal    {}\n  source    {}\n", r.causality.empty() ? "yes" : r.causality, r.source);
}

int run_recipes(const Flags& f) {
  Json rows = Json::array();
  for (const Recipe& r : recipes()) {
    if (!f.name.empty() && &r != &find_recipe(f.name)) continue;
    if (f.json) rows.push_back(to_json(r));
    else if (f.name.empty()) fmt::print("{:<10}{}\n", r.name, r.title);
    else print_recipe(r);
  }
  if (f.json) fmt::print("{}\n", f.name.empty() ? rows.dump() : rows.at(0).dump());
  return 0;
}

}  // namespace

Action add_recipes(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("NAME", f->name, "one recipe in full: formula, defaults, losses, causality, source");
  app.add_flag("--json", f->json, "JSON on standard output");
  return [f] { return run_recipes(*f); };
}

}  // namespace moe::cli
