#include "analyze/texts/conversion_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "analyze/texts/conversion_findings.h"
#include "core/words.h"

namespace moe {
namespace {

template <class... T>
void add(std::string& out, fmt::format_string<T...> format, T&&... values) {
  fmt::format_to(std::back_inserter(out), format, std::forward<T>(values)...);
}

// One column of a table over layers; absent values are dashes.
struct Column {
  std::string head;
  std::function<std::string(int64_t layer)> cell;
};

std::string share_or_dash(const std::optional<double>& share) { return share ? fmt::format("{:.1f}%", 100 * *share) : "-"; }

const LayerChoices* choices_of(const std::vector<LayerChoices>& all, int64_t layer) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const LayerChoices& c) { return c.layer == layer; });
  return found == all.end() ? nullptr : &*found;
}

const ConvertedLayer* converted(const ConversionReport& r, int64_t layer) {
  const auto found = std::find_if(r.layers.begin(), r.layers.end(), [&](const ConvertedLayer& l) { return l.layer == layer; });
  return found == r.layers.end() ? nullptr : &*found;
}

// Columns that have something to say.
std::vector<Column> layer_columns(const ConversionReport& r) {
  std::vector<Column> columns;
  const auto any = [&](auto member) { return std::any_of(r.layers.begin(), r.layers.end(), [&](const ConvertedLayer& l) { return (l.*member).has_value(); }); };
  const auto of_layer = [&r](auto&& value) {
    return [&r, value](int64_t layer) -> std::string {
      const ConvertedLayer* l = converted(r, layer);
      return l ? value(*l) : "-";
    };
  };
  if (any(&ConvertedLayer::active)) columns.push_back({"active", of_layer([](const ConvertedLayer& l) { return l.active ? std::to_string(*l.active) : "-"; })});
  if (any(&ConvertedLayer::error)) columns.push_back({"error", of_layer([](const ConvertedLayer& l) { return share_or_dash(l.error); })});
  if (any(&ConvertedLayer::agreement)) columns.push_back({"as oracle", of_layer([](const ConvertedLayer& l) { return share_or_dash(l.agreement); })});
  const Comparison& c = r.figures;
  if (!c.same_choices.empty())
    columns.push_back({"choices kept", [&c](int64_t layer) {
                         for (size_t i = 0; i < c.before_load.size(); ++i)
                           if (c.before_load[i].layer == layer) return share_or_dash(c.same_choices[i]);
                         return std::string("-");
                       }});
  if (!c.after_load.empty()) {
    columns.push_back({"MaxVio", [&c](int64_t layer) {
                         const LayerChoices* l = choices_of(c.after_load, layer);
                         return l ? fmt::format("{:.2f}", balance_of(*l).max_vio) : "-";
                       }});
    columns.push_back({"dead", [&c](int64_t layer) {
                         const LayerChoices* l = choices_of(c.after_load, layer);
                         return l ? std::to_string(balance_of(*l).dead) : "-";
                       }});
  }
  if (!columns.empty() && !c.drift.empty()) columns.push_back({"drift", [&c](int64_t layer) { return share_or_dash(c.drift.at(static_cast<size_t>(layer))); }});
  return columns;
}

void add_converted_layers(std::string& out, const ConversionReport& r) {
  const std::vector<Column> columns = layer_columns(r);
  const std::vector<double>& drift = r.figures.drift;
  if (columns.empty()) {
    if (drift.empty()) return;
    const auto most = std::max_element(drift.begin(), drift.end());
    add(out, "\nthe state after a layer moves by {:.2f}% of its length after layer 0, {:.2f}% after layer {} (most), {:.2f}% after the last\n",
        100 * drift.front(), 100 * *most, most - drift.begin(), 100 * drift.back());
    return;
  }
  add(out, "\n  layer");
  for (const Column& c : columns) add(out, "{:>{}}", c.head, std::max<size_t>(9, c.head.size() + 2));
  add(out, "\n");
  std::vector<int64_t> layers;
  for (const ConvertedLayer& l : r.layers) layers.push_back(l.layer);
  for (const LayerChoices& l : r.figures.after_load) layers.push_back(l.layer);
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  for (const int64_t layer : layers) {
    add(out, "  {:>5}", layer);
    for (const Column& c : columns) add(out, "{:>{}}", c.cell(layer), std::max<size_t>(9, c.head.size() + 2));
    add(out, "\n");
  }
}

void add_frontier(std::string& out, const ConversionReport& r) {
  if (r.frontier.empty()) return;
  size_t width = 8;
  for (const FrontierPoint& p : r.frontier) width = std::max(width, p.name.size());
  add(out, "\n  {:<{}}{:>9}{:>13}{:>10}{:>12}{:>11}{:>9}{:>11}{:>9}{:>12}\n", "", width, "FFN", "perplexity", "KL", "same token", "decode/s", "", "prompt/s",
      "", "read/token");
  for (const FrontierPoint& p : r.frontier)
    add(out, "{} {:<{}}{:>8.1f}%{:>13.3f}{:>10}{:>11.1f}%{:>11.1f}{:>9}{:>11.1f}{:>9}{:>12}\n", p.is_written ? '*' : ' ', p.name, width, 100 * p.ffn_share,
        p.perplexity, p.is_before ? "-" : fmt::format("{:.4f}", p.kl), 100 * p.same_top, p.decode_rate, ratio(p.speed_up.decode), p.prompt_rate,
        ratio(p.speed_up.prompt), human_bytes(static_cast<double>(p.bytes_per_token)));
  add(out, "speeds are factors of the first model's, measured in turns with it\n");
}

std::string model_line(const ModelCard& m) { return fmt::format("{}: {}; weights {}, activations {}", m.name, m.shape, m.weights, m.compute); }

}  // namespace

std::string conversion_tables(const ConversionReport& r) {
  std::string out;
  add(out, "before  {}\nafter   {}\n", model_line(r.before), model_line(r.after));
  add(out, "text    {}: {} of {} tokens, {} predicted\n\n", r.text, counted(r.figures.windows, "window"), r.figures.window, r.figures.tokens);
  add(out, "  {:<26}{:>12}{:>12}{:>20}\n", "", "before", "after", "change");
  for (const ComparedRow& row : compared_rows(r)) add(out, "  {:<26}{:>12}{:>12}{:>20}\n", row.name, row.before, row.after, row.change);
  add(out, "\n{}\n", wrapped(distance_line(r), 0));
  add_converted_layers(out, r);
  add_frontier(out, r);
  return out;
}

}  // namespace moe
