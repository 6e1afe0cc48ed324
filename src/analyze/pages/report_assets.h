// The style and the script of a report, as they stand in share/report; cmake/assets.cmake compiles
// them in.
#pragma once

#include <string>
#include <string_view>

namespace moe {

// "chart.css", "report.css", "report.js", "light.css", "dark.css"; fails on another name.
std::string_view report_asset(std::string_view name);

}  // namespace moe
