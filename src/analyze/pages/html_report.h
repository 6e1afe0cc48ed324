// The report of a model's routing, and of its training where that is known, as one self-contained
// page: style, script and charts are inside, nothing is fetched. It follows the reader's light or
// dark setting, fits a phone, prints, and tells the same without a script.
#pragma once

#include <string>

#include "analyze/data/report.h"

namespace moe {

// The same report and history give the same bytes. history: null where there is none.
std::string html_report(const RoutingReport&, const TrainingHistory* history);

}  // namespace moe
