#include "analyze/texts/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "analyze/texts/conversion_findings.h"
#include "analyze/texts/report_findings.h"
#include "core/words.h"

namespace moe {
namespace {

constexpr size_t kShownExperts = 8;
constexpr size_t kShownTokens = 8;

template <class... T>
void put(std::string& out, fmt::format_string<T...> format, T&&... values) {
  fmt::format_to(std::back_inserter(out), format, std::forward<T>(values)...);
}

std::string percent_or_dash(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string percent_or_dash(const std::optional<double>& share) {
  return share ? percent_or_dash(*share) : "-";
}
std::string figure_or_dash(const std::optional<double>& x) {
  return x ? fmt::format("{:.3f}", *x) : "-";
}

// A token within quotes, on one line.
std::string quoted_token(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      out += fmt::format("0x{:02X}", static_cast<unsigned char>(c));
    else out += c;
  }
  return out + "\"";
}

size_t name_width(const RoutingReport& r) {
  size_t width = 8;
  for (const DomainText& d : r.domains) width = std::max(width, d.name.size());
  return width;
}

void add_texts(std::string& out, const RoutingReport& r) {
  int64_t tokens = 0;
  for (const DomainText& d : r.domains) tokens += d.tokens;
  if (r.moe_layers.empty())
    put(out, "{}: {}, no MoE layer: there is no routing to look at\n", r.model,
        counted(r.layers, "dense layer"));
  else
    put(out, "{}: recipe {}, {} of {} experts, {} chosen a token; routed {}\n", r.model, r.recipe,
        counted(static_cast<int64_t>(r.moe_layers.size()), "MoE layer"), r.experts, r.top_k,
        r.routing);
  put(out, "{} tokens of {}, in windows of {}\n\n", human_count(static_cast<double>(tokens)),
      counted(static_cast<int64_t>(r.domains.size()), "text"), r.window);
  const size_t width = name_width(r);
  put(out, "  {:<{}}{:>10}{:>14}\n", "text", width, "tokens", "nats/token");
  for (const DomainText& d : r.domains)
    put(out, "  {:<{}}{:>10}{:>14.3f}\n", d.name, width, human_count(static_cast<double>(d.tokens)),
        d.nats_per_token);
}

void add_routed_layers(std::string& out, const RoutingReport& r) {
  put(out, "\n  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "",
      "MaxVio", "MaxVio", "effective", "dead", "dropped", "without", "router", "", "top", "vocab.",
      "vocab.", "vocab.", r.earlier.empty() ? "" : "  saturation");
  put(out, "  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "layer",
      "", "window", "experts", "", "", "expert", "entropy", "margin", "score", "input", "next",
      "predicted", r.earlier.empty() ? "" : "     earlier");
  for (const LayerStats& s : r.moe_layers)
    put(out, "  {:>5}{:>8.2f}{:>8.2f}{:>11.2f}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n",
        s.layer, s.max_vio, s.max_vio_batch, s.effective_experts, s.dead,
        percent_or_dash(s.dropped), percent_or_dash(s.unrouted), figure_or_dash(s.router_entropy),
        figure_or_dash(s.margin), figure_or_dash(s.top_score), percent_or_dash(s.vocabulary_input),
        percent_or_dash(s.vocabulary_target), percent_or_dash(s.vocabulary_predicted),
        r.earlier.empty() ? "" : fmt::format("{:>12}", percent_or_dash(s.saturation)));
  if (!r.earlier.empty())
    put(out, "  saturation: share of the choices that {} made too; {} at random\n", r.earlier,
        percent_or_dash(double(r.top_k) / double(r.experts)));
}

void add_specialists(std::string& out, const RoutingReport& r) {
  const double even = static_cast<double>(r.top_k) / static_cast<double>(r.experts);
  const size_t width = name_width(r);
  put(out, "\nthe expert that most of a text's tokens choose ({} when even)\n",
      percent_or_dash(even));
  put(out, "  {:<{}}{:>6}{:>8}{:>9}{:>13}\n", "text", width, "layer", "expert", "share",
      "times even");
  for (size_t d = 0; d < r.domains.size(); ++d) {
    const LayerStats* best = nullptr;
    int64_t expert = 0;
    const auto share = [&](const LayerStats& s, int64_t e) {
      return s.domain(static_cast<int64_t>(d), e);
    };
    for (const LayerStats& s : r.moe_layers)
      for (int64_t e = 0; e < r.experts; ++e)
        if (!best || share(s, e) > share(*best, expert)) {
          best = &s;
          expert = e;
        }
    put(out, "  {:<{}}{:>6}{:>8}{:>9}{:>13.2f}\n", r.domains[d].name, width, best->layer, expert,
        percent_or_dash(share(*best, expert)), share(*best, expert) / even);
  }
}

// Of the layer that goes most by the token: its experts with the strongest favourites.
void add_favourites(std::string& out, const RoutingReport& r) {
  const LayerStats& s = *std::max_element(
      r.moe_layers.begin(), r.moe_layers.end(),
      [](const auto& a, const auto& b) { return a.vocabulary_input < b.vocabulary_input; });
  std::vector<size_t> experts;
  for (size_t e = 0; e < s.favourites.size(); ++e)
    if (!s.favourites[e].empty()) experts.push_back(e);
  std::stable_sort(experts.begin(), experts.end(), [&](size_t a, size_t b) {
    return s.favourites[a][0].share > s.favourites[b][0].share;
  });
  if (experts.size() > kShownExperts) experts.resize(kShownExperts);
  std::sort(experts.begin(), experts.end());
  if (experts.empty()) return;  // no token occurs often enough to say
  put(out,
      "\nfavourite tokens of the experts of layer {}, the one that goes most by the token (share "
      "of the token's occurrences)\n",
      s.layer);
  for (const size_t e : experts) {
    std::vector<std::string> tokens;
    for (const TokenAffinity& t : s.favourites[e])
      if (tokens.size() < kShownTokens)
        tokens.push_back(fmt::format("{} {:.0f}%", quoted_token(t.text), 100 * t.share));
    put(out, "  expert {:>3}: {}\n", e, fmt::join(tokens, "  "));
  }
}

// One column of a table over layers; absent values are dashes.
struct LayerColumn {
  std::string head;
  std::function<std::string(int64_t layer)> cell;
};

const LayerChoices* choices_of(const std::vector<LayerChoices>& all, int64_t layer) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const LayerChoices& c) { return c.layer == layer; });
  return found == all.end() ? nullptr : &*found;
}

const ConvertedLayer* converted(const ConversionReport& r, int64_t layer) {
  const auto found = std::find_if(r.layers.begin(), r.layers.end(),
                                  [&](const ConvertedLayer& l) { return l.layer == layer; });
  return found == r.layers.end() ? nullptr : &*found;
}

// What a text shows of each layer. Of several each column says which text it is of, and the balance
// before stands beside the one after.
void add_text_columns(std::vector<LayerColumn>& columns, const TextView& t, bool several) {
  const Comparison& c = t.figures;
  const auto head = [&](const char* name) {
    return several ? fmt::format("{} {}", name, t.name.substr(t.name.rfind(' ') + 1))
                   : std::string(name);
  };
  const auto balance = [](const std::vector<LayerChoices>& loads, auto&& value) {
    return [&loads, value](int64_t layer) -> std::string {
      const LayerChoices* l = choices_of(loads, layer);
      return l ? value(balance_of(*l)) : "-";
    };
  };
  const auto max_vio = [](const LoadBalance& b) { return fmt::format("{:.2f}", b.max_vio); };
  if (!c.same_choices.empty())
    columns.push_back({head(several ? "kept" : "choices kept"), [&c](int64_t layer) {
                         for (size_t i = 0; i < c.before_load.size(); ++i)
                           if (c.before_load[i].layer == layer)
                             return percent_or_dash(c.same_choices[i]);
                         return std::string("-");
                       }});
  if (several && !c.before_load.empty())
    columns.push_back({head("was"), balance(c.before_load, max_vio)});
  if (!c.after_load.empty()) {
    columns.push_back({head("MaxVio"), balance(c.after_load, max_vio)});
    columns.push_back({head("dead"), balance(c.after_load, [](const LoadBalance& b) {
                         return std::to_string(b.dead);
                       })});
  }
  if (!columns.empty() && !c.drift.empty())
    columns.push_back({head("drift"), [&c](int64_t layer) {
                         return percent_or_dash(c.drift.at(static_cast<size_t>(layer)));
                       }});
}

// Columns that have something to say.
std::vector<LayerColumn> layer_columns(const ConversionReport& r) {
  std::vector<LayerColumn> columns;
  const auto any = [&](auto member) {
    return std::any_of(r.layers.begin(), r.layers.end(),
                       [&](const ConvertedLayer& l) { return (l.*member).has_value(); });
  };
  const auto of_layer = [&r](auto&& value) {
    return [&r, value](int64_t layer) -> std::string {
      const ConvertedLayer* l = converted(r, layer);
      return l ? value(*l) : "-";
    };
  };
  if (any(&ConvertedLayer::active))
    columns.push_back({"active", of_layer([](const ConvertedLayer& l) {
                         return l.active ? std::to_string(*l.active) : "-";
                       })});
  if (any(&ConvertedLayer::error))
    columns.push_back(
        {"error", of_layer([](const ConvertedLayer& l) { return percent_or_dash(l.error); })});
  if (any(&ConvertedLayer::agreement))
    columns.push_back({"as oracle", of_layer([](const ConvertedLayer& l) {
                         return percent_or_dash(l.agreement);
                       })});
  for (const TextView& t : texts_of(r)) add_text_columns(columns, t, !r.others.empty());
  return columns;
}

void add_converted_layers(std::string& out, const ConversionReport& r) {
  const std::vector<LayerColumn> columns = layer_columns(r);
  if (columns.empty()) {
    for (const TextView& t : texts_of(r)) {
      const std::vector<double>& drift = t.figures.drift;
      if (drift.empty()) return;
      const auto most = std::max_element(drift.begin(), drift.end());
      put(out,
          "\n{}the state after a layer moves by {:.2f}% of its length after layer 0, {:.2f}% after "
          "layer {} (most), {:.2f}% after the last\n",
          r.others.empty() ? "" : t.name + ": ", 100 * drift.front(), 100 * *most,
          most - drift.begin(), 100 * drift.back());
    }
    return;
  }
  put(out, "\n  layer");
  for (const LayerColumn& c : columns)
    put(out, "{:>{}}", c.head, std::max<size_t>(9, c.head.size() + 2));
  put(out, "\n");
  std::vector<int64_t> layers;
  for (const ConvertedLayer& l : r.layers) layers.push_back(l.layer);
  for (const TextView& t : texts_of(r))
    for (const auto* loads : {&t.figures.before_load, &t.figures.after_load})
      for (const LayerChoices& l : *loads) layers.push_back(l.layer);
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  for (const int64_t layer : layers) {
    put(out, "  {:>5}", layer);
    for (const LayerColumn& c : columns)
      put(out, "{:>{}}", c.cell(layer), std::max<size_t>(9, c.head.size() + 2));
    put(out, "\n");
  }
}

void add_frontier(std::string& out, const ConversionReport& r) {
  if (r.frontier.empty()) return;
  size_t width = 8;
  bool shares = false;  // of the FFN, which only a sweep of conversions has
  for (const FrontierPoint& p : r.frontier) {
    width = std::max(width, p.name.size());
    shares = shares || p.ffn_share;
  }
  put(out, "\n  {:<{}}", "", width);
  if (shares) put(out, "{:>9}", "FFN");
  put(out, "{:>13}{:>10}{:>12}{:>11}{:>9}{:>11}{:>9}{:>12}\n", "perplexity", "KL", "same token",
      "decode/s", "", "prompt/s", "", "read/token");
  for (const FrontierPoint& p : r.frontier) {
    put(out, "{} {:<{}}", p.is_written ? '*' : ' ', p.name, width);
    if (shares) put(out, "{:>9}", percent_or_dash(p.ffn_share));
    put(out, "{:>13.3f}{:>10}{:>11.1f}%{:>11.1f}{:>9}{:>11.1f}{:>9}{:>12}\n", p.perplexity,
        p.is_before ? "-" : fmt::format("{:.4f}", p.kl), 100 * p.same_top, p.decode_rate,
        ratio(p.speed_up.decode), p.prompt_rate, ratio(p.speed_up.prompt),
        human_bytes(static_cast<double>(p.bytes_per_token)));
  }
  put(out, "speeds are factors of the first model's, measured in turns with it\n");
}

std::string model_line(const ModelCard& m) {
  return fmt::format("{}: {}; weights {}, activations {}", m.name, m.shape, m.weights, m.compute);
}

}  // namespace

std::string routing_tables(const RoutingReport& r, const TrainingHistory* history) {
  std::string out;
  add_texts(out, r);
  if (r.moe_layers.empty()) return out;
  const std::vector<std::string> troubles = troubles_of(r, history);
  if (!troubles.empty()) put(out, "\nwhat is wrong\n");
  for (const std::string& trouble : troubles) put(out, "  {}\n", trouble);
  add_routed_layers(out, r);
  add_specialists(out, r);
  add_favourites(out, r);
  return out;
}

std::string conversion_tables(const ConversionReport& r) {
  std::string out;
  put(out, "before  {}\nafter   {}\n", model_line(r.before), model_line(r.after));
  const std::vector<TextView> texts = texts_of(r);
  const bool several = !r.others.empty();
  for (const TextView& t : texts)
    put(out, "{:<8}{}: {} of {} tokens, {} predicted\n", several ? t.name : "text", t.text,
        counted(t.figures.windows, "window"), t.figures.window, t.figures.tokens);
  put(out, "\n  {:<26}{:>12}{:>12}{:>20}\n", "", "before", "after", "change");
  const auto put_row = [&](const std::string& name, const ComparedRow& row) {
    put(out, "  {:<26}{:>12}{:>12}{:>20}\n", name, row.before, row.after, row.change);
  };
  std::vector<std::vector<ComparedRow>> predictions;  // [texts]
  for (const TextView& t : texts) predictions.push_back(prediction_rows(t.figures));
  for (size_t i = 0; i < predictions[0].size(); ++i) {
    if (several) put(out, "  {}\n", predictions[0][i].name);
    for (size_t t = 0; t < texts.size(); ++t)
      put_row(several ? "  " + texts[t].name : predictions[t][i].name, predictions[t][i]);
  }
  for (const ComparedRow& cost : cost_rows(r)) put_row(cost.name, cost);
  put(out, "\n");
  for (const TextView& t : texts)
    put(out, "{}\n", wrapped((several ? t.name + ": " : "") + distance_line(t.figures), 0));
  add_converted_layers(out, r);
  add_frontier(out, r);
  return out;
}

}  // namespace moe
