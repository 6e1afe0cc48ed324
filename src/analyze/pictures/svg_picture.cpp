// A picture that stands alone: what the page says around a chart is part of it, and so is a ground,
// so that it can be read on a light and on a dark page.
#include <fmt/format.h>

#include <algorithm>

#include "analyze/pages/markup.h"
#include "analyze/pages/report_assets.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/svg_chart.h"
#include "analyze/pictures/svg_parts.h"

namespace moe {
namespace {

constexpr double kEdge = 22, kBetween = 28;

// A text cut into lines of at most so many characters.
std::vector<std::string> broken_into_lines(const std::string& text, size_t characters) {
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!lines.back().empty() && length_of(lines.back()) + 1 + length_of(word) > characters)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines;
}

}  // namespace

std::string standalone_svg(const Picture& p) {
  double panel_width = 0;
  for (const auto& [heading, d] : p.panels) panel_width = std::max(panel_width, d.width);
  const int columns = std::max(1, std::min(p.columns, static_cast<int>(p.panels.size())));
  const double width = 2 * kEdge + panel_width * columns + kBetween * (columns - 1);
  std::string body = svg::text(kEdge, 36, "tt", p.title);
  double y = 40;
  const double scale_width = p.scale && columns > 1 ? p.scale->width + kBetween : 0;
  for (const std::string& line :
       broken_into_lines(p.line, static_cast<size_t>((width - 2 * kEdge - scale_width) / 6.4)))
    body += svg::text(kEdge, y += 17, "sb", line);
  const auto place = [&](const Drawing& d, double x, double top) {
    body += fmt::format(R"(<svg x="{}" y="{}" width="{}" height="{}">{}</svg>)", coordinate(x),
                        coordinate(top), coordinate(d.width), coordinate(d.height), d.body);
  };
  if (p.scale && columns > 1) place(*p.scale, width - kEdge - p.scale->width, 26);
  if (p.scale && columns == 1) {
    place(*p.scale, kEdge, y + 12);
    y += p.scale->height + 8;
  }
  y = std::max(y, p.scale && columns > 1 ? 56.0 : 0) + 16;
  for (size_t first = 0; first < p.panels.size(); first += static_cast<size_t>(columns)) {
    double tallest = 0;
    for (size_t i = first; i < std::min(p.panels.size(), first + static_cast<size_t>(columns));
         ++i) {
      const auto& [heading, d] = p.panels[i];
      const double x = kEdge + (panel_width + kBetween) * static_cast<double>(i - first),
                   top = heading.empty() ? 0 : 22;
      if (!heading.empty()) body += svg::text(x, y + 12, "hd", heading);
      place(d, x, y + top);
      tallest = std::max(tallest, top + d.height);
    }
    y += tallest + 18;
  }
  const double height = y + kEdge - 18;
  std::string label = p.title;
  for (const auto& [heading, d] : p.panels)
    label += ". " + (heading.empty() ? "" : heading + ": ") + d.label;
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}"><style>{3}{4}</style>)"
      R"svg(<rect width="{0}" height="{1}" rx="10" style="fill:var(--card)"/>{5}</svg>)svg"
      "\n",
      coordinate(width), coordinate(height), escape(label), theme_style(p.experts),
      report_asset("chart.css"), body);
}

}  // namespace moe
