// Heat maps. The colour of a cell is one of two hues at an opacity, over the card: what is even
// fades into the card in light and in dark alike. A small map has a cell for each value, with the
// value as its title; a large one a path for each step of colour, and its values as one character
// each for the script.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/pages/markup.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/svg_chart.h"
#include "analyze/pictures/svg_parts.h"

namespace moe {
namespace {

constexpr int64_t kSmallMap = 1024;  // cells
constexpr int kSteps = 8;            // of colour on either side, in large maps
constexpr double kGutterMost = 84;

// log of the ratio to the even share over log of the limit: -1 to 1; not finite where there is no
// value.
double heat_of(double value, const HeatMap& m) {
  if (!std::isfinite(value)) return NAN;
  if (m.even <= 0) return value > 0 ? 1 : 0;
  if (value <= 0) return -1;
  return std::clamp(std::log(value / m.even) / std::log(m.limit), -1.0, 1.0);
}

std::string cell_says(const HeatMap& m, int64_t r, int64_t c, double value) {
  const auto name = [](const std::string& word, const std::string& n) {
    return word.empty() ? n : word + " " + n;
  };
  std::string says = name(m.row_word, m.rows[static_cast<size_t>(r)]) + ", " +
                     name(m.column_word, m.columns[static_cast<size_t>(c)]) + ": ";
  if (!std::isfinite(value)) return says + "no value";
  says += percent(value);
  return m.even > 0 ? says + fmt::format(", {} the even share", times(value / m.even)) : says;
}

struct Cells {
  double left, top, width, height, gap;
};

void draw_cells(std::string& out, const HeatMap& m, const Cells& at) {
  const bool print = at.width >= 25 && at.height >= 14;
  for (int64_t r = 0; r < m.value.rows; ++r)
    for (int64_t c = 0; c < m.value.cols; ++c) {
      const double value = m.value(r, c), heat = heat_of(value, m),
                   x = at.left + at.width * static_cast<double>(c),
                   y = at.top + at.height * static_cast<double>(r);
      const double strength = std::isfinite(heat) ? std::abs(heat) : 0;
      std::string cell = svg::rect(x, y, at.width - at.gap, at.height - at.gap,
                                   !std::isfinite(heat) ? "no"
                                   : heat < 0           ? "dn cl"
                                                        : "up cl");
      if (std::isfinite(heat)) cell += fmt::format(R"( fill-opacity="{}")", decimal(strength, 2));
      out += m.hover ? cell + ">" + svg::title(cell_says(m, r, c, value)) + "</rect>" : cell + "/>";
      if (!print || !std::isfinite(heat)) continue;
      std::string number = percent(value);
      number.pop_back();  // the scale says that these are hundredths
      out += svg::text(x + (at.width - at.gap) / 2, y + at.height / 2 + 3, cell_text_class(heat),
                       number);
    }
}

// Runs of one colour along a row are one piece of that colour's path.
void draw_paths(std::string& out, const HeatMap& m, const Cells& at) {
  std::array<std::string, 2 * kSteps + 1> paths;
  std::string blanks, values;
  const auto coarse = [&](int64_t r, int64_t c) {
    const double heat = heat_of(m.value(r, c), m);
    return std::isfinite(heat) ? static_cast<int>(std::lround(heat * kSteps)) : kSteps + 1;
  };
  for (int64_t r = 0; r < m.value.rows; ++r)
    for (int64_t c = 0; c < m.value.cols;) {
      const int step = coarse(r, c);
      int64_t end = c + 1;
      while (end < m.value.cols && coarse(r, end) == step) ++end;
      if (step != 0)
        (step > kSteps ? blanks : paths[static_cast<size_t>(step + kSteps)]) +=
            fmt::format("M{} {}h{}v1h-{}z", c, r, end - c, end - c);
      c = end;
    }
  out += fmt::format(R"svg(<g transform="translate({} {}) scale({:.5f} {:.5f})">)svg",
                     coordinate(at.left), coordinate(at.top), at.width, at.height);
  for (int step = -kSteps; step <= kSteps; ++step)
    if (const std::string& d = paths[static_cast<size_t>(step + kSteps)]; !d.empty())
      out += fmt::format(R"(<path class="{}" fill-opacity="{}" d="{}"/>)", step < 0 ? "dn" : "up",
                         decimal(std::abs(step) / double{kSteps}, 3), d);
  if (!blanks.empty()) out += fmt::format(R"(<path class="no" d="{}"/>)", blanks);
  out += "</g>";
  if (!m.hover) return;
  // One letter a value for the script: 'A' to 'q' are ratios from 1/limit to limit, '~' is no
  // value. None of them needs escaping.
  for (const double v : m.value.at) {
    const double heat = heat_of(v, m);
    values += std::isfinite(heat) ? static_cast<char>('A' + std::lround((heat + 1) * 24)) : '~';
  }
  const auto list = [](const std::string& word, const std::vector<std::string>& names) {
    std::string all = escape(word);
    for (const std::string& n : names) all.append(1, '|').append(escape(n));
    return all;
  };
  out +=
      svg::rect(at.left, at.top, at.width * static_cast<double>(m.value.cols),
                at.height * static_cast<double>(m.value.rows), "hv map") +
      fmt::format(R"( data-rows="{}" data-cols="{}" data-limit="{}" data-even="{}" data-v="{}"/>)",
                  list(m.row_word, m.rows), list(m.column_word, m.columns), decimal(m.limit, 4),
                  decimal(m.even, 6), values);
}

// Names along the left or the top, as many as have room.
void draw_names(std::string& out, const HeatMap& m, const Cells& at) {
  const auto stride = [](double cell, double needed) {
    for (const int s : {1, 2, 5, 10, 20, 50, 100})
      if (cell * s >= needed) return s;
    return 200;
  };
  size_t longest = 1;
  for (const std::string& c : m.columns) longest = std::max(longest, length_of(c));
  const auto across = static_cast<size_t>(
                 stride(at.width, svg::kCharacter * static_cast<double>(longest) + 4)),
             down = static_cast<size_t>(stride(at.height, 11));
  if (m.to > m.from) {
    const svg::Axis x = svg::make_axis(
        m.from, m.to, at.left, at.left + at.width * static_cast<double>(m.columns.size()), 4);
    const double step = x.ticks.size() > 1 ? x.ticks[1] - x.ticks[0] : 1;
    for (const double tick : x.ticks) {
      const std::string number = tick_number(tick, step);
      const bool leaves = x(tick) + svg::width_of(number) / 2 > m.width;  // what is cut off there
      out += svg::text(x(tick), at.top - 5, leaves ? "ax e" : "ax m", number);
    }
  }
  for (size_t c = 0; c < m.columns.size() && m.to <= m.from; c += across)
    out += svg::text(at.left + at.width * (static_cast<double>(c) + 0.5) - at.gap / 2, at.top - 5,
                     "ax m", m.columns[c]);
  for (size_t r = 0; r < m.rows.size(); r += down)
    out += svg::text(at.left - 6, at.top + at.height * (static_cast<double>(r) + 0.5) + 3.5, "lb e",
                     shortened(m.rows[r], 13));
}

}  // namespace

Drawing draw_heat(const HeatMap& m) {
  Drawing drawing{.width = m.width, .height = 0, .label = m.label, .body = {}};
  const auto rows = static_cast<double>(m.value.rows), cols = static_cast<double>(m.value.cols);
  if (m.value.rows == 0 || m.value.cols == 0) {
    drawing.height = 60;
    drawing.body = svg::text(m.width / 2, 30, "ax m", "no values");
    return drawing;
  }
  size_t longest = 1;
  for (const std::string& r : m.rows)
    longest = std::max(longest, std::min<size_t>(13, length_of(r)));
  const double gutter = std::min(kGutterMost, svg::kCharacter * static_cast<double>(longest)) + 8;
  Cells at{.left = gutter,
           .top = 30,
           .width = (m.width - gutter) / cols,
           .height = std::min(m.row_height, m.max_height / rows),
           .gap = 0};
  if (at.width > 46) at.width = 46;
  at.gap = std::min(at.width, at.height) >= 7 ? 1 : 0;
  drawing.height = at.top + at.height * rows + 2;
  drawing.body += svg::text(0, 10, "ax", m.caption);
  draw_names(drawing.body, m, at);
  if (m.value.rows * m.value.cols <= kSmallMap) draw_cells(drawing.body, m, at);
  else draw_paths(drawing.body, m, at);
  drawing.body += svg::rect(at.left - 0.5, at.top - 0.5, at.width * cols - at.gap + 1,
                            at.height * rows - at.gap + 1, "fr") +
                  R"( pointer-events="none"/>)";
  return drawing;
}

Drawing draw_heat_scale(double limit, const std::string& even_name) {
  constexpr int kBoxes = 9;
  constexpr double kWidth = 22;
  Drawing drawing{.width = kBoxes * kWidth + 8,
                  .height = 30,
                  .label = "colours from 1/" + coordinate(limit) + " of the even share to " +
                           coordinate(limit) + " times",
                  .body = {}};
  for (int i = 0; i < kBoxes; ++i) {
    const double heat = (i - kBoxes / 2) / double{kBoxes / 2};
    drawing.body += svg::rect(4 + kWidth * i, 1, kWidth - 1, 11, heat < 0 ? "dn" : "up") +
                    fmt::format(R"( fill-opacity="{}"/>)", decimal(std::abs(heat), 2));
  }
  drawing.body += svg::rect(3.5, 0.5, kBoxes * kWidth, 12, "fr") + "/>";
  drawing.body += svg::text(4, 25, "ax", "1/" + coordinate(limit)) +
                  svg::text(drawing.width / 2, 25, "ax m", even_name) +
                  svg::text(drawing.width - 4, 25, "ax e", coordinate(limit) + "×");
  return drawing;
}

}  // namespace moe
