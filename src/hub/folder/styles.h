// Named starting points for a new model: the parts of a known family, with sizes left open. `moe
// train --architecture` chooses one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace moe {

struct Style {
  std::string_view name;
  std::string_view title;
  ModelConfig parts;     // everything but sizes and routing
  double ffn_factor;     // FFN width of a dense layer, in model widths
  bool experts_as_wide;  // an expert is as wide as a dense FFN; else the K chosen together are
};

const std::vector<Style>& styles();
// Throws (usage) with the nearest name.
const Style& find_style(std::string_view name);
// The style that the recipe's own models have.
std::string_view style_of_recipe(std::string_view recipe);
// The routing by which the FFNs of a dense model become `experts` experts whose weights add up to
// 1, by the recipe whose own models have this attention.
RoutingOptions routing_for_dense(const ModelConfig& dense, int64_t experts, int64_t top_k,
                                 int64_t moe_layers);

int64_t default_dense_width(const Style&, int64_t width);
// Expert width where the user gives none: a multiple of 16, of the dense width that was given or
// would be the default.
int64_t default_expert_width(const Style&, int64_t width, std::optional<int64_t> dense_width,
                             int64_t top_k);

}  // namespace moe
