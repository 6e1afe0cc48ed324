#include "analyze/pictures/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze/pages/markup.h"
#include "analyze/pages/report_assets.h"
#include "analyze/pictures/svg_parts.h"

namespace moe {
namespace {

using svg::Axis;

constexpr double kChartLeft = 38, kChartTop = 22, kChartBottom = svg::kBelowAxis;

struct Range {
  double low = INFINITY, high = -INFINITY;
  void take(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

Drawing no_values(Drawing d) {
  d.body = svg::text(d.width / 2, d.height / 2, "ax m", "no values");
  return d;
}

// The line through (x, y), broken where a value is missing; the part above `high` is cut off at
// that level.
std::string path_of(const Series& s, const Axis& x, const Axis& y) {
  std::string d;
  bool on = false;
  double px = 0, py = 0;
  const auto add = [&](char how, double at_x, double at_y) {
    d += fmt::format("{}{} {}", how, coordinate(x(at_x)), coordinate(y(at_y)));
  };
  const auto crossing = [&](double x0, double y0, double x1, double y1) {
    return x0 + (y.high - y0) / (y1 - y0) * (x1 - x0);
  };
  bool before = false;
  for (size_t i = 0; i < s.x.size(); ++i) {
    const double vx = s.x[i], vy = s.y[i];
    if (!std::isfinite(vx) || !std::isfinite(vy)) {
      on = before = false;
      continue;
    }
    const bool inside = vy <= y.high;
    if (before && inside != (py <= y.high))
      add(inside ? 'M' : 'L', crossing(px, py, vx, vy), y.high);
    if (inside) add(on || (before && py > y.high) ? 'L' : 'M', vx, vy);
    on = inside;
    before = true;
    px = vx;
    py = vy;
  }
  return d;
}

std::string band_path(const LineChart& c, const Axis& x, const Axis& y) {
  std::string d;
  for (size_t i = 0; i < c.band_high.x.size(); ++i)
    d += fmt::format("{}{} {}", i == 0 ? 'M' : 'L', coordinate(x(c.band_high.x[i])),
                     coordinate(y(std::min(y.high, c.band_high.y[i]))));
  for (size_t i = c.band_low.x.size(); i-- > 0;)
    d += fmt::format("L{} {}", coordinate(x(c.band_low.x[i])),
                     coordinate(y(std::min(y.high, c.band_low.y[i]))));
  return d + "Z";
}

// The value of a series at x: that of its nearest point, if one is within `reach`.
std::optional<double> value_near(const Series& s, double x, double reach) {
  std::optional<double> best;
  double distance = reach;
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.y[i]) || std::abs(s.x[i] - x) > distance) continue;
    distance = std::abs(s.x[i] - x);
    best = s.y[i];
  }
  return best;
}

// Columns that tell their values under the pointer; no script needed.
void draw_readout(std::string& out, const LineChart& c, const Axis& x, double top, double bottom) {
  const Series* most = &c.series[0];
  for (const Series& s : c.series)
    if (s.x.size() > most->x.size()) most = &s;
  const std::vector<double>& at = most->x;
  for (size_t i = 0; i < at.size(); ++i) {
    const double from = i == 0 ? x.from : (x(at[i - 1]) + x(at[i])) / 2,
                 to = i + 1 == at.size() ? x.to : (x(at[i]) + x(at[i + 1])) / 2;
    std::string says = fmt::format("{} {}", c.x_title, decimal(at[i], 0));
    // Half a column, and a half more for columns that are not all as wide.
    const double reach =
        at.size() > 1 ? 0.75 * (at.back() - at.front()) / static_cast<double>(at.size() - 1) : 0.5;
    for (const Series& s : c.series)
      if (const auto v = value_near(s, at[i], reach))
        says += fmt::format(", {} {}", s.name.empty() ? c.y_title : s.name, in_unit(*v, c.unit));
    out += svg::rect(from, top, to - from, bottom - top, "hv") + ">" + svg::title(says) + "</rect>";
  }
}

void draw_series(std::string& out, const Series& s, const Axis& x, const Axis& y) {
  const std::string d = path_of(s, x, y);
  if (!d.empty())
    out += fmt::format(R"(<path class="ln{} {}" d="{}"/>)", s.dashed ? " ds" : "", s.colour, d);
  if (!s.dots && s.x.size() > 1) return;
  for (size_t i = 0; i < s.x.size(); ++i)
    if (std::isfinite(s.y[i]) && s.y[i] <= y.high)
      out += fmt::format(R"(<circle class="dt {}" cx="{}" cy="{}" r="3.2"/>)", s.colour,
                         coordinate(x(s.x[i])), coordinate(y(s.y[i])));
}

// Names at the right end of their lines, pushed apart, each with a tick of its colour.
void draw_names(std::string& out, const std::vector<Series>& series, const Axis& x, const Axis& y,
                size_t longest) {
  std::vector<const Series*> named;
  std::vector<double> at;
  for (const Series& s : series) {
    if (s.name.empty()) continue;
    for (size_t i = s.x.size(); i-- > 0;)
      if (std::isfinite(s.y[i])) {
        named.push_back(&s);
        at.push_back(y(std::min(y.high, s.y[i])) + 4);
        break;
      }
  }
  at = svg::spread(at, 13, y.to + 6, y.from + 2);
  for (size_t i = 0; i < named.size(); ++i) {
    out += fmt::format(R"(<path class="ln {}" d="M{} {}h8"/>)", named[i]->colour,
                       coordinate(x.to + 6), coordinate(at[i] - 4));
    out += svg::text(x.to + 17, at[i], "lb", shortened(named[i]->name, longest));
  }
}

void draw_marks(std::string& out, const LineChart& c, const Axis& x, double top, double bottom) {
  for (const Mark& m : c.marks) {
    if (m.x < x.low || m.x > x.high) continue;
    out += "<g>" + svg::title(m.text) + svg::line(x(m.x), top, x(m.x), bottom, "al") +
           svg::text(x(m.x) + 3, top + 9, "at", "!") + "</g>";
  }
}

}  // namespace

std::string in_unit(double value, Unit unit) {
  switch (unit) {
    case Unit::share: return percent(value);
    case Unit::ratio: return times(value);
    case Unit::number: break;
  }
  return compact(value);
}

std::string svg_element(const Drawing& d) {
  return fmt::format(
      R"(<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}" xmlns="http://www.w3.org/2000/svg">{3}</svg>)",
      coordinate(d.width), coordinate(d.height), escape(d.label), d.body);
}

Drawing draw_lines(const LineChart& c) {
  Drawing drawing{.width = c.width, .height = c.height, .label = c.label, .body = {}};
  std::string& out = drawing.body;
  Range xs, ys;
  size_t longest = 0;
  for (const Series& s : c.series) {
    for (const double v : s.x) xs.take(v);
    for (const double v : s.y) ys.take(v);
    longest = std::max(longest, length_of(s.name));
  }
  for (const Series* s : {&c.band_low, &c.band_high})
    for (const double v : s->y) ys.take(v);
  if (xs.empty() || ys.empty()) return no_values(drawing);
  if (c.reference) ys.take(*c.reference);
  if (c.low) ys.low = std::min(ys.low, *c.low);
  if (c.high) ys.high = *c.high;

  longest = std::min<size_t>(longest, 13);
  const double right = longest == 0 ? 16 : 20 + svg::kCharacter * static_cast<double>(longest);
  const Axis x = svg::make_axis(xs.low, xs.high, kChartLeft, c.width - right, 5, c.whole_x);
  const Axis y = svg::make_axis(ys.low, ys.high, c.height - kChartBottom, kChartTop, 5);
  out += svg::text(0, 10, "ax", c.y_title);
  svg::draw_y_axis(out, y, kChartLeft, x.to, c.unit);
  svg::draw_x_axis(out, x, y.to, y.from, c.x_title, false);
  if (c.reference) {
    out += svg::line(kChartLeft, y(*c.reference), x.to, y(*c.reference), "rf");
    out += svg::text(x.to, y(*c.reference) - 4, "ax e", c.reference_name);
  }
  if (!c.band_high.x.empty())
    out += fmt::format(R"(<path class="bd {}" d="{}"/>)", c.band_high.colour, band_path(c, x, y));
  for (const Series& s : c.series) draw_series(out, s, x, y);
  draw_names(out, c.series, x, y, longest);
  if (c.hover) draw_readout(out, c, x, y.to, y.from);
  draw_marks(out, c, x, y.to, y.from);
  return drawing;
}

Drawing draw_stack(const StackChart& c) {
  Drawing drawing{.width = c.width, .height = c.height, .label = c.label, .body = {}};
  std::string& out = drawing.body;
  if (c.x.empty() || c.bands.empty()) return no_values(drawing);
  if (c.x.size() == 1) {  // a moment: as wide as a step
    StackChart two = c;
    two.x.push_back(c.x[0] + 1);
    for (Series& band : two.bands) band.y.push_back(band.y[0]);
    return draw_stack(two);
  }
  const size_t points = c.x.size();
  const Axis x = svg::make_axis(c.x.front(), c.x.back(), kChartLeft, c.width - 26, 5, true);
  const Axis y = svg::make_axis(0, 1, c.height - kChartBottom, 8, 2);
  std::vector<double> base(points, 0), top(points, 0);
  for (const Series& band : c.bands) {
    std::string upper, lower;
    for (size_t i = 0; i < points; ++i) {
      top[i] = std::min(1.0, base[i] + (std::isfinite(band.y[i]) ? band.y[i] : 0));
      upper +=
          fmt::format("{}{} {}", i == 0 ? 'M' : 'L', coordinate(x(c.x[i])), coordinate(y(top[i])));
    }
    for (size_t i = points; i-- > 0;)
      lower += fmt::format("L{} {}", coordinate(x(c.x[i])), coordinate(y(base[i])));
    out += fmt::format(R"(<path class="ar {}" d="{}{}Z"/>)", band.colour, upper, lower);
    if (y(base.back()) - y(top.back()) >= 9)
      out += svg::text(x.to + 8, (y(base.back()) + y(top.back())) / 2 + 4, "lb", band.name);
    base = top;
  }
  svg::draw_x_axis(out, x, y.to, y.from, c.x_title, false);
  for (const double share : {0.0, 0.5, 1.0})
    out += svg::text(kChartLeft - 6, y(share) + 4, "ax e", percent(share));
  for (size_t i = 0; c.hover && i < points; ++i) {
    const double from = i == 0 ? x.from : (x(c.x[i - 1]) + x(c.x[i])) / 2,
                 to = i + 1 == points ? x.to : (x(c.x[i]) + x(c.x[i + 1])) / 2;
    std::string says = fmt::format("{} {}:", c.x_title, decimal(c.x[i], 0));
    for (const Series& band : c.bands)
      says += fmt::format(" {} {},", band.name, percent(band.y[i]));
    says.pop_back();
    out +=
        svg::rect(from, y.to, to - from, y.from - y.to, "hv") + ">" + svg::title(says) + "</rect>";
  }
  return drawing;
}

Drawing draw_bars(const std::string& label, const std::vector<Bar>& bars, double width) {
  constexpr double kRow = 22;
  Drawing drawing{.width = width,
                  .height = kRow * static_cast<double>(bars.size()) + 4,
                  .label = label,
                  .body = {}};
  size_t name = 0, value = 0;
  double most = 0;
  for (const Bar& b : bars) {
    name = std::max(name, std::min<size_t>(14, length_of(b.name)));
    value = std::max(value, length_of(b.text));
    if (std::isfinite(b.value)) most = std::max(most, b.value);
  }
  const double left = svg::kCharacter * static_cast<double>(name) + 8,
               room = width - left - svg::kCharacter * static_cast<double>(value) - 10;
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kRow * static_cast<double>(i) + 2,
                 length = most > 0 && std::isfinite(bars[i].value)
                              ? room * std::max(0.0, bars[i].value) / most
                              : 0;
    drawing.body += "<g>" + svg::title(bars[i].name + ": " + bars[i].text) +
                    svg::text(left - 8, y + 14, "lb e", shortened(bars[i].name, 14));
    drawing.body += svg::rect(left, y + 3, length, kRow - 8, "br q2") + R"( rx="2"/>)" +
                    svg::text(left + length + 6, y + 14, "ax", bars[i].text) + "</g>";
  }
  return drawing;
}

}  // namespace moe
