#include "analyze/data/report_json.h"

#include <nlohmann/json.hpp>

namespace moe {
namespace {

Json optional(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

Json rows(const Grid& grid) {
  Json all = Json::array();
  for (int64_t r = 0; r < grid.rows; ++r)
    all.push_back(std::vector<double>(grid.at.begin() + r * grid.cols,
                                      grid.at.begin() + (r + 1) * grid.cols));
  return all;
}

Json favourites(const std::vector<std::vector<TokenAffinity>>& experts) {
  Json all = Json::array();
  for (const std::vector<TokenAffinity>& tokens : experts) {
    Json& list = all.emplace_back(Json::array());
    for (const TokenAffinity& t : tokens)
      list.push_back(
          {{"id", t.id}, {"text", t.text}, {"occurrences", t.occurrences}, {"share", t.share}});
  }
  return all;
}

Json to_json(const LayerStats& s) {
  return {{"layer", s.layer},
          {"counts", s.counts},
          {"load", s.load},
          {"mass", s.mass},
          {"max_vio", s.max_vio},
          {"max_vio_batch", s.max_vio_batch},
          {"cv2", s.cv2},
          {"load_entropy", s.load_entropy},
          {"effective_experts", s.effective_experts},
          {"dead", s.dead},
          {"dropped", s.dropped},
          {"unrouted", s.unrouted},
          {"router_entropy", optional(s.router_entropy)},
          {"margin", optional(s.margin)},
          {"top_score", optional(s.top_score)},
          {"domain", rows(s.domain)},
          {"coactivation", rows(s.coactivation)},
          {"vocabulary_input", optional(s.vocabulary_input)},
          {"vocabulary_target", optional(s.vocabulary_target)},
          {"vocabulary_predicted", optional(s.vocabulary_predicted)},
          {"favourites", favourites(s.favourites)},
          {"saturation", optional(s.saturation)}};
}

Json to_json(const SampleText& s) {
  Json experts = Json::array(), weights = Json::array();
  const size_t tokens = s.pieces.size();
  for (size_t l = 0; l < s.experts.size(); ++l) {
    Json& layer_experts = experts.emplace_back(Json::array());
    Json& layer_weights = weights.emplace_back(Json::array());
    const size_t slots = s.experts[l].size() / tokens;
    for (size_t n = 0; n < tokens; ++n) {
      Json& sent = layer_experts.emplace_back(Json::array());
      Json& by = layer_weights.emplace_back(Json::array());
      for (size_t i = n * slots; i < (n + 1) * slots; ++i) {
        if (s.experts[l][i] < 0) continue;
        sent.push_back(s.experts[l][i]);
        by.push_back(shortest_decimal(s.weights[l][i]));
      }
    }
  }
  return {{"domain", s.domain},
          {"pieces", s.pieces},
          {"nll", s.nll},
          {"experts", std::move(experts)},
          {"weights", std::move(weights)}};
}

Json to_json(const PairPoint& p) {
  return {{"step", p.step}, {"dpo", p.loss}, {"margin", p.margin}, {"accuracy", p.accuracy}};
}

Json to_json(const HistoryPoint& p) {
  Json out{
      {"step", p.step},           {"tokens", p.tokens}, {"ce", p.ce},
      {"grad_norm", p.grad_norm}, {"lr", p.lr},         {"tokens_per_second", p.tokens_per_second},
      {"seconds", p.seconds},     {"losses", p.losses}, {"max_vio", p.max_vio},
      {"dropped", p.dropped},     {"load", p.load}};
  if (p.pairs) out["pairs"] = to_json(*p.pairs);
  return out;
}

}  // namespace

Json to_json(const RoutingReport& r) {
  Json domains = Json::array(), layers = Json::array(), samples = Json::array();
  for (const DomainText& d : r.domains)
    domains.push_back(
        {{"name", d.name}, {"tokens", d.tokens}, {"nats_per_token", d.nats_per_token}});
  for (const LayerStats& s : r.moe_layers) layers.push_back(to_json(s));
  for (const SampleText& s : r.samples) samples.push_back(to_json(s));
  return {{"model", r.model},
          {"recipe", r.recipe},
          {"tokenizer", r.tokenizer},
          {"routing", r.routing},
          {"earlier", r.earlier.empty() ? Json(nullptr) : Json(r.earlier)},
          {"experts", r.experts},
          {"top_k", r.top_k},
          {"by_neuron", r.by_neuron},
          {"slots", r.slots},
          {"layers", r.layers},
          {"vocab", r.vocab},
          {"window", r.window},
          {"parameters", r.parameters},
          {"active_parameters", r.active_parameters},
          {"domains", std::move(domains)},
          {"moe_layers", std::move(layers)},
          {"samples", std::move(samples)}};
}

Json to_json(const TrainingHistory& h) {
  Json points = Json::array(), evals = Json::array(), alarms = Json::array();
  for (const HistoryPoint& p : h.points) points.push_back(to_json(p));
  for (const auto& [step, ce] : h.eval_ce) evals.push_back({{"step", step}, {"ce", ce}});
  Json eval_pairs = Json::array();
  for (const PairPoint& p : h.eval_pairs) eval_pairs.push_back(to_json(p));
  for (const HistoryAlarm& a : h.alarms)
    alarms.push_back({{"step", a.step}, {"kind", a.kind}, {"text", a.text}});
  return {{"loss_names", h.loss_names},          {"layers", h.layers},
          {"points", std::move(points)},         {"eval_ce", std::move(evals)},
          {"eval_pairs", std::move(eval_pairs)}, {"alarms", std::move(alarms)}};
}

}  // namespace moe
