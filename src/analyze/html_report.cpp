#include "analyze/html_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "analyze/definitions.h"
#include "analyze/markup.h"
#include "analyze/report_assets.h"
#include "analyze/report_colours.h"
#include "analyze/report_figures.h"
#include "analyze/report_texts.h"
#include "analyze/report_words.h"

namespace moe {
namespace {

constexpr size_t kPanelsAtOnce = 8;  // the rest is folded away

std::string panel_html(const Panel& p) {
  std::string out = "<figure>";
  if (!p.heading.empty()) out += fmt::format("<figcaption>{}</figcaption>", escape(p.heading));
  out += svg_element(p.drawing);
  if (!p.note.empty()) out += fmt::format(R"(<p class="note">{}</p>)", escape(p.note));
  return out + "</figure>";
}

std::string card(const std::string& id, const std::string& title, const std::string& line, const std::string& inside, const std::string& classes = "") {
  return fmt::format(R"(<section class="card {}" id="{}"><h2>{}</h2><p class="def">{}</p>{}</section>)"
                     "\n",
                     classes, id, escape(title), escape(sentence(line, definition(id).source)), inside);
}

// Panels under each other in a narrow card; side by side in a wide one, those beyond the first few in layers evenly spread folded away.
std::string figure_card(const Figure& f, bool wide, const std::string& classes = "") {
  if (f.panels.empty()) return "";
  std::string inside, rest;
  if (f.scale) inside += R"(<div class="scale">)" + svg_element(*f.scale) + "</div>";
  inside += f.panels.size() > 3 ? R"(<div class="panels four">)" : R"(<div class="panels">)";
  const size_t n = f.panels.size(), shown = n <= kPanelsAtOnce ? n : kPanelsAtOnce;
  size_t next = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool now = next < shown && i == next * (n - 1) / std::max<size_t>(1, shown - 1);
    if (now) ++next;
    (now ? inside : rest) += panel_html(f.panels[i]);
  }
  inside += "</div>";
  if (!rest.empty()) inside += fmt::format(R"(<details><summary>The other {} layers</summary><div class="panels four">{}</div></details>)", n - shown, rest);
  return card(f.key, f.title, f.line, inside, wide && n > 1 ? "wide" : classes);
}

// One panel at a time, chosen by its heading.
std::string picked_card(const Figure& f) {
  if (f.panels.size() <= 3) return figure_card(f, true);
  std::string inside = R"(<div class="scale">)" + (f.scale ? svg_element(*f.scale) : "") + R"(</div><div class="pick one">)";
  for (const Panel& p : f.panels) inside += fmt::format(R"(<section data-name="{}">{}</section>)", escape(p.heading), panel_html(p));
  return card(f.key, f.title, f.line, inside + "</div>");
}

std::string texts_card(const char* key, const std::string& title, const std::string& inside, const char* classes) {
  return inside.empty() ? "" : card(key, title, std::string(definition(key).line), inside, classes);
}

std::string alarms_html(const TrainingHistory& h) {
  if (h.alarms.empty()) return "";
  constexpr size_t kShown = 12;
  std::string out = R"(<section class="alarms" id="alarms" aria-label="alarms"><h2>The run raised alarms</h2><ul>)";
  for (size_t i = 0; i < std::min(kShown, h.alarms.size()); ++i) out += fmt::format("<li><b>step {}</b> {}</li>", h.alarms[i].step, escape(h.alarms[i].text));
  if (h.alarms.size() > kShown) out += fmt::format("<li>and {} more</li>", h.alarms.size() - kShown);
  return out + "</ul></section>\n";
}

std::string header_html(const RoutingReport& r, const TrainingHistory* h) {
  std::string out = fmt::format(
      R"(<header><div class="top"><p class="kind">Routing report</p><button type="button" id="theme" title="change to light or dark" hidden></button></div>)"
      R"(<h1>{}</h1><p class="lead">{}</p><dl class="facts">)",
      escape(r.model.empty() ? "a model" : r.model), escape(subtitle_of(r)));
  for (const Fact& f : facts_of(r, h))
    out += fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", escape(f.name), escape(f.value), escape(f.more));
  out += "</dl>";
  const std::vector<std::string> findings = findings_of(r);
  if (!findings.empty()) {
    out += R"(<ul class="findings">)";
    for (const std::string& f : findings) out += "<li>" + escape(f) + "</li>";
    out += "</ul>";
  }
  return out + "</header>\n";
}

// Drawn twice, for the width of two columns and for a phone, of which one is seen.
std::string hero_card(const TrainingHistory& h, Figure (*draw)(const TrainingHistory&, const FigureOptions&)) {
  const Figure broad = draw(h, {.width = 748}), narrow = draw(h, {});
  if (broad.panels.empty()) return "";
  return card(broad.key, broad.title, broad.line,
              R"(<div class="broad">)" + panel_html(broad.panels[0]) + R"(</div><div class="narrow">)" + panel_html(narrow.panels[0]) + "</div>", "two hero");
}

// Panels of a card of four columns are narrower.
FigureOptions panels_for(size_t layers) { return {.width = layers > 3 ? 280 : kPanelWidth}; }

std::string history_cards(const TrainingHistory& h) {
  const FigureOptions o;
  std::string cards = hero_card(h, loss_figure) + figure_card(auxiliary_figure(h, o), false) + hero_card(h, max_vio_figure) +
                      figure_card(learning_figure(h, o), false) + hero_card(h, dropped_figure) +
                      figure_card(load_over_time_figure(h, panels_for(h.layers.size())), true);
  return cards.empty() ? "" : R"(<h2 class="part">The run</h2><div class="cards">)" + cards + "</div>\n";
}

std::string routing_cards(const RoutingReport& r) {
  const FigureOptions o;
  std::string cards = figure_card(load_figure(r, o), false) + texts_card("max_vio", "Balance by layer", balance_table(r), "two") +
                      figure_card(domain_figure(r, panels_for(r.moe_layers.size())), true) + figure_card(domain_loss_figure(r, o), false) +
                      picked_card(coactivation_figure(r, o)) + figure_card(vocabulary_figure(r, o), false) + figure_card(router_figure(r, o), true) +
                      figure_card(saturation_figure(r, o), false);
  return R"(<h2 class="part">What the experts do</h2><div class="cards">)" + cards + "</div>\n";
}

std::string text_cards(const RoutingReport& r) {
  const std::string cards =
      texts_card("favourites", "Favourite tokens", favourites_html(r), "wide") + texts_card("sample", "Sample texts", samples_html(r), "wide");
  return cards.empty() ? "" : R"(<h2 class="part">In the texts</h2><div class="cards">)" + cards + "</div>\n";
}

int64_t most_experts(const RoutingReport& r, const TrainingHistory* h) {
  auto most = static_cast<size_t>(std::max<int64_t>(0, r.experts));
  if (h)
    for (const HistoryPoint& p : h->points)
      for (const auto& load : p.load) most = std::max(most, load.size());
  return static_cast<int64_t>(most);
}

}  // namespace

std::string html_report(const RoutingReport& r, const TrainingHistory* history) {
  std::string out = fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>Routing report: {}</title><link rel="icon" href="data:,"><style>
{}{}{}</style></head><body>
<main>
)",
                                escape(r.model), theme_style(most_experts(r, history)), report_asset("chart.css"), report_asset("report.css"));
  out += header_html(r, history);
  if (history) out += alarms_html(*history) + history_cards(*history);
  if (!r.moe_layers.empty()) {
    out += routing_cards(r) + text_cards(r);
  } else {
    out += fmt::format(R"(<p class="empty">{}</p>)", r.experts > 0 ? "No text was looked at, so there is nothing to show of the experts."
                                                                   : "This model has no MoE layer: nothing is routed, so the figures of routing are absent.");
    out += R"(<div class="cards">)" + figure_card(domain_loss_figure(r, {}), false) + "</div>";
  }
  out += R"(<footer>Written by moe.cpp. What each figure is, with its source, stands in docs/figures.md.</footer></main>)"
         "\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>\n";
  return out + std::string(report_asset("report.js")) + "</script></body></html>\n";
}

}  // namespace moe
