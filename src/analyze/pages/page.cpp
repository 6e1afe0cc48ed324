#include "analyze/pages/page.h"

#include <fmt/format.h>

#include "analyze/data/definitions.h"
#include "analyze/pages/markup.h"
#include "analyze/pages/report_assets.h"
#include "analyze/pictures/report_colours.h"

namespace moe {
namespace {

constexpr size_t kPanelsAtOnce = 8;  // the rest is folded away

}  // namespace

std::string page(const std::string& title, int64_t experts, const std::string& body) {
  std::string out = fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{}</title><link rel="icon" href="data:,"><style>
{}{}{}</style></head><body>
<main>
)",
                                escape(title), theme_style(experts), report_asset("chart.css"),
                                report_asset("report.css"));
  out += body;
  out +=
      R"(<footer>Written by moe.cpp. What each figure is, with its source, stands in docs/figures.md.</footer></main>)"
      "\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>\n";
  return out + std::string(report_asset("report.js")) + "</script></body></html>\n";
}

std::string page_header(const std::string& kind, const std::string& heading,
                        const std::string& lead, const std::vector<Fact>& facts,
                        const std::vector<std::string>& findings,
                        const std::vector<std::string>& troubles) {
  std::string out = fmt::format(
      R"(<header><div class="top"><p class="kind">{}</p><button type="button" id="theme" title="change to light or dark" hidden></button></div>)"
      R"(<h1>{}</h1><p class="lead">{}</p><dl class="facts">)",
      escape(kind), escape(heading), escape(lead));
  for (const Fact& f : facts)
    out += fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", escape(f.name),
                       escape(f.value), escape(f.more));
  out += "</dl>";
  if (!findings.empty() || !troubles.empty()) {
    out += R"(<ul class="findings">)";
    for (const std::string& t : troubles) out += R"(<li class="trouble">)" + escape(t) + "</li>";
    for (const std::string& f : findings) out += "<li>" + escape(f) + "</li>";
    out += "</ul>";
  }
  return out + "</header>\n";
}

std::string panel_html(const Panel& p) {
  std::string out = "<figure>";
  if (!p.heading.empty()) out += fmt::format("<figcaption>{}</figcaption>", escape(p.heading));
  out += svg_element(p.drawing);
  if (!p.note.empty()) out += fmt::format(R"(<p class="note">{}</p>)", escape(p.note));
  return out + "</figure>";
}

std::string card(const std::string& id, const std::string& title, const std::string& line,
                 const std::string& inside, const std::string& classes) {
  return fmt::format(
      R"(<section class="card {}" id="{}"><h2>{}</h2><p class="def">{}</p>{}</section>)"
      "\n",
      classes, id, escape(title), escape(sentence(line, definition(id).source)), inside);
}

std::string figure_card(const Figure& f, bool wide, const std::string& classes) {
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
  if (!rest.empty())
    inside += fmt::format(
        R"(<details><summary>The other {} layers</summary><div class="panels four">{}</div></details>)",
        n - shown, rest);
  return card(f.key, f.title, f.line, inside, wide && n > 1 ? "wide" : classes);
}

std::string hero_card(const std::function<Figure(const FigureOptions&)>& draw) {
  const Figure broad = draw({.width = 748}), narrow = draw({});
  if (broad.panels.empty()) return "";
  return card(broad.key, broad.title, broad.line,
              R"(<div class="broad">)" + panel_html(broad.panels[0]) +
                  R"(</div><div class="narrow">)" + panel_html(narrow.panels[0]) + "</div>",
              "two hero");
}

}  // namespace moe
