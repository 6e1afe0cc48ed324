// Charts as SVG: lines, stacked shares, bars and heat maps, without a library. A chart is a Drawing
// in a coordinate system of its own, some 360 units wide so that its text stays readable on a
// phone; colours are classes of share/report/chart.css, which knows light and dark.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analyze/data/report.h"

namespace moe {

constexpr double kPanelWidth = 360;

struct Drawing {
  double width = kPanelWidth, height = 0;
  std::string label;  // what it shows, in words, for who cannot see it; plain text
  std::string body;   // markup
};

// An <svg> element for a page that has chart.css.
std::string svg_element(const Drawing&);

// How a value is written: 1.34, 52%, 2.3×.
enum class Unit { number, share, ratio };
std::string in_unit(double value, Unit);

struct Series {
  std::string name, colour;  // a class: x0.. of experts, q0..q7 of ordered things, ink, soft
  std::vector<double> x, y;  // values that are not finite leave a gap
  bool dots = false, dashed = false;
};
struct Mark {  // a moment, e.g. an alarm
  double x = 0;
  std::string text;
};
struct LineChart {
  std::string label, x_title, y_title;
  Unit unit = Unit::number;
  std::vector<Series> series;
  Series band_low, band_high;  // a range behind the lines; empty: none
  std::vector<Mark> marks;
  std::optional<double> low, high;  // of the y axis; otherwise that of the values. Values below
                                    // `low` lower it, lines leave the chart above `high`.
  std::optional<double> reference;  // a level to compare with, and its name
  std::string reference_name;
  double width = kPanelWidth, height = 221;
  bool whole_x = false;  // x counts things
  bool hover = true;     // values appear under the pointer
};
Drawing draw_lines(const LineChart&);

// Shares that add up to 1, as bands over x, the first at the bottom.
struct StackChart {
  std::string label, x_title;
  std::vector<double> x;
  std::vector<Series> bands;  // y only
  double width = kPanelWidth, height = 181;
  bool hover = true;
};
Drawing draw_stack(const StackChart&);

// Named points: what is bought against what it costs.
struct Point {
  double x = 0, y = 0;
  std::string name, says;  // beside the point, and under the pointer
  std::string colour;
  bool ringed = false;  // the one that matters
  bool above = false;   // its name stands above it, apart from the others'
};
struct PointChart {
  std::string label, x_title, y_title;
  Unit x_unit = Unit::number;
  std::vector<Point> points;
  bool log_y = true;   // y is told by factors
  bool joined = true;  // those of one colour, in the order given
  double width = kPanelWidth, height = 250;
};
Drawing draw_points(const PointChart&);

struct Bar {
  std::string name, text;
  double value = 0;
};
Drawing draw_bars(const std::string& label, const std::vector<Bar>&, double width = kPanelWidth);

// Colour says how far a value is from its even share, by factors: white at the share, blue above,
// orange below, full at `limit` times (or 1 / limit).
struct HeatMap {
  std::string label, row_word, column_word;
  std::string caption;  // above the map: what goes down and what across
  std::vector<std::string> rows, columns;
  double from = 0, to = 0;  // numbers that the columns span, where they are no names
  Grid value;               // [rows, columns]; not finite: left blank
  double even = 0;          // the share that is white
  double limit = 4;
  double width = kPanelWidth, row_height = 22, max_height = 320;
  bool hover = true;
};
Drawing draw_heat(const HeatMap&);
// The scale of such maps in one line.
Drawing draw_heat_scale(double limit, const std::string& even_name);

// Drawings side by side below a title and a line of text, with chart.css inside: a picture that
// stands alone.
struct Picture {
  std::string title, line;
  std::vector<std::pair<std::string, Drawing>> panels;  // heading (may be empty) and drawing
  std::optional<Drawing> scale;
  int columns = 1;
  int64_t experts = 0;  // whose colours it uses
};
std::string standalone_svg(const Picture&);

}  // namespace moe
