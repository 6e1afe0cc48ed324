#include "analyze/pages/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "analyze/data/definitions.h"
#include "analyze/pages/markup.h"
#include "analyze/pages/page.h"
#include "analyze/pages/sample_texts.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/report_figures.h"
#include "analyze/texts/report_findings.h"

namespace moe {
namespace {

// One panel at a time, chosen by its heading.
std::string picked_card(const Figure& f) {
  if (f.panels.size() <= 3) return figure_card(f, true);
  std::string inside = R"(<div class="scale">)" + (f.scale ? svg_element(*f.scale) : "") +
                       R"(</div><div class="pick one">)";
  for (const Panel& p : f.panels)
    inside +=
        fmt::format(R"(<section data-name="{}">{}</section>)", escape(p.heading), panel_html(p));
  return card(f.key, f.title, f.line, inside + "</div>");
}

std::string texts_card(const char* key, const std::string& title, const std::string& inside,
                       const char* classes) {
  return inside.empty() ? "" : card(key, title, std::string(definition(key).line), inside, classes);
}

std::string alarms_html(const TrainingHistory& h) {
  if (h.alarms.empty()) return "";
  constexpr size_t kShown = 12;
  std::string out =
      R"(<section class="alarms" id="alarms" aria-label="alarms"><h2>The run raised alarms</h2><ul>)";
  for (size_t i = 0; i < std::min(kShown, h.alarms.size()); ++i)
    out += fmt::format("<li><b>step {}</b> {}</li>", h.alarms[i].step, escape(h.alarms[i].text));
  if (h.alarms.size() > kShown)
    out += fmt::format("<li>and {} more</li>", h.alarms.size() - kShown);
  return out + "</ul></section>\n";
}

std::string hero(const TrainingHistory& h,
                 Figure (*draw)(const TrainingHistory&, const FigureOptions&)) {
  return hero_card([&](const FigureOptions& o) { return draw(h, o); });
}

// Panels of a card of four columns are narrower.
FigureOptions panels_for(size_t layers) { return {.width = layers > 3 ? 280 : kPanelWidth}; }

std::string history_cards(const TrainingHistory& h) {
  const FigureOptions o;
  std::string cards = hero(h, loss_figure) + figure_card(pairs_figure(h, o), true) +
                      figure_card(auxiliary_figure(h, o), false) + hero(h, max_vio_figure) +
                      figure_card(learning_figure(h, o), false) + hero(h, dropped_figure) +
                      figure_card(load_over_time_figure(h, panels_for(h.layers.size())), true);
  return cards.empty() ? ""
                       : R"(<h2 class="part">The run</h2><div class="cards">)" + cards + "</div>\n";
}

std::string routing_cards(const RoutingReport& r) {
  const FigureOptions o;
  std::string cards =
      figure_card(load_figure(r, o), false) +
      texts_card("max_vio", "Balance by layer", balance_table(r), "two") +
      figure_card(domain_figure(r, panels_for(r.moe_layers.size())), true) +
      figure_card(domain_loss_figure(r, o), false) + picked_card(coactivation_figure(r, o)) +
      figure_card(vocabulary_figure(r, o), false) + figure_card(router_figure(r, o), true) +
      figure_card(saturation_figure(r, o), false);
  return R"(<h2 class="part">What the experts do</h2><div class="cards">)" + cards + "</div>\n";
}

std::string text_cards(const RoutingReport& r) {
  const std::string cards =
      texts_card("favourites", "Favourite tokens", favourites_html(r), "wide") +
      texts_card("sample", "Sample texts", samples_html(r), "wide");
  return cards.empty()
             ? ""
             : R"(<h2 class="part">In the texts</h2><div class="cards">)" + cards + "</div>\n";
}

}  // namespace

std::string html_report(const RoutingReport& r, const TrainingHistory* history) {
  std::string body =
      page_header("Routing report", r.model.empty() ? "a model" : r.model, subtitle_of(r),
                  facts_of(r, history), findings_of(r), troubles_of(r, history));
  if (history) body += alarms_html(*history) + history_cards(*history);
  if (!r.moe_layers.empty()) {
    body += routing_cards(r) + text_cards(r);
  } else {
    body += fmt::format(R"(<p class="empty">{}</p>)",
                        r.experts > 0
                            ? "No text was looked at, so there is nothing to show of the experts."
                            : "This model has no MoE layer: nothing is routed, so the figures of "
                              "routing are absent.");
    body += R"(<div class="cards">)" + figure_card(domain_loss_figure(r, {}), false) + "</div>";
  }
  return page("Routing report: " + r.model, coloured_experts(r, history), body);
}

}  // namespace moe
