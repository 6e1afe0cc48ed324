#include "analyze/texts/report_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "analyze/pages/markup.h"
#include "analyze/pictures/report_figures.h"
#include "core/order.h"
#include "core/words.h"

namespace moe {
namespace {

// of the way from an even share to all, as the alarms of training have it
constexpr double kCollapsed = 0.7;
constexpr double kPrefers = 1.25;  // times what an expert gets of the domains on average
// healthy runs of small batches, and of ST-MoE, which has no room for all, drop up to 60%
constexpr double kManyDropped = 0.25, kManyDroppedInTraining = 0.65;

// What the K busiest experts of a layer get; an even layer gives them K/E.
double top_load(const RoutingReport& r, const LayerStats& l) {
  double top = 0;
  const std::vector<size_t> order = falling_order<size_t>(l.load);
  for (size_t i = 0; i < order.size() && static_cast<int64_t>(i) < r.top_k; ++i)
    top += l.load[order[i]];
  return top;
}

// Nearly all choices go to as many experts as a token takes. Where it takes most of them anyway, an
// uneven load is no collapse.
bool has_collapsed(const RoutingReport& r, const LayerStats& l) {
  if (r.experts < 2 || 2 * r.top_k > r.experts) return false;
  const double even = static_cast<double>(r.top_k) / static_cast<double>(r.experts);
  return (top_load(r, l) - even) / (1 - even) >= kCollapsed;
}

// An expert that gets nearly everything, or is left alone by dead ones, has no specialty.
bool can_have_specialists(const RoutingReport& r, const LayerStats& l) {
  return !has_collapsed(r, l) && 4 * l.dead < r.experts;
}

void add_collapse(std::vector<std::string>& out, const RoutingReport& r) {
  const LayerStats* worst = nullptr;
  int64_t collapsed = 0;
  for (const LayerStats& l : r.moe_layers) {
    if (!has_collapsed(r, l)) continue;
    ++collapsed;
    if (!worst || top_load(r, l) > top_load(r, *worst)) worst = &l;
  }
  if (!worst) return;
  const auto few = static_cast<std::ptrdiff_t>(r.top_k);
  const std::vector<size_t> order = falling_order<size_t>(worst->load);
  const std::string experts =
      few == 1 ? fmt::format("expert {}", order[0])
               : fmt::format("the {} experts {}", few,
                             fmt::join(order.begin(), order.begin() + few, ", "));
  out.push_back(
      fmt::format("The router has collapsed in {} of {}: in layer {}, {} of all choices go to {} "
                  "({} if they were even).",
                  collapsed, counted(static_cast<int64_t>(r.moe_layers.size()), "layer"),
                  worst->layer, percent(top_load(r, *worst)), experts,
                  fine_percent(static_cast<double>(r.top_k) / static_cast<double>(r.experts))));
}

void add_dead(std::vector<std::string>& out, const RoutingReport& r) {
  int64_t dead = 0, experts = 0;
  for (const LayerStats& l : r.moe_layers) dead += l.dead, experts += r.experts;
  if (dead == 0) return;
  out.push_back(fmt::format(
      "{} of {} {} dead: {} less than a hundredth of the mean load, and so {} next to nothing.",
      dead, counted(experts, "expert"), dead == 1 ? "is" : "are",
      dead == 1 ? "it gets" : "they get", dead == 1 ? "it learns" : "they learn"));
}

void add_drops(std::vector<std::string>& out, const RoutingReport& r, const TrainingHistory* h) {
  double dropped = 0;
  for (const LayerStats& l : r.moe_layers) dropped = std::max(dropped, l.dropped);
  if (dropped >= kManyDropped)
    out.push_back(fmt::format(
        "Up to {} of a layer's choices find their expert full and are dropped.", percent(dropped)));
  if (!h || h->points.empty()) return;
  double sum = 0, count = 0;
  for (size_t i = h->points.size() - (h->points.size() + 9) / 10; i < h->points.size(); ++i)
    for (const double d : h->points[i].dropped)
      if (std::isfinite(d)) sum += d, ++count;
  if (count > 0 && sum / count >= kManyDroppedInTraining)
    out.push_back(fmt::format(
        "At the end of training {} of the choices found their expert full and were dropped.",
        percent(sum / count)));
}

std::string domain_name(const RoutingReport& r, int64_t d) {
  return r.domains[static_cast<size_t>(d)].name;
}

void add_specialists(std::vector<std::string>& out, const RoutingReport& r) {
  if (r.domains.size() < 2) return;
  Standout best;
  double preference = 0;
  int64_t specialists = 0, experts = 0;
  const double even = even_domain_share(r);
  for (const LayerStats& l : r.moe_layers) {
    if (!can_have_specialists(r, l)) continue;
    for (int64_t e = 0; e < l.domain.cols; ++e, ++experts) {
      // An expert that is busy everywhere prefers nothing.
      double mean = 0;
      for (int64_t d = 0; d < l.domain.rows; ++d)
        mean += l.domain(d, e) / static_cast<double>(l.domain.rows);
      bool is_one = false;
      for (int64_t d = 0; d < l.domain.rows; ++d) {
        const double share = l.domain(d, e);
        is_one |= share > 2 * even && share > kPrefers * mean;
        if (share > even && share / mean > preference) {
          preference = share / mean;
          best = {l.layer, e, d, share, share / even};
        }
      }
      specialists += is_one;
    }
  }
  if (best.ratio <= 1) return;
  if (specialists == 0) {
    out.push_back(
        fmt::format("No expert specialises in a domain so far: the strongest preference is that of "
                    "expert {} of layer {} for {}, {} of whose tokens choose it "
                    "({} if there were none).",
                    best.expert, best.layer, domain_name(r, best.other), percent(best.value),
                    fine_percent(even)));
    return;
  }
  out.push_back(
      fmt::format("Expert {} of layer {} specialises in {}: {} of its tokens choose that expert, "
                  "{} the {} that would without preference.",
                  best.expert, best.layer, domain_name(r, best.other), percent(best.value),
                  times(best.ratio), fine_percent(even)));
  out.push_back(fmt::format(
      "{} of {} {} in a domain: more than twice that share of its tokens choose {}.", specialists,
      counted(experts, "expert"), specialists == 1 ? "specialises" : "specialise",
      specialists == 1 ? "it" : "one of them"));
}

void add_balance(std::vector<std::string>& out, const RoutingReport& r) {
  if (r.moe_layers.empty() || r.experts < 2) return;
  const auto less = [](const LayerStats& a, const LayerStats& b) { return a.max_vio < b.max_vio; };
  const auto [even, uneven] = std::minmax_element(r.moe_layers.begin(), r.moe_layers.end(), less);
  const auto busiest =
      std::max_element(uneven->load.begin(), uneven->load.end()) - uneven->load.begin();
  std::string says = fmt::format(
      "Work is spread least evenly in layer {}: its busiest expert, {}, gets {} the mean load",
      uneven->layer, busiest, times(1 + uneven->max_vio));
  if (times(1 + even->max_vio) != times(1 + uneven->max_vio))
    says += fmt::format("; most evenly in layer {}: {}", even->layer, times(1 + even->max_vio));
  out.push_back(says + ".");
  double dropped = 0;
  for (const LayerStats& l : r.moe_layers) dropped = std::max(dropped, l.dropped);
  if (dropped > 0 && dropped < kManyDropped)
    out.push_back(fmt::format(
        "Up to {} of a layer's choices find their expert full and are dropped.", percent(dropped)));
}

void add_pairs(std::vector<std::string>& out, const RoutingReport& r) {
  Standout best;
  for (const LayerStats& l : r.moe_layers)
    if (const auto pairs = strongest_pairs(r, l, 1);
        can_have_specialists(r, l) && !pairs.empty() && pairs[0].ratio > best.ratio)
      best = pairs[0];
  if (best.ratio > 1)
    out.push_back(
        fmt::format("The closest pair is in layer {}: {} of the tokens that choose expert {} "
                    "choose expert {} too, {} as many as by chance.",
                    best.layer, percent(best.value), best.expert, best.other, times(best.ratio)));
}

void add_vocabulary(std::vector<std::string>& out, const RoutingReport& r) {
  const LayerStats* most = nullptr;
  for (const LayerStats& l : r.moe_layers)
    if (can_have_specialists(r, l) && (!most || l.vocabulary_input > most->vocabulary_input))
      most = &l;
  if (r.experts < 2 || !most || most->vocabulary_input.value_or(0) <= 0) return;
  out.push_back(
      fmt::format("In layer {} the token itself decides most: one and the same token goes to its "
                  "favourite expert {} of the time, on average.",
                  most->layer, percent(*most->vocabulary_input)));
}

}  // namespace

std::string subtitle_of(const RoutingReport& r) {
  if (r.moe_layers.empty() && r.experts == 0)
    return fmt::format("{}, all dense: nothing is routed", counted(r.layers, "layer"));
  std::string out = r.moe_layers.empty()
                        ? counted(r.layers, "layer")
                        : counted(static_cast<int64_t>(r.moe_layers.size()), "MoE layer");
  if (!r.moe_layers.empty() && static_cast<int64_t>(r.moe_layers.size()) < r.layers)
    out += fmt::format(" among {}", counted(r.layers, "layer"));
  out += fmt::format(" of {}, {} for each token", counted(r.experts, "expert"), r.top_k);
  if (!r.recipe.empty()) out += "; recipe " + r.recipe;
  if (!r.tokenizer.empty()) out += "; tokenizer " + r.tokenizer;
  return out;
}

std::vector<Fact> facts_of(const RoutingReport& r, const TrainingHistory* h) {
  std::vector<Fact> facts;
  const auto count = [](int64_t n) { return compact(static_cast<double>(n)); };
  if (r.parameters > 0) {
    Fact f{"Parameters", count(r.parameters), ""};
    if (r.active_parameters > 0 && r.active_parameters < r.parameters)
      f.more = fmt::format(
          "{} active for a token ({})", count(r.active_parameters),
          percent(static_cast<double>(r.active_parameters) / static_cast<double>(r.parameters)));
    facts.push_back(f);
  }
  if (h && !h->points.empty()) {
    const HistoryPoint& last = h->points.back();
    std::string more = "tokens in " + counted(last.step, "step");
    if (last.seconds > 0)
      more +=
          fmt::format(", {} a second", compact(static_cast<double>(last.tokens) / last.seconds));
    facts.push_back({"Trained on", count(last.tokens), more});
  }
  if (h && !h->eval_ce.empty())
    facts.push_back({"Held-out loss", decimal(h->eval_ce.back().second, 3),
                     fmt::format("nats per token, at step {}", h->eval_ce.back().first)});
  else if (h && !h->points.empty())
    facts.push_back(
        {"Training loss", decimal(h->points.back().ce, 3), "nats per token, last steps"});
  int64_t tokens = 0;
  double nats = 0;
  for (const DomainText& d : r.domains)
    tokens += d.tokens, nats += d.nats_per_token * static_cast<double>(d.tokens);
  if (tokens > 0)
    facts.push_back({"Looked at", count(tokens),
                     fmt::format("tokens of {}, {} nats each",
                                 counted(static_cast<int64_t>(r.domains.size()), "domain"),
                                 decimal(nats / static_cast<double>(tokens), 3))});
  if (!r.moe_layers.empty()) {
    double worst = 0, sum = 0;
    for (const LayerStats& l : r.moe_layers)
      worst = std::max(worst, l.max_vio), sum += l.effective_experts;
    facts.push_back({"MaxVio", decimal(worst, 2), "of the least even layer; 0 is even"});
    facts.push_back({"Effective experts",
                     decimal(sum / static_cast<double>(r.moe_layers.size()), 1),
                     fmt::format("of {}, mean over layers", r.experts)});
  }
  return facts;
}

std::vector<std::string> troubles_of(const RoutingReport& r, const TrainingHistory* h) {
  std::vector<std::string> out;
  if (!r.by_neuron) {  // some neurons are hot and some cold in any network
    add_collapse(out, r);
    add_dead(out, r);
  }
  add_drops(out, r, h);
  if (h && !h->alarms.empty())
    out.push_back(fmt::format("The run raised {}, the last at step {}: {}.",
                              counted(static_cast<int64_t>(h->alarms.size()), "alarm"),
                              h->alarms.back().step, h->alarms.back().kind));
  return out;
}

std::vector<std::string> findings_of(const RoutingReport& r) {
  std::vector<std::string> out;
  add_specialists(out, r);
  add_balance(out, r);
  add_pairs(out, r);
  add_vocabulary(out, r);
  return out;
}

}  // namespace moe
