#include "analyze/texts/routing_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

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
std::string percent_or_dash(const std::optional<double>& share) { return share ? percent_or_dash(*share) : "-"; }
std::string figure_or_dash(const std::optional<double>& x) { return x ? fmt::format("{:.3f}", *x) : "-"; }

// A token within quotes, on one line.
std::string quoted_token(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) out += fmt::format("0x{:02X}", static_cast<unsigned char>(c));
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
  if (r.moe_layers.empty()) put(out, "{}: {}, no MoE layer: there is no routing to look at\n", r.model, counted(r.layers, "dense layer"));
  else
    put(out, "{}: recipe {}, {} of {} experts, {} chosen a token; routed {}\n", r.model, r.recipe,
        counted(static_cast<int64_t>(r.moe_layers.size()), "MoE layer"), r.experts, r.top_k, r.routing);
  put(out, "{} tokens of {}, in windows of {}\n\n", human_count(static_cast<double>(tokens)), counted(static_cast<int64_t>(r.domains.size()), "text"),
      r.window);
  const size_t width = name_width(r);
  put(out, "  {:<{}}{:>10}{:>14}\n", "text", width, "tokens", "nats/token");
  for (const DomainText& d : r.domains) put(out, "  {:<{}}{:>10}{:>14.3f}\n", d.name, width, human_count(static_cast<double>(d.tokens)), d.nats_per_token);
}

void add_routed_layers(std::string& out, const RoutingReport& r) {
  put(out, "\n  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "", "MaxVio", "MaxVio", "effective", "dead", "dropped", "without",
      "router", "", "top", "vocab.", "vocab.", "vocab.", r.earlier.empty() ? "" : "  saturation");
  put(out, "  {:>5}{:>8}{:>8}{:>11}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", "layer", "", "window", "experts", "", "", "expert", "entropy",
      "margin", "score", "input", "next", "predicted", r.earlier.empty() ? "" : "     earlier");
  for (const LayerStats& s : r.moe_layers)
    put(out, "  {:>5}{:>8.2f}{:>8.2f}{:>11.2f}{:>6}{:>9}{:>10}{:>10}{:>9}{:>8}{:>8}{:>9}{:>11}{}\n", s.layer, s.max_vio, s.max_vio_batch, s.effective_experts,
        s.dead, percent_or_dash(s.dropped), percent_or_dash(s.unrouted), figure_or_dash(s.router_entropy), figure_or_dash(s.margin),
        figure_or_dash(s.top_score), percent_or_dash(s.vocabulary_input), percent_or_dash(s.vocabulary_target), percent_or_dash(s.vocabulary_predicted),
        r.earlier.empty() ? "" : fmt::format("{:>12}", percent_or_dash(s.saturation)));
  if (!r.earlier.empty())
    put(out, "  saturation: share of the choices that {} made too; {} at random\n", r.earlier, percent_or_dash(double(r.top_k) / double(r.experts)));
}

void add_specialists(std::string& out, const RoutingReport& r) {
  const double even = static_cast<double>(r.top_k) / static_cast<double>(r.experts);
  const size_t width = name_width(r);
  put(out, "\nthe expert that most of a text's tokens choose ({} when even)\n", percent_or_dash(even));
  put(out, "  {:<{}}{:>6}{:>8}{:>9}{:>13}\n", "text", width, "layer", "expert", "share", "times even");
  for (size_t d = 0; d < r.domains.size(); ++d) {
    const LayerStats* best = nullptr;
    int64_t expert = 0;
    const auto share = [&](const LayerStats& s, int64_t e) { return s.domain(static_cast<int64_t>(d), e); };
    for (const LayerStats& s : r.moe_layers)
      for (int64_t e = 0; e < r.experts; ++e)
        if (!best || share(s, e) > share(*best, expert)) {
          best = &s;
          expert = e;
        }
    put(out, "  {:<{}}{:>6}{:>8}{:>9}{:>13.2f}\n", r.domains[d].name, width, best->layer, expert, percent_or_dash(share(*best, expert)),
        share(*best, expert) / even);
  }
}

// Of the layer that goes most by the token: its experts with the strongest favourites.
void add_favourites(std::string& out, const RoutingReport& r) {
  const LayerStats& s =
      *std::max_element(r.moe_layers.begin(), r.moe_layers.end(), [](const auto& a, const auto& b) { return a.vocabulary_input < b.vocabulary_input; });
  std::vector<size_t> experts;
  for (size_t e = 0; e < s.favourites.size(); ++e)
    if (!s.favourites[e].empty()) experts.push_back(e);
  std::stable_sort(experts.begin(), experts.end(), [&](size_t a, size_t b) { return s.favourites[a][0].share > s.favourites[b][0].share; });
  if (experts.size() > kShownExperts) experts.resize(kShownExperts);
  std::sort(experts.begin(), experts.end());
  if (experts.empty()) return;  // no token occurs often enough to say
  put(out, "\nfavourite tokens of the experts of layer {}, the one that goes most by the token (share of the token's occurrences)\n", s.layer);
  for (const size_t e : experts) {
    std::vector<std::string> tokens;
    for (const TokenAffinity& t : s.favourites[e])
      if (tokens.size() < kShownTokens) tokens.push_back(fmt::format("{} {:.0f}%", quoted_token(t.text), 100 * t.share));
    put(out, "  expert {:>3}: {}\n", e, fmt::join(tokens, "  "));
  }
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
  put(out, "\nmore by --json and --html FILE: loads, co-activation, every expert of every text, sample texts\n");
  return out;
}

}  // namespace moe
