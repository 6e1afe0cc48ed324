// What each figure of a report is, in one line of plain words: the one list behind the page, the
// screen and docs/reports.md.
#pragma once

#include <span>
#include <string_view>

namespace moe {

struct Definition {
  std::string_view key;     // as the JSON calls it
  std::string_view title;   // a heading
  std::string_view line;    // what it is and what an even or random router would give
  std::string_view source;  // where the definition stands; empty: common
};

// In the order of a report: of a layer, then of texts, then of a run, then of a conversion.
std::span<const Definition> definitions();
// Fails on a key that is not in the list.
const Definition& definition(std::string_view key);

}  // namespace moe
