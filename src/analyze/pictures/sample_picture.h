// Sample texts as a picture: the first lines of each, every token in the colour of its first
// expert.
#pragma once

#include <optional>

#include "analyze/pictures/svg_chart.h"

namespace moe {

// Of the layer whose experts prefer domains most; nothing where there are no samples.
std::optional<Picture> sample_picture(const RoutingReport&);

}  // namespace moe
