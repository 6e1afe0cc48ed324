#include "jobs/recipes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "moe/recipes/spec_json.h"

namespace moe {
namespace {

// The recipe at its default size with one MoE layer.
RoutingOptions default_size(const Recipe& r) {
  RoutingOptions options = default_options(r, r.default_experts, r.default_top_k, 1);
  if (r.name == kCustom) options.stages = "{}";
  return options;
}

// A loss as the source states its coefficient, and what that is in the canonical form.
std::string describe_loss(const Recipe& r, std::string_view name, float stated, float canonical) {
  std::string text = fmt::format("{} {:g}", name, stated);
  if (name == "balance" && r.losses.uniform_is_k) text += " of a loss that is K when even";
  if (r.losses.sum_over_layers)
    text += fmt::format("{} summed over layers",
                        name == "balance" && r.losses.uniform_is_k ? " and" : ", its losses");
  if (stated != canonical || r.losses.sum_over_layers)
    text +=
        fmt::format("; here {:g}{}", canonical, r.losses.sum_over_layers ? " x MoE layers" : "");
  return text;
}

}  // namespace

std::vector<StatedLoss> stated_losses(const Recipe& r) {
  std::vector<StatedLoss> losses;
  if (!r.has_router()) return losses;
  RoutingLosses canonical = default_size(r).coef, stated = r.losses.coef;
  each_loss(stated, [&](std::string_view name, float x) {
    each_loss(canonical, [&](std::string_view same, float y) {
      if (same == name && x != 0)
        losses.push_back({std::string(name), x, y, describe_loss(r, name, x, y)});
    });
  });
  return losses;
}

std::string_view causal_word(const Recipe& r) {
  if (!r.has_router() || r.causality.empty()) return "yes";
  const RoutingOptions options = default_size(r);
  return not_causal_because(options, default_eval(options)).empty() ? "evaluated" : "no";
}

Json recipe_json(const Recipe& r) {
  Json losses = Json::object();
  for (const StatedLoss& loss : stated_losses(r))
    losses[loss.name] = {{"stated", shortest_decimal(loss.stated)},
                         {"canonical", shortest_decimal(loss.canonical)},
                         {"times_moe_layers", r.losses.sum_over_layers},
                         {"in_words", loss.in_words}};
  return {{"name", r.name},
          {"title", r.title},
          {"formula", r.formula},
          {"source", r.source},
          {"experts", r.default_experts},
          {"top_k", r.default_top_k},
          {"top_k_is_fixed", r.top_k_is_fixed},
          {"norm_topk_prob_is_open", r.norm_topk_prob_is_open},
          {"shared",
           {{"experts", r.shared.experts}, {"widths", r.shared.widths}, {"gate", r.shared.gate}}},
          {"stages", r.has_router() ? to_json(r.train, r.eval_as_trained) : Json(nullptr)},
          {"losses", losses},
          {"causal", r.causality.empty()},
          {"causal_when", causal_word(r) == "yes" ? "always" : causal_word(r)},
          {"causality", r.causality},
          {"differs", r.differs}};
}

std::string recipes_reply() {
  Json rows = Json::array();
  for (const Recipe& r : recipes()) rows.push_back(recipe_json(r));
  return rows.dump();
}

}  // namespace moe
