// A league as one self-contained page (analyze/pages/page.h).
#pragma once

#include <string>

#include "analyze/data/league.h"

namespace moe {

// The same league gives the same bytes.
std::string league_page(const League&);

}  // namespace moe
