// The charts of a report as pictures that stand alone: SVG files with their own ground, readable on
// a light and on a dark page, for a README or a paper.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analyze/data/conversion_report.h"
#include "analyze/data/report.h"

namespace moe {

// Names ("domains.svg") and contents, in the order of the page; those for which there is no data
// are left out.
using Pictures = std::vector<std::pair<std::string, std::string>>;
// history: null where there is none.
Pictures report_pictures(const RoutingReport&, const TrainingHistory* history);
Pictures conversion_pictures(const ConversionReport&);

}  // namespace moe
