// One line a step, written and read again.
#include "train/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "train/step_lines.h"

namespace moe {
namespace {

Json to_json(const Alarm& alarm) {
  Json out{{"kind", name_of(alarm.kind)}, {"text", alarm.text}};
  if (alarm.layer >= 0) out["layer"] = alarm.layer;
  if (!alarm.experts.empty()) out["experts"] = alarm.experts;
  return out;
}

constexpr const char* kLoss = "dpo";  // of preference pairs

bool tells_of_evaluation(std::string_view line) {
  return line.find("\"eval_ce\"") != std::string_view::npos;
}

void add_evaluation(Json& line, const Evaluation& eval) {
  line["eval_ce"] = eval.ce;
  if (eval.pairs) add_figures(line, "eval_", *eval.pairs);
}

// Where experts are neurons, the loads of a step would be a megabyte of text.
constexpr size_t kMostLoads = 512;

}  // namespace

void add_figures(Json& line, const std::string& prefix, const PairFigures& pairs) {
  line[prefix + kLoss] = pairs.loss;
  line[prefix + "margin"] = pairs.margin;
  line[prefix + "accuracy"] = pairs.accuracy;
}

std::string described_ce(double ce) {
  return std::isnan(ce) ? "nothing to predict" : fmt::format("ce {:.3f}", ce);
}

// What is not a number is written as null.
std::string metrics_line(const StepResult& r, const std::optional<Evaluation>& eval,
                         std::span<const Alarm> alarms) {
  Json line{{"step", r.step},
            {"tokens", r.tokens},
            {"seconds", r.seconds},
            {"ce", r.ce},
            {"predicted", r.predicted},
            {"balance", r.balance},
            {"z", r.z},
            {"grad_norm", r.grad_norm},
            {"lr", r.lr},
            {"tokens_per_second", r.tokens_per_second},
            {"flops_per_second", r.flops_per_second},
            {"max_vio", r.max_vio},
            {"dropped", r.dropped}};
  if (r.kl) line["kl"] = *r.kl;
  if (r.pairs) add_figures(line, "", *r.pairs);
  if (r.exchange)
    line["exchange"] = {{"sent", r.exchange->sent},
                        {"share", r.exchange->share},
                        {"hidden", r.exchange->hidden},
                        {"slowest", r.exchange->slowest},
                        {"lag", r.exchange->lag}};
  // Losses that few recipes have stand in the line where they are trained on.
  std::vector<float> coef;
  each_loss(r.coef, [&](std::string_view, float c) { coef.push_back(c); });
  size_t loss = 0;
  each_loss(r, [&](const char* name, double value) {
    if (coef[loss++] != 0) line[name] = value;
  });
  Json layers = Json::array();
  for (const LayerLoad& layer : r.layers)
    layers.push_back({{"layer", layer.layer},
                      {"load", layer.load.size() > kMostLoads ? Json::array() : Json(layer.load)},
                      {"max_vio", layer.max_vio},
                      {"dropped", layer.dropped}});
  line["layers"] = std::move(layers);
  if (eval) add_evaluation(line, *eval);
  for (const Alarm& alarm : alarms)
    line[alarm.recovered ? "recovered" : "alarms"].push_back(to_json(alarm));
  return line.dump();
}

std::string with_evaluation(std::string_view text, const Evaluation& eval,
                            const std::string& where) {
  Json line = parse_json(text, where);
  add_evaluation(line, eval);
  return line.dump();
}

std::optional<StepResult> parse_metrics_line(std::string_view text, const std::string& where) {
  try {
    const Json json = parse_json(text, where);
    const JsonReader line(json, where);
    StepResult r;
    r.step = line.get<int64_t>("step");
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, double*>>{{"balance", &r.balance},
                                                                {"z", &r.z},
                                                                {"grad_norm", &r.grad_norm},
                                                                {"lr", &r.lr},
                                                                {"max_vio", &r.max_vio},
                                                                {"dropped", &r.dropped}})
      *value = line.get<double>(key);
    r.ce = line.get<double>("ce", std::numeric_limits<double>::quiet_NaN());
    r.predicted = line.has("predicted") ? line.get<int64_t>("predicted") : 1;  // older runs' lines
    if (line.has(kLoss)) r.pairs = PairFigures{.loss = line.get<double>(kLoss)};
    for (const Json& entry : line.value("layers")) {
      const JsonReader layer(entry, where);
      r.layers.push_back({layer.get<int64_t>("layer"),
                          layer.value("load").get<std::vector<double>>(),
                          layer.get<double>("max_vio"), layer.get<double>("dropped")});
    }
    return r;
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<BestEvaluation> parse_evaluation(std::string_view text, const std::string& where) {
  // most lines: not worth parsing
  if (!tells_of_evaluation(text)) return std::nullopt;
  try {
    const Json json = parse_json(text, where);
    const JsonReader line(json, where);
    const std::string of_pairs = std::string("eval_") + kLoss;
    return BestEvaluation{line.get<int64_t>("step"),
                          line.get<double>(line.has(of_pairs) ? of_pairs : "eval_ce")};
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool ends_without_evaluation(const std::string& metrics, int64_t step) {
  bool without = false;
  each_last_line(metrics, 1, [&](std::string_view line) {
    const std::optional<StepResult> last = parse_metrics_line(line, metrics);
    without = last && last->step == step && !tells_of_evaluation(line);
  });
  return without;
}

}  // namespace moe
