#include "analyze/pages/league_page.h"

#include <fmt/format.h>

#include "analyze/data/league_claims.h"
#include "analyze/pages/markup.h"
#include "analyze/pages/page.h"
#include "analyze/pictures/league_figures.h"
#include "analyze/texts/league_text.h"

namespace moe {
namespace {

std::string league_part(const char* title, const std::string& cards) {
  return fmt::format(R"(<h2 class="part">{}</h2><div class="cards">{}</div>)"
                     "\n",
                     title, cards);
}

std::string league_card(const char* id, const char* title, const char* line,
                        const std::string& inside) {
  return fmt::format(
      R"(<section class="card wide" id="{}"><h2>{}</h2><p class="def">{}</p>{}</section>)"
      "\n",
      id, title, escape(line), inside);
}

std::string scrolled_table(const std::string& head, const std::string& body) {
  return fmt::format(
      R"(<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>)",
      head, body);
}

std::string league_table_card(const League& league) {
  std::string head, body, words;
  for (const LeagueColumn& c : league_columns()) {
    head += fmt::format(R"(<th title="{}">{}</th>)", escape(c.what), escape(c.name));
    words += fmt::format("<dt>{}</dt><dd>{}</dd>", escape(c.name), escape(c.what));
  }
  for (const auto& cells : league_cells(league)) {
    body += "<tr>";
    for (size_t i = 0; i < cells.size(); ++i)
      body += fmt::format(fmt::runtime(i == 0 ? "<th>{}</th>" : "<td>{}</td>"), escape(cells[i]));
    body += "</tr>";
  }
  return league_card(
      "league", "The table", "The lowest loss on top; every arm at its own best learning rate.",
      scrolled_table(head, body) +
          fmt::format(R"(<details><summary>What each column is</summary><dl>{}</dl></details>)",
                      words));
}

std::string league_claims_card(const League& league) {
  std::string body;
  for (const Verdict& v : judge(league)) {
    body += fmt::format(R"(<tr><th>{}</th><td class="said">{}<div class="meta">{}</div></td>)"
                        R"(<td class="held">{}</td><td class="said">{}</td></tr>)",
                        escape(v.claim->arm), escape(v.claim->claim), escape(v.claim->source),
                        name_of(v.outcome), escape(v.figure));
  }
  if (body.empty()) return "";
  return league_card(
      "claims", "What papers claim, and what came of it here",
      "A claim made at another size is held or not held at this one only. Two losses "
      "count as different where they lie further apart than seeds do.",
      scrolled_table("<th>arm</th><th class=\"said\">claim</th><th class=\"held\">here</th>"
                     "<th class=\"said\">by</th>",
                     body));
}

std::string league_rules_card(const League& league) {
  std::string inside = R"(<dl class="fav">)";
  for (const Fact& f : league_rules(league))
    inside += fmt::format("<dt>{}</dt><dd>{}</dd>", escape(f.name),
                          escape(f.more.empty() ? f.value : f.value + "; " + f.more));
  return league_card("rules", "What all arms had alike",
                     "The dense twin is the same model with one FFN in place of the experts.",
                     inside + "</dl>");
}

}  // namespace

std::string league_page(const League& league) {
  const FigureOptions o;
  const std::string heading = "A league of routing recipes";
  std::string body = page_header("league", heading, league.match.shape, league_facts(league),
                                 league_findings(league), league_troubles(league));
  body += league_part("Who came out where", hero_card([&](const FigureOptions& w) {
                                              return league_loss_figure(league, w);
                                            }) + figure_card(league_cost_figure(league, o), false) +
                                                figure_card(league_curve_figure(league, o), false) +
                                                league_table_card(league));
  body += league_part("Claims", league_claims_card(league));
  body += league_part("The rules", league_rules_card(league));
  return page(heading, static_cast<int64_t>(league.rows.size()) + 8, body);
}

}  // namespace moe
