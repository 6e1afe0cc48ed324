#include "analyze/pictures/conversion_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "analyze/pages/markup.h"
#include "analyze/texts/conversion_findings.h"

namespace moe {
namespace {

constexpr double kLoadLimit = 4;       // of the colours of loads
constexpr int64_t kMostColumns = 512;  // of a map: more are neurons, shown in slices

std::string point_says(const FrontierPoint& p) {
  return fmt::format("{}: perplexity {}, decode {} at {} tokens a second, prompt {} at {}{}",
                     p.name, compact(p.perplexity), ratio(p.speed_up.decode),
                     decimal(p.decode_rate, 0), ratio(p.speed_up.prompt), decimal(p.prompt_rate, 0),
                     p.ffn_share ? fmt::format(", {} of the FFN", fine_percent(*p.ffn_share)) : "");
}

// A drawing has room for what tells models apart.
std::string without_extension(std::string name) {
  constexpr std::string_view kExtension = ".gguf";
  if (name.ends_with(kExtension)) name.resize(name.size() - kExtension.size());
  return name;
}

Figure points_figure(std::string_view key, const ConversionReport& r, const FigureOptions& o,
                     const std::string& what, double SpeedUp::*speed) {
  Figure f = empty_figure(key);
  if (r.frontier.empty()) return f;
  if (!r.is_conversion())
    f.line = fmt::format(
        "each model against the one before: perplexity against the speed of {}. Down and to the "
        "right is better",
        what);
  PointChart chart{.label = fmt::format("perplexity against the speed of {} for each {}", what,
                                        r.is_conversion() ? "number of active experts" : "model"),
                   .x_title = what + " speed, times that of before",
                   .y_title = "perplexity",
                   .x_unit = Unit::ratio,
                   .points = {},
                   .joined = r.is_conversion(),
                   .width = o.width};
  if (o.width > kPanelWidth) chart.height = 330;
  for (const FrontierPoint& p : r.frontier)
    chart.points.push_back({p.speed_up.*speed, p.perplexity, without_extension(p.name),
                            point_says(p), p.is_before ? "ink" : "q2", p.is_written,
                            p.is_before && chart.joined});
  f.panels.push_back({.heading = "", .drawing = draw_points(chart), .note = {}});
  return f;
}

// One line over the layers, with a dot for each.
struct LayerLine {
  std::string label, y_title;
  Unit unit = Unit::share;
  std::vector<double> layer, value;
  std::string name = {};  // beside others
  bool dashed = false;    // as the line after it, and in its colour
};

Figure lines_figure(std::string_view key, const std::vector<LayerLine>& lines,
                    const FigureOptions& o, const std::vector<double>& chance = {}) {
  Figure f = empty_figure(key);
  if (lines.empty() || lines[0].value.empty()) return f;
  const LayerLine& first = lines[0];
  LineChart chart{.label = first.label,
                  .x_title = "layer",
                  .y_title = first.y_title,
                  .unit = first.unit,
                  .low = 0,
                  .width = o.width,
                  .height = 190,
                  .whole_x = true};
  chart.hover = o.hover;
  constexpr std::array kColours = {"q4", "q1", "q6", "q2"};
  size_t colour = 0;
  for (const LayerLine& line : lines) {
    chart.series.push_back({.name = line.name,
                            .colour = kColours[colour % kColours.size()],
                            .x = line.layer,
                            .y = line.value,
                            .dots = !line.dashed && line.value.size() <= 40,
                            .dashed = line.dashed});
    if (!line.dashed) ++colour;
  }
  if (!chance.empty()) {
    chart.series[0].name = "router";
    chart.series.push_back(
        {.name = "random", .colour = "soft", .x = first.layer, .y = chance, .dashed = true});
  }
  f.panels.push_back({.heading = "", .drawing = draw_lines(chart), .note = {}});
  return f;
}

Figure line_figure(std::string_view key, const LayerLine& line, const FigureOptions& o,
                   const std::vector<double>& chance = {}) {
  return lines_figure(key, {line}, o, chance);
}

template <class Value>
LayerLine over_layers(const ConversionReport& r, std::string label, std::string y_title, Unit unit,
                      Value&& value) {
  LayerLine out{std::move(label), std::move(y_title), unit, {}, {}};
  for (const ConvertedLayer& l : r.layers)
    if (const auto v = value(l)) {
      out.layer.push_back(static_cast<double>(l.layer));
      out.value.push_back(static_cast<double>(*v));
    }
  return out;
}

}  // namespace

Figure frontier_figure(const ConversionReport& r, const FigureOptions& o) {
  return points_figure("frontier", r, o, "decode", &SpeedUp::decode);
}
Figure prompt_frontier_figure(const ConversionReport& r, const FigureOptions& o) {
  return points_figure("prompt_frontier", r, o, "prompt", &SpeedUp::prompt);
}

Figure error_figure(const ConversionReport& r, const FigureOptions& o) {
  return line_figure("reconstruction_error",
                     over_layers(r, "reconstruction error of each layer", "of the output's length",
                                 Unit::share, [](const auto& l) { return l.error; }),
                     o);
}

Figure agreement_figure(const ConversionReport& r, const FigureOptions& o) {
  const LayerLine line =
      over_layers(r, "share of each router's choices that an oracle would make", "of the choices",
                  Unit::share, [](const auto& l) { return l.agreement; });
  std::vector<double> chance;
  for (const ConvertedLayer& l : r.layers) {
    if (!l.agreement || !l.active) continue;
    const auto load = std::find_if(r.figures.after_load.begin(), r.figures.after_load.end(),
                                   [&](const LayerChoices& c) { return c.layer == l.layer; });
    if (load != r.figures.after_load.end())
      chance.push_back(static_cast<double>(*l.active) / static_cast<double>(load->counts.size()));
  }
  if (chance.size() != line.value.size()) chance.clear();
  return line_figure("router_agreement", line, o, chance);
}

Figure active_figure(const ConversionReport& r, const FigureOptions& o) {
  const LayerLine line =
      over_layers(r, "routed experts that a token takes in each layer", "experts", Unit::number,
                  [](const auto& l) { return l.active; });
  if (line.value.empty() || std::all_of(line.value.begin(), line.value.end(),
                                        [&](double v) { return v == line.value[0]; }))
    return empty_figure("layer_active");
  return line_figure("layer_active", line, o);
}

Figure drift_figure(const ConversionReport& r, const FigureOptions& o) {
  std::vector<LayerLine> lines;
  for (const TextView& t : texts_of(r)) {
    lines.push_back({.label = "how far the state after each layer has moved",
                     .y_title = "of the state's length",
                     .value = t.figures.drift,
                     .name = r.others.empty() ? "" : t.name});
    for (size_t l = 0; l < lines.back().value.size(); ++l)
      lines.back().layer.push_back(static_cast<double>(l));
  }
  return lines_figure("drift", lines, o);
}

Figure same_choices_figure(const ConversionReport& r, const FigureOptions& o) {
  std::vector<LayerLine> lines;
  for (const TextView& t : texts_of(r)) {
    lines.push_back({.label = "share of each layer's choices that stay",
                     .y_title = "of the choices",
                     .value = t.figures.same_choices,
                     .name = r.others.empty() ? "" : t.name});
    for (size_t l = 0; l < lines.back().value.size(); ++l)
      lines.back().layer.push_back(static_cast<double>(t.figures.before_load[l].layer));
  }
  return lines_figure("same_choices", lines, o);
}

Figure balance_figure(const ConversionReport& r, const FigureOptions& o) {
  std::vector<LayerLine> lines;
  for (const TextView& t : texts_of(r)) {
    if (r.others.empty()) break;
    for (const bool before : {true, false}) {
      lines.push_back({.label = "MaxVio of each layer before and after",
                       .y_title = "MaxVio",
                       .unit = Unit::number,
                       .name = before ? t.name + " before" : t.name,
                       .dashed = before});
      for (const LayerChoices& l : before ? t.figures.before_load : t.figures.after_load) {
        lines.back().layer.push_back(static_cast<double>(l.layer));
        lines.back().value.push_back(balance_of(l).max_vio);
      }
    }
  }
  std::erase_if(lines, [](const LayerLine& l) { return l.value.empty(); });
  return lines_figure("max_vio", lines, o);
}

namespace {

Panel load_panel(const std::vector<LayerChoices>& layers, const std::string& heading,
                 const FigureOptions& o) {
  const auto experts = static_cast<int64_t>(layers[0].counts.size());
  std::vector<int64_t> numbers;
  std::vector<double> totals;
  for (const LayerChoices& l : layers) {
    numbers.push_back(l.layer);
    totals.push_back(
        static_cast<double>(std::accumulate(l.counts.begin(), l.counts.end(), int64_t{0})));
  }
  HeatMap map = load_map(
      numbers, experts, experts > kMostColumns,
      [&](size_t row, int64_t e) {
        const auto count = static_cast<double>(layers[row].counts[static_cast<size_t>(e)]);
        return totals[row] > 0 ? count / totals[row] : NAN;
      },
      o);
  map.limit = kLoadLimit;
  if (!heading.empty()) map.label = fmt::format("{}: {}", heading, map.label);
  return {.heading = heading, .drawing = draw_heat(map), .note = {}};
}

}  // namespace

Figure expert_load_figure(const ConversionReport& r, const FigureOptions& o) {
  Figure f = empty_figure("load");
  const std::vector<LayerChoices>& after = r.figures.after_load;
  if (after.empty() || after[0].counts.size() < 2) return f;
  f.scale = draw_heat_scale(
      kLoadLimit, "even: " + fine_percent(1 / static_cast<double>(after[0].counts.size())));
  f.line += column_words(std::ssize(after[0].counts), std::ssize(after[0].counts) > kMostColumns);
  for (const TextView& t : texts_of(r)) {
    if (!r.others.empty() && !t.figures.before_load.empty())
      f.panels.push_back(load_panel(t.figures.before_load, t.name + ", before", o));
    f.panels.push_back(
        load_panel(t.figures.after_load, r.others.empty() ? "" : t.name + ", after", o));
  }
  return f;
}

Figure speed_figure(const ConversionReport& r, const FigureOptions& o) {
  Figure f = empty_figure("decode_rate");
  if (!r.before_speed || !r.after_speed) return f;
  f.title = "Speed";
  const auto panel = [&](const char* heading, double before, double after) {
    const std::vector<Bar> bars = {{"before", decimal(before, before < 99.95 ? 1 : 0), before},
                                   {"after", decimal(after, after < 99.95 ? 1 : 0), after}};
    f.panels.push_back(
        {.heading = heading,
         .drawing = draw_bars(fmt::format("{} before and after", heading), bars, o.width),
         .note = {}});
  };
  panel("tokens a second, written one by one", r.before_speed->decode_rate(),
        r.after_speed->decode_rate());
  panel("tokens a second, of a prompt", r.before_speed->prompt_rate(),
        r.after_speed->prompt_rate());
  return f;
}

}  // namespace moe
