#include "infer/eval_routing.h"

#include "core/error.h"

namespace moe {
namespace {

void check_top_k(const RoutingOptions& options, const RoutingSpec& spec, int64_t k) {
  if (experts_choose(spec.select))
    fail_usage(
        "@top_k_experts is {}, but by recipe '{}' it is the experts that choose: how many a token "
        "gets differs from token to token; leave it out",
        k, options.recipe);
  if (k < 1 || k > spec.experts)
    fail_usage("@top_k_experts is {}; the model has {} experts a layer, so give 1 to {}", k,
               spec.experts, spec.experts);
  if (!std::holds_alternative<KeepSecond>(spec.second))
    fail_usage(
        "@top_k_experts is {}, but recipe '{}' decides about the second of two experts; leave it "
        "out",
        k, options.recipe);
  if (const auto* grouped = std::get_if<GroupedTopK>(&spec.select)) {
    const int64_t most = grouped->keep * (spec.experts / grouped->groups);
    if (k > most)
      fail_usage(
          "@top_k_experts is {}, but a token chooses among {} experts of the groups that it keeps; "
          "give 1 to {}",
          k, most, most);
  }
}

}  // namespace

RoutingSpec evaluation_spec(const ModelConfig& config, std::optional<EvalRouting> routing,
                            int64_t top_k_experts) {
  if (config.moe_layer_count() == 0) {
    if (top_k_experts != 0)
      fail_usage(
          "@top_k_experts is {}, but the model is dense: it has no experts to choose from; leave "
          "it out",
          top_k_experts);
    if (routing)
      fail_usage("@routing is {}, but the model is dense: it has no routers; leave it out",
                 name_of(*routing));
    return {};
  }
  RoutingSpec spec = eval_spec(config.routing, routing.value_or(default_eval(config.routing)));
  if (top_k_experts == 0) return spec;
  check_top_k(config.routing, spec, top_k_experts);
  if (top_k_experts == spec.slots()) return spec;
  set_top_k(spec.select, top_k_experts);
  spec.losses = {};  // are of training, and some of its bounds depend on K
  return spec;
}

namespace {

// Whether more than half of the matrices' numbers are of a dtype that `is` accepts.
template <class Is>
bool mostly(const Model& model, Is&& is) {
  int64_t such = 0, all = 0;
  for (const Param* param : model.params()) {
    if (!param->is_matrix()) continue;
    all += param->value.numel();
    if (is(param->value.dtype)) such += param->value.numel();
  }
  return 2 * such > all;
}

}  // namespace

DType natural_dtype(const Model& model) {
  const bool halves =
      mostly(model, [](DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; });
  return halves && ops::has_bf16_products() ? DType::bf16 : DType::f32;
}

bool is_compact(const Model& model) {
  return mostly(model, [](DType dtype) { return is_quantised(dtype) || size_of(dtype) <= 2; });
}

bool mostly_quantised(const Model& model) { return mostly(model, is_quantised); }

}  // namespace moe
