#include "analyze/pictures/svg_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analyze/pages/markup.h"

namespace moe::svg {

double width_of(std::string_view text) { return kCharacter * static_cast<double>(length_of(text)); }

Axis make_axis(double low, double high, double from, double to, int wanted, bool whole) {
  Axis axis{.low = low, .high = high, .from = from, .to = to};
  if (!(high > low)) {
    const double room = whole ? 0.5 : std::max(std::abs(low) * 0.1, 1e-3);
    // what cannot be negative gets no axis below 0
    axis.low = low >= 0 ? std::max(0.0, low - room) : low - room;
    axis.high = low + room;
  }
  const double rough = (axis.high - axis.low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double s : {1.0, 2.0, 5.0})
    if (rough <= s * power * 1.0001) {
      step = s * power;
      break;
    }
  if (whole) step = std::max(1.0, std::round(step));
  // Counted in whole steps, so that rounding does not pile up.
  for (double i = std::ceil(axis.low / step - 1e-9); i * step <= axis.high + step * 1e-9; ++i)
    axis.ticks.push_back(i == 0 ? 0 : i * step);
  return axis;
}

std::string text(double x, double y, std::string_view classes, std::string_view content) {
  return fmt::format(R"(<text x="{}" y="{}" class="{}">{}</text>)", coordinate(x), coordinate(y),
                     classes, escape(content));
}

std::string title(std::string_view content) {
  return fmt::format("<title>{}</title>", escape(content));
}

std::string line(double x0, double y0, double x1, double y1, std::string_view classes) {
  return fmt::format(R"(<path class="{}" d="M{} {}L{} {}"/>)", classes, coordinate(x0),
                     coordinate(y0), coordinate(x1), coordinate(y1));
}

std::string rect(double x, double y, double width, double height, std::string_view classes) {
  return fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" class="{}")", coordinate(x),
                     coordinate(y), coordinate(std::max(0.1, width)),
                     coordinate(std::max(0.1, height)), classes);
}

std::vector<double> spread(std::vector<double> at, double gap, double low, double high) {
  if (at.empty()) return at;
  std::vector<size_t> order(at.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at[a] < at[b]; });
  gap = std::min(gap, (high - low) / static_cast<double>(at.size()));
  // Pushed apart downwards, then back up from the end.
  double least = low;
  for (const size_t i : order) {
    at[i] = std::max(at[i], least);
    least = at[i] + gap;
  }
  double most = high;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    at[*i] = std::min(at[*i], most);
    most = at[*i] - gap;
  }
  return at;
}

void draw_x_axis(std::string& out, const Axis& x, double top, double bottom,
                 const std::string& name, bool grid) {
  const double step = x.ticks.size() > 1 ? x.ticks[1] - x.ticks[0] : 1;
  for (const double tick : x.ticks) {
    const double at = x(tick);
    if (grid) out += line(at, top, at, bottom, "gr");
    out += text(at, bottom + 15, "ax m", tick_number(tick, step));
  }
  out += line(x.from, bottom, x.to, bottom, "bs");
  out += text(x.to, bottom + 28, "ax e", name);
}

void draw_y_axis(std::string& out, const Axis& y, double left, double right, Unit unit) {
  const double step = y.ticks.size() > 1 ? y.ticks[1] - y.ticks[0] : 1;
  for (const double tick : y.ticks) {
    out += line(left, y(tick), right, y(tick), "gr");
    out += text(left - 6, y(tick) + 4, "ax e",
                unit == Unit::share ? tick_number(tick * 100, step * 100) + "%"
                                    : tick_number(tick, step) + (unit == Unit::ratio ? "×" : ""));
  }
}

}  // namespace moe::svg
