#include <nlohmann/json.hpp>

#include "analyze/pages/conversion_page.h"
#include "analyze/texts/conversion_findings.h"

namespace moe {
namespace {

template <class T>
Json or_null(const std::optional<T>& x) {
  return x ? Json(*x) : Json(nullptr);
}

Json to_json(const TextFigures& t) {
  return {{"perplexity", t.perplexity},
          {"nats_per_token", t.nats_per_token},
          {"bits_per_byte", t.bits_per_byte},
          {"right", t.right}};
}

Json to_json(const ModelCard& m, const TextFigures& t, const std::optional<Speed>& speed) {
  Json out = to_json(t);
  out.update({{"model", m.name},
              {"shape", m.shape},
              {"weights", m.weights},
              {"compute", m.compute},
              {"prompt_rate", nullptr},
              {"decode_rate", nullptr},
              {"bytes_per_token", m.bytes_per_token},
              {"flops_per_token", m.flops_per_token},
              {"weight_bytes", m.weight_bytes},
              {"parameters", m.parameters},
              {"active_parameters", m.active_parameters}});
  if (!speed) return out;
  out["prompt_rate"] = speed->prompt_rate();
  out["decode_rate"] = speed->decode_rate();
  out["prompt_seconds"] = speed->prompt_seconds;
  out["decode_seconds"] = speed->decode_seconds;
  return out;
}

Json to_json(const SpeedUp& up) { return {{"prompt", up.prompt}, {"decode", up.decode}}; }

Json to_json(const FrontierPoint& p) {
  return {{"name", p.name},
          {"ffn_share", p.ffn_share ? Json(*p.ffn_share) : Json(nullptr)},
          {"perplexity", p.perplexity},
          {"kl", p.kl},
          {"same_top", p.same_top},
          {"prompt_rate", p.prompt_rate},
          {"decode_rate", p.decode_rate},
          {"speed_up", to_json(p.speed_up)},
          {"bytes_per_token", p.bytes_per_token},
          {"flops_per_token", p.flops_per_token},
          {"is_before", p.is_before},
          {"is_written", p.is_written}};
}

Json loads(const std::vector<LayerChoices>& layers) {
  Json all = Json::array();
  for (const LayerChoices& l : layers)
    all.push_back({{"layer", l.layer},
                   {"counts", l.counts},
                   {"max_vio", balance_of(l).max_vio},
                   {"dead", balance_of(l).dead}});
  return all;
}

Json to_json(const std::string& text, const Comparison& c) {
  return {{"text", text},
          {"windows", c.windows},
          {"window", c.window},
          {"tokens", c.tokens},
          {"before", to_json(c.before)},
          {"after", to_json(c.after)},
          {"loss_error", or_null(c.loss_error)},
          {"kl", c.kl},
          {"kl_median", c.kl_median},
          {"kl_high", c.kl_high},
          {"kl_most", c.kl_most},
          {"same_top", c.same_top},
          {"rms_change", c.rms_change},
          {"drift", c.drift},
          {"same_choices", c.same_choices},
          {"before_load", loads(c.before_load)},
          {"after_load", loads(c.after_load)}};
}

}  // namespace

Json to_json(const ConversionReport& r) {
  Json out = to_json(r.text, r.figures);
  out["kind"] = r.kind;
  out["before"] = to_json(r.before, r.figures.before, r.before_speed);
  out["after"] = to_json(r.after, r.figures.after, r.after_speed);
  out["speed_up"] = nullptr;
  Json& others = out["others"] = Json::array();
  for (const TextComparison& other : r.others) others.push_back(to_json(other.text, other.figures));
  if (r.before_speed && r.after_speed)
    out["speed_up"] = to_json(speed_up(*r.before_speed, *r.after_speed));
  Json& steps = out["steps"] = Json::object();
  for (const auto& [name, value] : r.steps) steps[name] = value;
  Json& layers = out["layers"] = Json::array();
  for (const ConvertedLayer& l : r.layers)
    layers.push_back({{"layer", l.layer},
                      {"active", or_null(l.active)},
                      {"reconstruction_error", or_null(l.error)},
                      {"router_agreement", or_null(l.agreement)}});
  Json& frontier = out["frontier"] = Json::array();
  for (const FrontierPoint& p : r.frontier) frontier.push_back(to_json(p));
  return out;
}

}  // namespace moe
