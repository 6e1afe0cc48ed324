// The report of a model's routing as tables of plain text: what a page has room for, but the sample texts, at a glance.
#pragma once

#include <string>

#include "analyze/data/report.h"

namespace moe {

// history: null where there is none.
std::string routing_tables(const RoutingReport&, const TrainingHistory* history);

}  // namespace moe
