// The figures of given texts: what each layer's experts specialise in.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "analyze/data/definitions.h"
#include "analyze/pages/markup.h"
#include "analyze/pictures/report_colours.h"
#include "analyze/pictures/report_figures.h"
#include "core/order.h"

namespace moe {
namespace {

constexpr int64_t kPairExperts = 64;  // of a map of pairs
constexpr int64_t kSlices = 64;       // of neurons, of a map that has no room for each

std::vector<std::string> numbers(int64_t n) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
  return names;
}

// The factor at which colours are full, one for all maps of a figure.
double heat_limit(double highest_ratio) {
  return highest_ratio <= 2.2 ? 2 : highest_ratio <= 5 ? 4 : 8;
}

double highest(const Grid& g) {
  double most = 0;
  for (const double v : g.at)
    if (std::isfinite(v)) most = std::max(most, v);
  return most;
}

double load_of(const LayerStats& l, int64_t expert) {
  return expert < std::ssize(l.load) ? l.load[static_cast<size_t>(expert)] : NAN;
}

std::vector<std::vector<int64_t>> columns_of(const RoutingReport& r, const LayerStats& l) {
  return columns_by([&](int64_t e) { return load_of(l, e); }, r.experts, r.by_neuron);
}

std::string column_word(bool sliced) { return sliced ? "slice" : "expert"; }

// A row more, the mean of each column's experts.
void add_row(Grid& map, const std::vector<std::vector<int64_t>>& columns,
             const std::function<double(int64_t)>& value) {
  for (const std::vector<int64_t>& experts : columns) {
    double sum = 0;
    for (const int64_t e : experts) sum += value(e);
    map.at.push_back(sum / static_cast<double>(experts.size()));
  }
  ++map.rows;
  map.cols = std::ssize(columns);
}

// A value for each layer as dots on a line.
Panel by_layer(const RoutingReport& r, const FigureOptions& o, const std::string& label,
               const std::vector<Series>& series, const std::string& y_title, Unit unit) {
  LineChart chart{.label = label,
                  .x_title = "layer",
                  .y_title = y_title,
                  .unit = unit,
                  .series = series,
                  .width = o.width,
                  .height = 150};
  chart.low = 0;
  chart.whole_x = true;
  chart.hover = o.hover;
  for (Series& s : chart.series) {
    s.dots = r.moe_layers.size() <= 40;
    for (const LayerStats& l : r.moe_layers) s.x.push_back(static_cast<double>(l.layer));
  }
  return {.heading = "", .drawing = draw_lines(chart), .note = {}};
}

Series layer_series(const RoutingReport& r, const std::string& name, const std::string& colour,
                    const std::function<double(const LayerStats&)>& value) {
  Series s{.name = name, .colour = colour};
  for (const LayerStats& l : r.moe_layers) s.y.push_back(value(l));
  return s;
}

// The experts of a map of pairs: all, or those with the strongest partners.
std::vector<int64_t> pair_experts(const Grid& g) {
  std::vector<double> strength(static_cast<size_t>(g.rows), 0);
  for (int64_t i = 0; i < g.rows; ++i)
    for (int64_t j = 0; j < g.cols; ++j) {
      if (i == j || !std::isfinite(g(i, j))) continue;
      strength[static_cast<size_t>(i)] = std::max(strength[static_cast<size_t>(i)], g(i, j));
      strength[static_cast<size_t>(j)] = std::max(strength[static_cast<size_t>(j)], g(i, j));
    }
  std::vector<int64_t> experts = falling_order(strength);
  if (g.rows > kPairExperts) experts.resize(kPairExperts);
  std::sort(experts.begin(), experts.end());
  return experts;
}

Panel pair_panel(const RoutingReport& r, const LayerStats& l, double limit,
                 const FigureOptions& o) {
  const std::vector<int64_t> experts = pair_experts(l.coactivation);
  const auto n = static_cast<int64_t>(experts.size());
  HeatMap map{.label = fmt::format("co-activation of layer {}'s experts", l.layer),
              .row_word = "of expert",
              .column_word = "also choose"};
  map.caption = "of expert ↓ also choose expert →";
  map.even = even_coactivation(r);
  map.limit = limit;
  map.width = o.width;
  map.row_height = std::min(30.0, (o.width - 40) / static_cast<double>(std::max<int64_t>(1, n)));
  map.hover = o.hover;
  map.value = {.rows = n, .cols = n, .at = {}};
  for (const int64_t i : experts) {
    map.rows.push_back(std::to_string(i));
    for (const int64_t j : experts) map.value.at.push_back(i == j ? NAN : l.coactivation(i, j));
  }
  map.columns = map.rows;
  Panel panel{.heading = fmt::format("layer {}", l.layer), .drawing = draw_heat(map), .note = {}};
  for (const Standout& s : strongest_pairs(r, l, 3))
    panel.note += fmt::format("{}{} with {}: {} ({})", panel.note.empty() ? "strongest: " : "; ",
                              s.expert, s.other, percent(s.value), times(s.ratio));
  return panel;
}

}  // namespace

std::vector<std::vector<int64_t>> columns_by(const std::function<double(int64_t)>& load,
                                             int64_t experts, bool sliced) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  if (sliced)
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return load(a) > load(b); });
  const int64_t columns = sliced ? std::min(kSlices, experts) : experts;
  std::vector<std::vector<int64_t>> out;
  for (int64_t c = 0; c < columns; ++c)
    out.emplace_back(order.begin() + c * experts / columns,
                     order.begin() + (c + 1) * experts / columns);
  return out;
}

std::string column_words(int64_t experts, bool sliced) {
  return sliced ? fmt::format(
                      "; each column is the mean of {} neurons of like load, the busiest first, in "
                      "each layer by themselves",
                      std::max<int64_t>(1, experts / kSlices))
                : "";
}

HeatMap load_map(const std::vector<int64_t>& layers, int64_t experts, bool sliced,
                 const std::function<double(size_t, int64_t)>& load, const FigureOptions& o) {
  HeatMap map{.label = "load of each expert in each layer",
              .row_word = "layer",
              .column_word = column_word(sliced),
              .caption = fmt::format("layer ↓ {} →", column_word(sliced)),
              .even = 1 / static_cast<double>(experts),
              .width = o.width};
  map.hover = o.hover;
  for (size_t row = 0; row < layers.size(); ++row) {
    const auto of = [&](int64_t e) { return load(row, e); };
    map.rows.push_back(std::to_string(layers[row]));
    add_row(map.value, columns_by(of, experts, sliced), of);
  }
  map.columns = numbers(map.value.cols);
  return map;
}

int64_t coloured_experts(const RoutingReport& r, const TrainingHistory* h) {
  int64_t most = r.by_neuron ? 0 : std::max<int64_t>(0, r.experts);
  if (h)
    for (const HistoryPoint& p : h->points)
      for (const auto& load : p.load) most = std::max<int64_t>(most, std::ssize(load));
  return most;
}

std::string sentence(std::string line, std::string_view source) {
  if (!line.empty() && line[0] >= 'a' && line[0] <= 'z')
    line[0] = static_cast<char>(line[0] - 'a' + 'A');
  if (!line.empty() && line.back() != '.') line += '.';
  return source.empty() ? line : fmt::format("{} ({})", line, source);
}

Figure empty_figure(std::string_view key) {
  const Definition& d = definition(key);
  return {.key = std::string(key),
          .title = std::string(d.title),
          .line = std::string(d.line),
          .panels = {},
          .scale = {}};
}

double even_domain_share(const RoutingReport& r) {
  return r.experts > 0
             ? static_cast<double>(std::max<int64_t>(1, r.top_k)) / static_cast<double>(r.experts)
             : 0;
}

double even_coactivation(const RoutingReport& r) {
  return r.experts > 1 ? static_cast<double>(std::max<int64_t>(1, r.top_k) - 1) /
                             static_cast<double>(r.experts - 1)
                       : 0;
}

Standout strongest_domain(const RoutingReport& r, const LayerStats& l) {
  Standout best{.layer = l.layer};
  const double even = even_domain_share(r);
  for (int64_t d = 0; d < l.domain.rows; ++d)
    for (int64_t e = 0; e < l.domain.cols; ++e)
      if (const double v = l.domain(d, e); std::isfinite(v) && even > 0 && v / even > best.ratio)
        best = {l.layer, e, d, v, v / even};
  return best;
}

std::vector<Standout> strongest_pairs(const RoutingReport& r, const LayerStats& l, size_t most) {
  std::vector<Standout> pairs;
  const double even = even_coactivation(r);
  if (even <= 0) return pairs;
  const auto above = [](const Standout& a, const Standout& b) { return a.value > b.value; };
  for (int64_t i = 0; i < l.coactivation.rows; ++i)
    for (int64_t j = 0; j < l.coactivation.cols; ++j) {
      const double v = l.coactivation(i, j);
      if (i == j || !std::isfinite(v) || v <= even ||
          (pairs.size() == most && v <= pairs.back().value))
        continue;
      const Standout pair{l.layer, i, j, v, v / even};
      pairs.insert(std::upper_bound(pairs.begin(), pairs.end(), pair, above), pair);
      if (pairs.size() > most) pairs.pop_back();
    }
  return pairs;
}

Figure domain_loss_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("nats_per_token");
  f.title = "Loss by domain";
  std::vector<Bar> bars;
  for (const DomainText& d : r.domains)
    bars.push_back({d.name, decimal(d.nats_per_token, 3), d.nats_per_token});
  if (!bars.empty())
    f.panels.push_back({.heading = "",
                        .drawing = draw_bars("nats per token of each domain", bars, o.width),
                        .note = {}});
  return f;
}

Figure load_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("load");
  if (r.moe_layers.empty() || r.experts == 0) return f;
  std::vector<int64_t> layers;
  for (const LayerStats& l : r.moe_layers) layers.push_back(l.layer);
  HeatMap map = load_map(
      layers, r.experts, r.by_neuron,
      [&](size_t row, int64_t e) { return load_of(r.moe_layers[row], e); }, o);
  map.limit = heat_limit(highest(map.value) / map.even);
  f.line += column_words(r.experts, r.by_neuron);
  f.scale = draw_heat_scale(map.limit, "even: " + fine_percent(map.even));
  f.panels.push_back({.heading = "", .drawing = draw_heat(map), .note = {}});
  return f;
}

Figure domain_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("domain");
  if (r.moe_layers.empty() || r.domains.empty() || r.experts == 0) return f;
  const double even = even_domain_share(r);
  double most = 0;
  for (const LayerStats& l : r.moe_layers) most = std::max(most, highest(l.domain));
  const double limit = heat_limit(most / even);
  f.scale = draw_heat_scale(limit, "even: " + fine_percent(even));
  f.line += column_words(r.experts, r.by_neuron);
  for (const LayerStats& l : r.moe_layers) {
    HeatMap map{.label = fmt::format("domains of layer {}'s experts", l.layer),
                .row_word = "",
                .column_word = column_word(r.by_neuron),
                .caption = column_word(r.by_neuron) + " →",
                .even = even,
                .limit = limit};
    for (const DomainText& d : r.domains) map.rows.push_back(d.name);
    const std::vector<std::vector<int64_t>> columns = columns_of(r, l);
    for (int64_t d = 0; d < l.domain.rows; ++d)
      add_row(map.value, columns, [&](int64_t e) { return l.domain(d, e); });
    map.columns = numbers(map.value.cols);
    map.width = o.width;
    map.hover = o.hover;
    Panel panel{.heading = fmt::format("layer {}", l.layer), .drawing = draw_heat(map), .note = {}};
    if (const Standout s = strongest_domain(r, l); s.ratio > 1 && r.domains.size() > 1)
      panel.note =
          fmt::format("strongest: expert {} is chosen by {} of {} ({})", s.expert, percent(s.value),
                      r.domains[static_cast<size_t>(s.other)].name, times(s.ratio));
    f.panels.push_back(std::move(panel));
  }
  return f;
}

Figure coactivation_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("coactivation");
  const double even = even_coactivation(r);
  if (even <= 0) return f;
  double most = 0;
  for (const LayerStats& l : r.moe_layers)
    if (const auto pairs = strongest_pairs(r, l, 1); !pairs.empty())
      most = std::max(most, pairs[0].ratio);
  const double limit = heat_limit(most);
  f.scale = draw_heat_scale(limit, "random: " + fine_percent(even));
  for (const LayerStats& l : r.moe_layers)
    if (l.coactivation.rows > 1) f.panels.push_back(pair_panel(r, l, limit, o));
  if (r.experts > kPairExperts)
    f.line += fmt::format(". Shown are the {} experts with the strongest partners", kPairExperts);
  return f;
}

Figure vocabulary_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("vocabulary_input");
  f.title = "Vocabulary specialisation";
  f.line +=
      "; of the ids read, of those that follow in the text and of those that the model predicts";
  if (r.moe_layers.empty() || !r.moe_layers[0].vocabulary_input) return f;
  const auto series = [&](const char* name, const char* colour,
                          std::optional<double> LayerStats::*value) {
    return layer_series(r, name, colour,
                        [&](const LayerStats& l) { return (l.*value).value_or(NAN); });
  };
  f.panels.push_back(by_layer(r, o, "vocabulary specialisation by layer",
                              {series("read", "q0", &LayerStats::vocabulary_input),
                               series("follows", "q3", &LayerStats::vocabulary_target),
                               series("predicted", "q6", &LayerStats::vocabulary_predicted)},
                              "of the id's occurrences", Unit::share));
  return f;
}

Figure router_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("router_entropy");
  f.title = "Router: entropy and margin";
  f.line = fmt::format("Entropy: {}. Margin: {}. Top score: {}.", f.line, definition("margin").line,
                       definition("top_score").line);
  const auto add = [&](const char* name, std::optional<double> LayerStats::*value,
                       const char* colour) {
    const auto has = [&](const LayerStats& l) { return (l.*value).has_value(); };
    if (std::none_of(r.moe_layers.begin(), r.moe_layers.end(), has)) return;
    f.panels.push_back(
        by_layer(r, o, std::string(name) + " by layer",
                 {layer_series(r, "", colour,
                               [&](const LayerStats& l) { return (l.*value).value_or(NAN); })},
                 name, Unit::number));
  };
  add("entropy / ln E", &LayerStats::router_entropy, "q2");
  add("margin", &LayerStats::margin, "q5");
  add("top score", &LayerStats::top_score, "q7");
  return f;
}

Figure saturation_figure(const RoutingReport& r, const FigureOptions& o) {
  Figure f = empty_figure("saturation");
  const auto has = [](const LayerStats& l) { return l.saturation.has_value(); };
  if (r.earlier.empty() || std::none_of(r.moe_layers.begin(), r.moe_layers.end(), has)) return f;
  f.panels.push_back(by_layer(
      r, o, "router saturation by layer",
      {layer_series(r, "", "q2", [](const LayerStats& l) { return l.saturation.value_or(NAN); })},
      "of the choices", Unit::share));
  f.panels.back().note = "against " + r.earlier;
  return f;
}

}  // namespace moe
