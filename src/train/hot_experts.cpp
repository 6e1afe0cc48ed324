#include "train/hot_experts.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/order.h"
#include "moe/recipes/recipes.h"
#include "train/batch_of.h"

namespace moe {
namespace {

void check_can_be_hot(const ModelConfig& config, const TrainOptions& o) {
  check_has_experts(config, o);
  if (experts_choose(eval_spec(config.routing).select))
    fail_usage(
        "@tune {}: by recipe '{}' experts choose their tokens, all as many, so that none is hotter "
        "than others; @tune lora trains adapters of all",
        name_of(o.tune), config.routing.recipe);
  if (o.expert_parallel > 1)
    fail_usage(
        "@tune {} measures all experts of a layer in one process; leave @expert_parallel out",
        name_of(o.tune));
}

// counts [E] choices of each expert.
HotLayer hottest(int64_t layer, const std::vector<int64_t>& counts, double share) {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  HotLayer hot{layer, {}, 0};
  int64_t taken = 0;
  for (const int64_t e : falling_order(counts)) {
    hot.experts.push_back(e);
    taken += counts[static_cast<size_t>(e)];
    if (static_cast<double>(taken) >= share * all) break;
  }
  hot.share = static_cast<double>(taken) / all;
  std::sort(hot.experts.begin(), hot.experts.end());
  return hot;
}

}  // namespace

void check_has_experts(const ModelConfig& config, const TrainOptions& o) {
  if (config.moe_layer_count() == 0)
    fail_usage("@tune {}: this model is dense and has no experts; @tune lora trains adapters of it",
               name_of(o.tune));
}

std::vector<HotLayer> hot_experts(Model& model, const TrainOptions& options, const Corpus& corpus,
                                  const Watch& watch) {
  const TrainOptions o = resolved(options);
  check_can_be_hot(model.config(), o);
  const RoutingSpec routing = eval_spec(model.config().routing);
  const BatchPlan plan(corpus, {o.context, o.batch, 1}, o.shuffle, o.seed, o.mix);
  const int64_t batches = std::max<int64_t>(1, kHotTokens / (o.context * o.batch));
  Run run(o.threads, o.dtype);
  run.widen = true;
  std::vector<int64_t> layers;
  std::vector<std::vector<int64_t>> counts;  // [E] a MoE layer
  const Progress progress = watch.begin();
  for (int64_t i = 0; i < batches; ++i) {
    if (watch.stopped())
      fail("interrupted while it was measured which experts are hot; nothing was written");
    progress(i, batches, "micro-batches, to see which experts the text uses");
    const ArenaScope scope(run.saved);
    TextBatch text;
    plan.fill(corpus, i, 0, text);
    ModelSaved saved;
    model.forward(run, {.batch = batch_of(text), .routing = &routing, .wanted = {.counts = true}},
                  saved);
    layers.resize(saved.routing.size());
    counts.resize(saved.routing.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      layers[l] = saved.routing[l].layer;
      // without zero experts, which stand behind those with weights
      counts[l].resize(static_cast<size_t>(routing.with_weights()));
      for (size_t e = 0; e < counts[l].size(); ++e) counts[l][e] += saved.routing[l].counts[e];
    }
  }
  progress(batches, batches, "micro-batches, to see which experts the text uses");
  // Copies that products made of the weights go, so that what the run needs is estimated from here.
  for (Param* param : model.params()) param->derived = {};
  std::vector<HotLayer> hot;
  for (size_t l = 0; l < layers.size(); ++l)
    hot.push_back(hottest(layers[l], counts[l], o.hot_share));
  return hot;
}

}  // namespace moe
