// What the pages of reports share: the frame with style and script, the header with its strip of
// facts, cards with figures. Whatever is given as text is escaped here; what is called markup or
// html is not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analyze/pictures/report_figures.h"
#include "analyze/texts/report_findings.h"

namespace moe {

// A whole page around `body`; `experts`: for how many of them it has colours.
std::string page(const std::string& title, int64_t experts, const std::string& body);

// kind: a word or two above the heading; findings: sentences; troubles: those that stand before
// them.
std::string page_header(const std::string& kind, const std::string& heading,
                        const std::string& lead, const std::vector<Fact>& facts,
                        const std::vector<std::string>& findings,
                        const std::vector<std::string>& troubles = {});

// A card whose `id` is the key of a definition, which gives the source that the line ends with.
std::string card(const std::string& id, const std::string& title, const std::string& line,
                 const std::string& inside_html, const std::string& classes = "");
std::string panel_html(const Panel& p);
// Panels under each other in a narrow card; side by side in a wide one, those beyond the first few
// in layers evenly spread folded away. Empty without panels.
std::string figure_card(const Figure& f, bool wide, const std::string& classes = "");
// The first panel drawn twice, for the width of two columns and for a phone, of which one is seen.
std::string hero_card(const std::function<Figure(const FigureOptions&)>& draw);

}  // namespace moe
