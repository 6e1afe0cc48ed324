// A line chart as one self-contained SVG, readable on light and dark pages. For the pictures that
// the benchmarks draw.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace moe::bench {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false;
  bool y_from_zero = true;
  std::vector<Series> series;
};

// Round steps for about `count` marks between low and high: 1, 2 or 5 times a power of ten.
inline std::vector<double> marks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw))),
               digit = raw / power;
  const double step = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
  std::vector<double> out;
  for (double v = std::ceil(low / step) * step; v <= high + 1e-9 * step; v += step)
    out.push_back(v);
  return out;
}

inline std::string to_svg(const Chart& chart) {
  constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 150, kTop = 40, kBottom = 50;
  static const char* const kColours[] = {"#4477aa", "#cc6677", "#228833", "#aa7733",
                                         "#8855aa", "#33a0b0", "#888888"};
  double x0 = 1e300, x1 = -1e300, y0 = 1e300, y1 = -1e300;
  for (const Series& s : chart.series)
    for (auto [x, y] : s.points)
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
  if (chart.y_from_zero) y0 = 0;
  const double pad = (y1 - y0) * 0.05 + 1e-12;
  y1 += pad;
  if (!chart.y_from_zero) y0 -= pad;
  const auto scale = [&](double x) { return chart.log_x ? std::log2(x) : x; };
  const auto px = [&](double x) {
    return kLeft + (scale(x) - scale(x0)) / std::max(scale(x1) - scale(x0), 1e-12) *
                       (kWidth - kLeft - kRight);
  };
  const auto py = [&](double y) {
    return kHeight - kBottom - (y - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>text{{fill:#333}} .grid{{stroke:#8884}} rect.page{{fill:#fff}} @media "
      "(prefers-color-scheme: dark){{text{{fill:#ddd}} "
      "rect.page{{fill:#181818}}}}</style>\n"
      "<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n<text x=\"{2}\" y=\"22\" "
      "font-size=\"15\">{3}</text>\n",
      kWidth, kHeight, kLeft, chart.title);
  for (double y : marks(y0, y1, 6))
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text x=\"{3}\" "
        "y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft, kWidth - kRight, py(y), kLeft - 6, py(y) + 4, y);
  std::vector<double> xs;
  if (chart.log_x)
    for (const auto& p : chart.series.front().points) xs.push_back(p.first);
  else xs = marks(x0, x1, 6);
  for (double x : xs)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text "
        "x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.3g}</text>\n",
        px(x), kTop, kHeight - kBottom, kHeight - kBottom + 16, x);
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 10, chart.x_label);
  svg += fmt::format(
      "<text transform=\"translate(16 {:.0f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + kHeight - kBottom) / 2, chart.y_label);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& s = chart.series[i];
    const char* colour = kColours[i % std::size(kColours)];
    std::string path;
    for (auto [x, y] : s.points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", px(x), py(y));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path,
                       colour);
    for (auto [x, y] : s.points)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", px(x),
                         py(y), colour);
    const double y = kTop + 18.0 * static_cast<double>(i) + 6;
    svg += fmt::format(
        "<rect x=\"{0}\" y=\"{1:.0f}\" width=\"12\" height=\"3\" fill=\"{2}\"/><text x=\"{3}\" "
        "y=\"{4:.0f}\">{5}</text>\n",
        kWidth - kRight + 12, y, colour, kWidth - kRight + 30, y + 5, s.name);
  }
  return svg + "</svg>\n";
}

}  // namespace moe::bench
