// The parts of the page that are text: tables, favourite tokens, and sample texts with each token coloured by its expert.
#pragma once

#include <string>

#include "analyze/report.h"

namespace moe {

// Each returns markup, or "" where there is nothing to show.
std::string balance_table(const RoutingReport&);
std::string favourites_html(const RoutingReport&);
std::string samples_html(const RoutingReport&);

}  // namespace moe
