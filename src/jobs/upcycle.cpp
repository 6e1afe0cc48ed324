#include "jobs/upcycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "convert/options.h"
#include "core/error.h"
#include "hub/folder/styles.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "model/adapters.h"

namespace moe {
namespace {

// Read by both models to see how far their logits are apart.
constexpr std::string_view kProbe =
    "The router sends each token to a few experts, and what they say is added up.";
constexpr int64_t kProbeTokens = 64;

// A routing whose recipe nobody named is the one of models with this attention, renormalised.
RoutingOptions upcycled_routing(const UpcycleJob& job, const ModelConfig& dense,
                                int64_t moe_layers) {
  if (!job.routing.experts) fail_usage("@experts is missing: how many experts each layer gets");
  const RoutingOptions natural = routing_for_dense(dense, *job.routing.experts, 1, moe_layers);
  const bool is_named = !job.routing.recipe.empty() || !job.routing.stages.empty();
  WantedRouting named = job.routing;
  if (!is_named) named.recipe = natural.recipe;
  if (!named.top_k && !chosen_recipe(named).top_k_is_fixed)
    named.top_k = std::min(2 * job.options.granularity, *job.routing.experts);
  if (is_named) return routing_options(named, moe_layers);
  RoutingOptions options = routing_options(named, moe_layers);
  if (!options.norm_topk_prob) options.norm_topk_prob = natural.norm_topk_prob;
  return options;
}

UpcycleOptions upcycle_options(const UpcycleJob& job, const ModelConfig& dense) {
  UpcycleOptions o = job.options;
  o.layers.check(dense.layers);
  o.routing = upcycled_routing(job, dense, o.layers.count(dense));
  return o;
}

LogitDifference probe(LoadedModel& dense, Model& moe, int threads) {
  std::vector<int32_t> ids = dense.tokenizer->encode_text(kProbe);
  ids.resize(static_cast<size_t>(
      std::min({static_cast<int64_t>(ids.size()), kProbeTokens, dense.model->config().context})));
  Run run(threads, DType::f32);
  run.widen = true;  // products that round rows to bytes would hide how near the two are
  return compare_logits(*dense.model, moe, run, ids);
}

}  // namespace

FieldList fields(UpcycleJob& job) {
  FieldList list;
  list.add("DENSE", job.in, fmt::format("a dense model: {}", kModelIs)).positional().required();
  list.add("OUT", job.out, kNewModelHelp).positional().required();
  list.add(fields(job.routing));
  list.at("recipe").help = fmt::format(
      "how tokens choose experts: {}; default: the one of models with the same attention, weights "
      "renormalised so that they add up to 1 and step 0 "
      "computes what the dense model does",
      listed(names_of(recipes())));
  list.at("experts").help = "experts of each MoE layer, all shards counted";
  list.at("experts").required = true;
  list.at("top_k").help = marked(
      "experts a token takes; default: 2 copies, that is 2 times @granularity, or the number that "
      "the recipe fixes");
  list.add(fields(job.options));
  list.add(fields(job.type));
  add_threads(list, job.threads);
  add_memory(list, job.memory);
  return list;
}

void check_given(const UpcycleJob& job, const Given& given) {
  if (given.has("noise_share") && job.options.noise == 0)
    fail_usage("@noise_share is of what @noise draws anew: add @noise STD, or leave it out");
}

UpcycleReply upcycle_model(const UpcycleJob& job, const Watch& watch) {
  const int threads = thread_count(job.threads);
  check_result_type(job.type, job.out);
  LoadedModel dense = open_model(job.in, job.memory.limits);
  merge_terms(*dense.model, threads);
  const ResultType type = result_type(job.type, job.out, dense, job.in);
  const UpcycleOptions options = upcycle_options(job, dense.model->config());
  upcycled_config(dense.model->config(), options);  // usage errors before anything is made
  MemoryNeed weights;
  weights.add("new weights", upcycling_bytes(dense.model->config(), options));
  check_memory(weights, job.memory, marked("lower @experts, or leave @noise out"), watch);
  NewModel out(job.out, watch);
  Upcycled up = upcycle(*dense.model, options, threads);
  out.check_stopped();
  const ForwardShape probed{.tokens = kProbeTokens, .dtype = DType::f32};
  const ForwardUse uses[] = {{.model = dense.model.get(), .shape = probed, .once = true},
                             {.model = up.model.get(),
                              .shape = {.tokens = 1, .dtype = DType::f32},
                              .once = true}};  // in turn
  MemoryOptions probing = job.memory;
  MemoryNeed widened;
  if (mostly_quantised(*dense.model)) {
    const ModelConfig& c = dense.model->config();
    probing.limits.packed = 0;  // what is widened is met once
    widened.add("packing", 2 * 4 * c.width * c.dense_width);
  }
  prepare_memory(job.in, uses, widened, probing, "take a smaller model", watch);
  const LogitDifference difference = probe(dense, *up.model, threads);
  std::vector<ConvertedRow> rows = out.save(*up.model, *dense.tokenizer, type.type, threads);
  return {{job.out, up.model->config(), type, std::move(rows), std::move(up.parts)},
          options.granularity,
          up.weight_sum,
          up.down_scale,
          std::move(up.why_not_exact),
          difference};
}

Json to_json(const UpcycleReply& r, const Spelling& spell) {
  Json reply = to_json(static_cast<const Made&>(r), spell);
  reply["granularity"] = r.granularity;
  reply["weight_sum"] = r.weight_sum;
  reply["down_scale"] = r.down_scale;
  reply["step_0"] = {{"equals_dense", r.why_not_exact.empty()},
                     {"why_not", spelled(r.why_not_exact, spell)},
                     {"tokens", r.difference.tokens},
                     {"largest_difference", r.difference.largest},
                     {"largest_logit", r.difference.largest_logit}};
  return reply;
}

}  // namespace moe
