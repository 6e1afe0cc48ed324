// A league in words: the table's columns and cells, which the page and the Markdown file share, the
// rules that all arms had alike, what stands out. Plain text, not yet escaped.
#pragma once

#include <string>
#include <vector>

#include "analyze/data/league_claims.h"
#include "analyze/texts/report_findings.h"

namespace moe {

struct LeagueColumn {
  std::string name, what;  // what: a sentence
};
const std::vector<LeagueColumn>& league_columns();
// A row for each of league.rows; as many cells as there are columns.
std::vector<std::vector<std::string>> league_cells(const League&);

// "Text": "wiki.txt: 1.2M tokens", and so on.
std::vector<Fact> league_facts(const League&);  // of the strip on top
std::vector<Fact> league_rules(const League&);  // what all arms had alike
std::vector<std::string> league_findings(const League&);
// What keeps the figures from being read as they stand: runs that are missing, rates at the end.
std::vector<std::string> league_troubles(const League&);

// All of it as a Markdown file.
std::string league_text(const League&);

}  // namespace moe
