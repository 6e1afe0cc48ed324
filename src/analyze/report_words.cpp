#include "analyze/report_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analyze/markup.h"
#include "analyze/report_figures.h"
#include "core/words.h"

namespace moe {
namespace {

std::string domain_name(const RoutingReport& r, int64_t d) { return r.domains[static_cast<size_t>(d)].name; }

void add_specialists(std::vector<std::string>& out, const RoutingReport& r) {
  if (r.domains.size() < 2) return;
  Standout best;
  int64_t specialists = 0, experts = 0;
  const double even = even_domain_share(r);
  for (const LayerStats& l : r.moe_layers) {
    if (const Standout s = strongest_domain(r, l); s.ratio > best.ratio) best = s;
    for (int64_t e = 0; e < l.domain.cols; ++e, ++experts) {
      bool is_one = false;
      for (int64_t d = 0; d < l.domain.rows; ++d) is_one |= l.domain(d, e) > 2 * even;
      specialists += is_one;
    }
  }
  if (best.ratio <= 1) return;
  out.push_back(fmt::format("Expert {} of layer {} is chosen by {} of the tokens of {}, {} its even share of {}.", best.expert, best.layer, percent(best.value),
                            domain_name(r, best.other), times(best.ratio), fine_percent(even)));
  if (specialists == 0) out.push_back(fmt::format("No expert takes more than twice its even share of a domain ({} in all).", counted(experts, "expert")));
  else
    out.push_back(fmt::format("{} of {} {} more than twice the even share of some domain.", specialists, counted(experts, "expert"),
                              specialists == 1 ? "takes" : "take"));
}

void add_balance(std::vector<std::string>& out, const RoutingReport& r) {
  if (r.moe_layers.empty() || r.experts < 2) return;
  const auto less = [](const LayerStats& a, const LayerStats& b) { return a.max_vio < b.max_vio; };
  const auto [even, uneven] = std::minmax_element(r.moe_layers.begin(), r.moe_layers.end(), less);
  const auto busiest = std::max_element(uneven->load.begin(), uneven->load.end()) - uneven->load.begin();
  std::string says =
      fmt::format("The least even layer is {}: its busiest expert, {}, gets {} the mean load", uneven->layer, busiest, times(1 + uneven->max_vio));
  if (even->layer != uneven->layer) says += fmt::format("; in the most even, {}, it is {}", even->layer, times(1 + even->max_vio));
  out.push_back(says + ".");
  int64_t dead = 0;
  double dropped = 0;
  for (const LayerStats& l : r.moe_layers) dead += l.dead, dropped = std::max(dropped, l.dropped);
  if (dead > 0) out.push_back(fmt::format("{} dead: less than a hundredth of the mean load.", counted(dead, "expert") + (dead == 1 ? " is" : " are")));
  if (dropped > 0) out.push_back(fmt::format("Up to {} of a layer's choices found no room.", percent(dropped)));
}

void add_pairs(std::vector<std::string>& out, const RoutingReport& r) {
  Standout best;
  for (const LayerStats& l : r.moe_layers)
    if (const auto pairs = strongest_pairs(r, l, 1); !pairs.empty() && pairs[0].ratio > best.ratio) best = pairs[0];
  if (best.ratio > 1)
    out.push_back(fmt::format("In layer {}, of the tokens that choose expert {}, {} choose {} too, {} what chance would give.", best.layer, best.expert,
                              percent(best.value), best.other, times(best.ratio)));
}

void add_vocabulary(std::vector<std::string>& out, const RoutingReport& r) {
  const auto less = [](const LayerStats& a, const LayerStats& b) { return a.vocabulary_input < b.vocabulary_input; };
  if (r.experts < 2) return;
  const auto most = std::max_element(r.moe_layers.begin(), r.moe_layers.end(), less);
  if (most == r.moe_layers.end() || most->vocabulary_input <= 0) return;
  out.push_back(fmt::format("Experts follow the token itself most in layer {}: on average an id goes to its favourite expert {} of the time.", most->layer,
                            percent(most->vocabulary_input)));
}

}  // namespace

std::string subtitle_of(const RoutingReport& r) {
  if (r.moe_layers.empty() && r.experts == 0) return fmt::format("{}, all dense: nothing is routed", counted(r.layers, "layer"));
  std::string out = r.moe_layers.empty() ? counted(r.layers, "layer") : counted(static_cast<int64_t>(r.moe_layers.size()), "MoE layer");
  if (!r.moe_layers.empty() && static_cast<int64_t>(r.moe_layers.size()) < r.layers) out += fmt::format(" among {}", counted(r.layers, "layer"));
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
      f.more = fmt::format("{} active for a token ({})", count(r.active_parameters),
                           percent(static_cast<double>(r.active_parameters) / static_cast<double>(r.parameters)));
    facts.push_back(f);
  }
  if (h && !h->points.empty()) {
    const HistoryPoint& last = h->points.back();
    facts.push_back({"Trained on", count(last.tokens), fmt::format("tokens in {}, {} a second", counted(last.step, "step"), compact(last.tokens_per_second))});
  }
  if (h && !h->eval_ce.empty())
    facts.push_back({"Held-out loss", decimal(h->eval_ce.back().second, 3), fmt::format("nats per token, at step {}", h->eval_ce.back().first)});
  else if (h && !h->points.empty()) facts.push_back({"Training loss", decimal(h->points.back().ce, 3), "nats per token, last steps"});
  int64_t tokens = 0;
  double nats = 0;
  for (const DomainText& d : r.domains) tokens += d.tokens, nats += d.nats_per_token * static_cast<double>(d.tokens);
  if (tokens > 0)
    facts.push_back(
        {"Looked at", count(tokens),
         fmt::format("tokens of {}, {} nats each", counted(static_cast<int64_t>(r.domains.size()), "domain"), decimal(nats / static_cast<double>(tokens), 3))});
  if (!r.moe_layers.empty()) {
    double worst = 0, sum = 0;
    for (const LayerStats& l : r.moe_layers) worst = std::max(worst, l.max_vio), sum += l.effective_experts;
    facts.push_back({"MaxVio", decimal(worst, 2), "of the least even layer; 0 is even"});
    facts.push_back({"Effective experts", decimal(sum / static_cast<double>(r.moe_layers.size()), 1), fmt::format("of {}, mean over layers", r.experts)});
  }
  return facts;
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
