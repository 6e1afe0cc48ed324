// Reports as tables of plain text: what a page has room for, but the sample texts, at a glance.
#pragma once

#include <string>

#include "analyze/data/conversion_report.h"
#include "analyze/data/report.h"

namespace moe {

// Of a model's routing. history: null where there is none.
std::string routing_tables(const RoutingReport&, const TrainingHistory* history);
// Of a conversion, or of two models held against each other.
std::string conversion_tables(const ConversionReport&);

}  // namespace moe
