// What the charts share: the plot's frame, ticks at round numbers, labels that do not run into each
// other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analyze/pictures/svg_chart.h"

namespace moe::svg {

// Text of 11 units of the page's font; a little wide rather than narrow.
constexpr double kCharacter = 6.1;
double width_of(std::string_view text);

struct Axis {
  double low = 0, high = 1;   // values
  double from = 0, to = 1;    // units of the drawing
  std::vector<double> ticks;  // values
  double operator()(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};
// Widens an empty range, then places some `wanted` ticks at 1, 2 or 5 times a power of ten; with
// `whole`, at whole numbers only.
Axis make_axis(double low, double high, double from, double to, int wanted, bool whole = false);

// anchor: "" start, "e" end, "m" middle. `text` is escaped here.
std::string text(double x, double y, std::string_view classes, std::string_view text);
std::string title(std::string_view text);
std::string line(double x0, double y0, double x1, double y1, std::string_view classes);
// without its end: "<rect ..." for more, then "/>"
std::string rect(double x, double y, double width, double height, std::string_view classes);

// Places of labels that want to be at `at`, `gap` apart and within [low, high], in the order given.
std::vector<double> spread(std::vector<double> at, double gap, double low, double high);

// Numbers along the bottom with their grid, and below them the name of what they count; together
// kBelowAxis high.
constexpr double kBelowAxis = 33;
void draw_x_axis(std::string& out, const Axis&, double top, double bottom, const std::string& name,
                 bool grid);
void draw_y_axis(std::string& out, const Axis&, double left, double right, Unit);

}  // namespace moe::svg
