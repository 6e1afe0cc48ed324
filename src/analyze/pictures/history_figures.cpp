// The figures of a run: what metrics.jsonl told, averaged to as many points as a chart can show.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "analyze/data/definitions.h"
#include "analyze/pages/markup.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/report_figures.h"

namespace moe {
namespace {

constexpr double kTimeLimit = 2;  // of the colours of load over time

using Value = std::function<double(const HistoryPoint&)>;

// Means over runs of neighbouring points; each stands at the last step of its run. Values that are
// missing do not count.
Series averaged(const TrainingHistory& h, size_t most, const Value& value) {
  Series s;
  const size_t n = h.points.size(), groups = std::min(n, most);
  for (size_t g = 0; g < groups; ++g) {
    const size_t from = n * g / groups, to = n * (g + 1) / groups;
    double sum = 0, count = 0;
    for (size_t i = from; i < to; ++i)
      if (const double v = value(h.points[i]); std::isfinite(v)) sum += v, ++count;
    s.x.push_back(static_cast<double>(h.points[to - 1].step));
    s.y.push_back(count > 0 ? sum / count : NAN);
  }
  return s;
}

double at_or_nan(const std::vector<double>& v, size_t i) { return i < v.size() ? v[i] : NAN; }

size_t columns_for(double width) { return static_cast<size_t>(width / 4); }

// The top of a chart whose first steps fall from so high that what follows would be flat: the
// highest of what follows, so that no later spike is cut off. Absent where the first steps are not
// so high.
std::optional<double> calm_top(const std::vector<double>& values) {
  double low = INFINITY, high = -INFINITY, calm = -INFINITY;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]), high = std::max(high, values[i]);
    if (i >= values.size() / 20) calm = std::max(calm, values[i]);
  }
  if (values.size() < 24 || !std::isfinite(calm) || high - low < 1.4 * (calm - low)) return {};
  return calm + 0.04 * (calm - low);
}

std::vector<Mark> marks_of(const TrainingHistory& h) {
  std::vector<Mark> marks;
  // Of alarms close together one mark is enough: the page lists them all.
  const double span =
      h.points.empty() ? 1 : static_cast<double>(h.points.back().step - h.points.front().step);
  for (const HistoryAlarm& a : h.alarms) {
    const auto x = static_cast<double>(a.step);
    if (!marks.empty() && x - marks.back().x < span / 40) marks.back().text += "; " + a.text;
    else marks.push_back({x, fmt::format("step {}: {}", a.step, a.text)});
  }
  return marks;
}

Panel one_line(const TrainingHistory& h, const FigureOptions& o, const std::string& heading,
               const std::string& label, const Value& value) {
  LineChart chart{.label = label,
                  .x_title = "step",
                  .width = o.width,
                  .height = 161,
                  .whole_x = true,
                  .hover = o.hover};
  chart.series = {averaged(h, columns_for(o.width), value)};
  chart.series[0].colour = "q2";
  chart.high = calm_top(chart.series[0].y);
  chart.y_title = heading;
  return {.heading = "", .drawing = draw_lines(chart), .note = {}};
}

// Beside the one series that is there, of training.
void add_held_out(LineChart& chart, const std::vector<std::pair<double, double>>& points) {
  chart.series[0].name = "training";
  Series held{.name = "held out", .colour = "q6", .dots = points.size() <= 30};
  for (const auto& [step, value] : points) held.x.push_back(step), held.y.push_back(value);
  chart.series.push_back(held);
}

// Of few layers each its line; of many the mean, the range and the worst.
void add_layers(LineChart& chart, const TrainingHistory& h, size_t points,
                const std::function<double(const HistoryPoint&, size_t)>& value) {
  const size_t layers = h.layers.size();
  std::vector<Series> all;
  for (size_t l = 0; l < layers; ++l) {
    all.push_back(averaged(h, points, [&](const HistoryPoint& p) { return value(p, l); }));
    all.back().name = fmt::format("layer {}", h.layers[l]);
    all.back().colour = ordered_colour(static_cast<int64_t>(l), static_cast<int64_t>(layers));
  }
  if (layers <= static_cast<size_t>(kLayerColours)) {
    chart.series = std::move(all);
    return;
  }
  Series mean{.name = "mean", .colour = "ink"}, low, high;
  size_t worst = 0;
  double worst_last = -INFINITY;
  mean.x = low.x = high.x = all[0].x;
  for (size_t i = 0; i < all[0].x.size(); ++i) {
    double least = INFINITY, most = -INFINITY, sum = 0, count = 0;
    for (const Series& s : all) {
      if (!std::isfinite(s.y[i])) continue;
      least = std::min(least, s.y[i]), most = std::max(most, s.y[i]), sum += s.y[i], ++count;
    }
    mean.y.push_back(count > 0 ? sum / count : NAN);
    low.y.push_back(count > 0 ? least : 0);
    high.y.push_back(count > 0 ? most : 0);
  }
  for (size_t l = 0; l < layers; ++l)
    if (const double last = all[l].y.back(); std::isfinite(last) && last > worst_last)
      worst_last = last, worst = l;
  chart.series = {all[worst], mean};
  chart.series[0].colour = "q6";
  high.colour = low.colour = "q2";
  chart.band_low = low;
  chart.band_high = high;
}

// One layer's load over time: bands for few experts, a heat map of expert by step for many.
Drawing load_panel(const TrainingHistory& h, size_t layer, size_t experts, const FigureOptions& o) {
  const std::string label = fmt::format("load of layer {}'s experts over the run", h.layers[layer]);
  const auto share = [&](const HistoryPoint& p, size_t e) {
    return layer < p.load.size() ? at_or_nan(p.load[layer], e) : NAN;
  };
  if (experts <= 8) {
    StackChart chart{.label = label,
                     .x_title = "step",
                     .x = {},
                     .bands = {},
                     .width = o.width,
                     .hover = o.hover};
    for (size_t e = 0; e < experts; ++e) {
      chart.bands.push_back(
          averaged(h, columns_for(o.width), [&](const HistoryPoint& p) { return share(p, e); }));
      chart.bands.back().name = std::to_string(e);
      chart.bands.back().colour = expert_colour(static_cast<int64_t>(e));
    }
    chart.x = chart.bands[0].x;
    return draw_stack(chart);
  }
  // So many columns that a page of many layers and experts stays small.
  const size_t columns = std::clamp<size_t>(120'000 / (experts * h.layers.size()), 16, 60);
  HeatMap map{.label = label,
              .row_word = "expert",
              .column_word = "step",
              .caption = "expert ↓ step →",
              .even = 1 / static_cast<double>(experts),
              .width = o.width,
              .row_height = 10};
  map.limit = kTimeLimit;
  map.hover = o.hover;
  std::vector<Series> rows;
  for (size_t e = 0; e < experts; ++e) {
    rows.push_back(averaged(h, columns, [&](const HistoryPoint& p) { return share(p, e); }));
    map.rows.push_back(std::to_string(e));
  }
  for (const double step : rows[0].x) map.columns.push_back(decimal(step, 0));
  map.from = static_cast<double>(h.points.front().step);
  map.to = static_cast<double>(h.points.back().step);
  map.value = {.rows = static_cast<int64_t>(experts),
               .cols = static_cast<int64_t>(rows[0].x.size()),
               .at = {}};
  for (const Series& row : rows)
    map.value.at.insert(map.value.at.end(), row.y.begin(), row.y.end());
  return draw_heat(map);
}

}  // namespace

Figure loss_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("ce");
  if (h.points.empty()) return f;
  LineChart chart{.label = "cross-entropy over the steps of the run",
                  .x_title = "step",
                  .y_title = "nats per token",
                  .width = o.width};
  chart.whole_x = true;
  if (o.width > kPanelWidth) chart.height = 301;
  chart.hover = o.hover;
  chart.series.push_back(
      averaged(h, columns_for(o.width), [](const HistoryPoint& p) { return p.ce; }));
  chart.series[0].colour = "q2";
  if (!h.eval_ce.empty()) {
    std::vector<std::pair<double, double>> held;
    for (const auto& [step, ce] : h.eval_ce) held.emplace_back(step, ce);
    add_held_out(chart, held);
    f.line += ". Held out: " + std::string(definition("eval_ce").line);
  }
  chart.high = calm_top(chart.series[0].y);
  // A held-out loss that rises above it, as where a run learns its text by heart, stays inside.
  const std::vector<double>& steps = chart.series[0].x;
  for (const auto& [step, ce] : h.eval_ce)
    if (chart.high && static_cast<double>(step) >= steps[steps.size() / 20])
      chart.high = std::max(*chart.high, ce);
  if (chart.high && *chart.high < h.points[0].ce)
    chart.y_title +=
        fmt::format(" (from {} at step {})", compact(h.points[0].ce), h.points[0].step);
  chart.marks = marks_of(h);
  f.panels.push_back({.heading = "", .drawing = draw_lines(chart), .note = {}});
  return f;
}

Figure pairs_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("dpo");
  if (h.points.empty() || !h.points.front().pairs) return f;
  struct Panels {
    const char *word, *y_title, *key;  // the key of a note; the loss is what the card tells
    double PairPoint::*value;
  };
  const Panels panels[] = {{"loss", "nats a pair", nullptr, &PairPoint::loss},
                           {"margin", "nats a pair", "pair_margin", &PairPoint::margin},
                           {"accuracy", "of the pairs", "pair_accuracy", &PairPoint::accuracy}};
  for (const auto& [word, y_title, key, value] : panels) {
    LineChart chart{.label = fmt::format("{} of preference pairs over the run", word),
                    .x_title = "step",
                    .y_title = y_title,
                    .width = o.width,
                    .height = 161,
                    .whole_x = true,
                    .hover = o.hover};
    const auto of = [value = value](const PairPoint& p) { return p.*value; };
    chart.series = {averaged(h, columns_for(o.width),
                             [&](const HistoryPoint& p) { return p.pairs ? of(*p.pairs) : NAN; })};
    chart.series[0].colour = "q2";
    std::vector<std::pair<double, double>> held;
    for (const PairPoint& p : h.eval_pairs) held.emplace_back(p.step, of(p));
    if (!held.empty()) add_held_out(chart, held);
    f.panels.push_back({.heading = word,
                        .drawing = draw_lines(chart),
                        .note = key ? std::string(definition(key).line) : ""});
  }
  return f;
}

Figure auxiliary_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("losses");
  for (size_t i = 0; i < h.loss_names.size() && !h.points.empty(); ++i)
    f.panels.push_back(one_line(h, o, h.loss_names[i], h.loss_names[i] + " loss over the run",
                                [i](const HistoryPoint& p) { return at_or_nan(p.losses, i); }));
  return f;
}

Figure learning_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("grad_norm");
  f.title = "Gradient norm and learning rate";
  if (h.points.empty()) return f;
  f.panels.push_back(one_line(h, o, "gradient norm", "gradient norm over the run",
                              [](const HistoryPoint& p) { return p.grad_norm; }));
  f.panels.push_back(one_line(h, o, "learning rate", "learning rate over the run",
                              [](const HistoryPoint& p) { return p.lr; }));
  return f;
}

Figure max_vio_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("step_max_vio");
  if (h.points.empty() || h.layers.empty()) return f;
  LineChart chart{.label = "MaxVio of each layer over the run",
                  .x_title = "step",
                  .y_title = "max / mean - 1",
                  .low = 0,
                  .width = o.width,
                  .hover = o.hover};
  if (o.width > kPanelWidth) chart.height = 301;
  chart.whole_x = true;
  add_layers(chart, h, columns_for(o.width),
             [](const HistoryPoint& p, size_t l) { return at_or_nan(p.max_vio, l); });
  f.panels.push_back({.heading = "", .drawing = draw_lines(chart), .note = {}});
  if (!chart.band_high.x.empty())
    f.line += ". The band spans all layers; named are their mean and the layer that ends highest";
  return f;
}

Figure dropped_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("step_dropped");
  const bool any = std::any_of(h.points.begin(), h.points.end(), [](const HistoryPoint& p) {
    return std::any_of(p.dropped.begin(), p.dropped.end(), [](double d) { return d > 0; });
  });
  if (!any || h.layers.empty()) return f;
  LineChart chart{.label = "dropped choices over the run",
                  .x_title = "step",
                  .y_title = "of the choices",
                  .unit = Unit::share,
                  .low = 0,
                  .width = o.width};
  chart.hover = o.hover;
  chart.whole_x = true;
  add_layers(chart, h, columns_for(o.width),
             [](const HistoryPoint& p, size_t l) { return at_or_nan(p.dropped, l); });
  f.panels.push_back({.heading = "", .drawing = draw_lines(chart), .note = {}});
  return f;
}

Figure load_over_time_figure(const TrainingHistory& h, const FigureOptions& o) {
  Figure f = empty_figure("step_load");
  if (h.points.empty()) return f;
  for (size_t l = 0; l < h.layers.size(); ++l) {
    size_t experts = 0;
    for (const HistoryPoint& p : h.points)
      if (l < p.load.size()) experts = std::max(experts, p.load[l].size());
    if (experts == 0) continue;
    f.panels.push_back({.heading = fmt::format("layer {}", h.layers[l]),
                        .drawing = load_panel(h, l, experts, o),
                        .note = {}});
    if (experts > 8 && !f.scale)
      f.scale =
          draw_heat_scale(kTimeLimit, "even: " + fine_percent(1 / static_cast<double>(experts)));
  }
  if (!f.scale && !f.panels.empty()) f.line += ". The bands are the experts, by their number";
  return f;
}

}  // namespace moe
