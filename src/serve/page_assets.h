// The parts of the page as they stand in share/page; cmake/assets.cmake compiles them in.
#pragma once

#include <string_view>

namespace moe {

// "page.html", "page.css", "talk.js", "page.js"; fails on another name.
std::string_view page_asset(std::string_view name);

}  // namespace moe
