// The page at /: its parts (share/page, and the colours of share/report) joined into one document.
#pragma once

#include <cstdint>
#include <string>

namespace moe::serve {

// `experts`: of the model, each of which gets its colour.
std::string page_html(int64_t experts);
// Its Content-Security-Policy: nothing comes from elsewhere.
std::string page_policy();

}  // namespace moe::serve
