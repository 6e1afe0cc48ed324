// The report of a conversion, or of two models held against each other, as tables of plain text.
#pragma once

#include <string>

#include "analyze/data/conversion_report.h"

namespace moe {

std::string conversion_tables(const ConversionReport&);

}  // namespace moe
