// The report of a conversion, or of two models held against each other, as one self-contained page
// (analyze/pages/page.h).
#pragma once

#include <string>

#include "analyze/data/conversion_report.h"
#include "core/json.h"

namespace moe {

// The same report gives the same bytes.
std::string conversion_page(const ConversionReport&);
// Keys are the fields' names, the figures' those of analyze/data/definitions.h; what was not
// measured is null. docs/figures.md lists them.
Json to_json(const ConversionReport&);

}  // namespace moe
