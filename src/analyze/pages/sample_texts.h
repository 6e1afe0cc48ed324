// The parts of the page that are text: tables, favourite tokens, and sample texts with each token
// coloured by its expert.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analyze/data/report.h"

namespace moe {

// A layer's choices of one token that were sent, in choice order.
struct Choice {
  int32_t expert;
  float weight;
};
std::vector<Choice> choices_of(const SampleText&, size_t layer, size_t token);
// The first one's part of all their weights.
double first_part(const std::vector<Choice>&);

// The place of the layer whose experts prefer domains most: there colours tell the most.
size_t telling_layer(const RoutingReport&);

// What the colours of the samples are, in a sentence or two.
std::string sample_colours(const RoutingReport&);

// Each returns markup, or "" where there is nothing to show.
std::string balance_table(const RoutingReport&);
std::string favourites_html(const RoutingReport&);
std::string samples_html(const RoutingReport&);

}  // namespace moe
