#include "analyze/pictures/league_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analyze/pages/markup.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/svg_parts.h"

namespace moe {
namespace {

constexpr double kArmHeight = 19, kLeagueTop = 8;
constexpr size_t kArmCurves = 4;  // beside the twin's
constexpr size_t kArmName = 22;   // characters of an arm's name beside its row

bool has_loss_to_show(const LeagueRow& row) {
  return !row.losses.empty() && std::isfinite(row.loss);
}

// "mixtral: 1.1075, of 3 seeds 1.1040 to 1.1110"
std::string arm_says(const LeagueRow& row) {
  std::string text = fmt::format("{}: {:.4f} nats a byte", row.arm.name, row.loss);
  if (row.losses.size() > 1) {
    const auto [low, high] = std::minmax_element(row.losses.begin(), row.losses.end());
    text += fmt::format(", of {} seeds {:.4f} to {:.4f}", row.losses.size(), *low, *high);
  }
  if (row.run_times) text += fmt::format(", {:.2f} of the twin's time", *row.run_times);
  return text;
}

// A recipe whose evaluation sees later tokens is no rival of the others.
std::string arm_colour(const LeagueRow& row) {
  if (row.arm.name == kTwin) return "ink";
  return row.arm.not_causal.empty() ? "q2" : "soft";
}

void draw_arm(std::string& out, const LeagueRow& row, const svg::Axis& x, double y) {
  const std::string colour = arm_colour(row);
  out += svg::text(x.from - 8, y + 4, "lb e", shortened(row.arm.name, kArmName));
  out += "<g>" + svg::title(arm_says(row));
  if (row.losses.size() > 1) {
    const auto [low, high] = std::minmax_element(row.losses.begin(), row.losses.end());
    out += svg::line(x(*low), y, x(*high), y, "ln " + colour);
  }
  out += fmt::format(R"(<circle class="dt {}" cx="{}" cy="{}" r="4.5"/></g>)", colour,
                     coordinate(x(row.loss)), coordinate(y));
}

}  // namespace

Figure league_loss_figure(const League& league, const FigureOptions& o) {
  Figure f = empty_figure("league_loss");
  double low = 1e300, high = -1e300, names = 0;
  std::vector<const LeagueRow*> rows;
  for (const LeagueRow& row : league.rows) {
    if (!has_loss_to_show(row)) continue;
    rows.push_back(&row);
    for (const double loss : row.losses) low = std::min(low, loss), high = std::max(high, loss);
    names = std::max(names, svg::width_of(shortened(row.arm.name, kArmName)));
  }
  if (rows.empty()) return f;
  const double bottom = kLeagueTop + kArmHeight * static_cast<double>(rows.size()) + 4;
  const double room = 0.04 * (high - low);
  const svg::Axis x =
      svg::make_axis(std::max(0.0, low - room), high + room, names + 12, o.width - 14, 5);
  Drawing d{.width = o.width,
            .height = bottom + svg::kBelowAxis,
            .label = "held-out loss of each arm, the lowest on top",
            .body = {}};
  svg::draw_x_axis(d.body, x, kLeagueTop, bottom, "nats a byte", true);
  if (const LeagueRow* twin = find_row(league, kTwin))
    d.body += svg::line(x(twin->loss), kLeagueTop, x(twin->loss), bottom, "rf");
  for (size_t i = 0; i < rows.size(); ++i)
    draw_arm(d.body, *rows[i], x, kLeagueTop + kArmHeight * (static_cast<double>(i) + 0.5));
  f.panels.push_back({.heading = "", .drawing = std::move(d), .note = {}});
  return f;
}

Figure league_cost_figure(const League& league, const FigureOptions& o) {
  Figure f = empty_figure("league_cost");
  PointChart chart{.label = "held-out loss of each arm against the time of a run",
                   .x_title = "time of a run, times the dense twin's",
                   .y_title = "nats a byte",
                   .x_unit = Unit::ratio,
                   .points = {},
                   .log_y = false,
                   .joined = false,
                   .width = o.width};
  if (o.width > kPanelWidth) chart.height = 330;
  int64_t i = 0;
  for (const LeagueRow& row : league.rows)
    if (has_loss_to_show(row) && row.run_times)
      chart.points.push_back({*row.run_times, row.loss, row.arm.name, arm_says(row),
                              row.arm.name == kTwin ? "ink" : expert_colour(i++),
                              row.arm.name == kTwin, row.arm.name == kTwin});
  if (chart.points.size() > 1)
    f.panels.push_back({.heading = "", .drawing = draw_points(chart), .note = {}});
  return f;
}

Figure league_curve_figure(const League& league, const FigureOptions& o) {
  Figure f = empty_figure("league_curve");
  LineChart chart{.label = "held-out loss over the steps",
                  .x_title = "step",
                  .y_title = "nats a byte",
                  .width = o.width};
  chart.hover = o.hover;
  size_t others = 0;
  for (const LeagueRow& row : league.rows) {
    const bool twin = row.arm.name == kTwin;
    if (!has_loss_to_show(row) || row.curve.size() < 2 || !row.arm.not_causal.empty() ||
        row.arm.time > 0 || (!twin && others == kArmCurves))
      continue;
    Series line{.name = row.arm.name,
                .colour = twin ? "ink" : expert_colour(static_cast<int64_t>(others)),
                .x = {},
                .y = {},
                .dashed = twin};
    others += !twin;
    for (const auto& [step, loss] : row.curve) {
      // the first fall, in which all arms are alike, may leave the chart
      if (4 * step >= row.curve.back().first) chart.high = std::max(chart.high.value_or(0), loss);
      line.x.push_back(static_cast<double>(step));
      line.y.push_back(loss);
    }
    chart.series.push_back(std::move(line));
  }
  if (!chart.series.empty())
    f.panels.push_back({.heading = "", .drawing = draw_lines(chart), .note = {}});
  return f;
}

std::string league_picture(const League& league) {
  const Figure f = league_loss_figure(league, {.width = 640, .hover = false});
  Picture p{.title = f.title, .line = sentence(f.line), .panels = {}, .scale = {}, .experts = 8};
  for (const Panel& panel : f.panels) p.panels.emplace_back(panel.heading, panel.drawing);
  return standalone_svg(p);
}

}  // namespace moe
