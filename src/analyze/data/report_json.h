// A report as JSON: what `moe inspect MODEL --text FILE... --json` prints under "routing" and
// "history". docs/reports.md lists the keys.
#pragma once

#include "analyze/data/report.h"
#include "core/json.h"

namespace moe {

// Keys are the fields' names. Figures that a layer does not have are null; a sample's experts and
// weights are a list for each layer of a list for each token of what was sent, in choice order.
Json to_json(const RoutingReport&);
Json to_json(const TrainingHistory&);

}  // namespace moe
