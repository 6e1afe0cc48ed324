#include "analyze/data/conversion_report.h"

#include <fmt/format.h>

#include <map>

#include "core/words.h"
#include "infer/memory_plan.h"
#include "model/cost.h"

namespace moe {
namespace {

std::string shape_of(const ModelConfig& c, int64_t top_k) {
  const int64_t moe = c.moe_layer_count();
  if (moe == 0)
    return fmt::format("{} with a dense FFN of width {}", counted(c.layers, "layer"),
                       c.dense_width);
  std::string out = fmt::format("{}, {} of {} experts of width {} a token",
                                moe == c.layers ? counted(moe, "MoE layer")
                                                : fmt::format("{} MoE layers of {}", moe, c.layers),
                                top_k, c.routing.experts, c.expert_width);
  if (c.shared_experts > 0)
    out += fmt::format(" and {} of width {} always on", c.shared_experts, c.shared_width);
  return out + fmt::format(", recipe {}", c.routing.recipe);
}

// Of most numbers in matrices.
DType most_common_type(const Model& model) {
  std::map<DType, int64_t> numbers;
  for (const Param* p : model.params())
    if (p->is_matrix()) numbers[p->value.dtype] += p->value.numel();
  DType most = DType::f32;
  int64_t best = 0;
  for (const auto& [dtype, n] : numbers)
    if (n > best) best = n, most = dtype;
  return most;
}

}  // namespace

ModelCard model_card(std::string name, Model& model, DType compute, int64_t window,
                     int64_t top_k_experts) {
  const ModelConfig& c = model.config();
  const int64_t top_k = experts_taken(c, top_k_experts);
  const ParamCount params = count_params(c, top_k);
  ModelCard card{.name = std::move(name),
                 .shape = shape_of(c, top_k),
                 .weights = std::string(name_of(most_common_type(model))),
                 .compute = std::string(name_of(compute)),
                 .parameters = params.total(),
                 .active_parameters = params.active()};
  for (const Param* p : model.params()) card.weight_bytes += p->value.bytes();
  card.bytes_per_token = decode_bytes(model, top_k);
  card.flops_per_token = count_flops(c, window, top_k).forward();
  return card;
}

std::vector<TextView> texts_of(const ConversionReport& r) {
  if (r.others.empty()) return {{r.text, r.text, r.figures}};
  std::vector<TextView> out = {{"text 1", r.text, r.figures}};
  for (const TextComparison& other : r.others)
    out.push_back({fmt::format("text {}", out.size() + 1), other.text, other.figures});
  return out;
}

FrontierPoint frontier_point(const ConversionReport& r, std::string name,
                             std::optional<double> ffn_share) {
  FrontierPoint p{.name = std::move(name),
                  .ffn_share = ffn_share,
                  .perplexity = r.figures.after.perplexity,
                  .kl = r.figures.kl,
                  .same_top = r.figures.same_top};
  p.bytes_per_token = r.after.bytes_per_token;
  p.flops_per_token = r.after.flops_per_token;
  if (!r.before_speed || !r.after_speed) return p;
  p.prompt_rate = r.after_speed->prompt_rate();
  p.decode_rate = r.after_speed->decode_rate();
  p.speed_up = speed_up(*r.before_speed, *r.after_speed);
  return p;
}

FrontierPoint frontier_start(const ConversionReport& r) {
  FrontierPoint p{.name = "before", .perplexity = r.figures.before.perplexity};
  p.bytes_per_token = r.before.bytes_per_token;
  p.flops_per_token = r.before.flops_per_token;
  p.is_before = true;
  if (!r.before_speed) return p;
  p.prompt_rate = r.before_speed->prompt_rate();
  p.decode_rate = r.before_speed->decode_rate();
  return p;
}

}  // namespace moe
