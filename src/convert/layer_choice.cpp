#include "convert/layer_choice.h"

#include "core/error.h"

namespace moe {

int64_t LayerChoice::count(int64_t layers) const { return listed.empty() ? (layers + every - 1) / every : static_cast<int64_t>(listed.size()); }

void LayerChoice::check(int64_t layers) const {
  if (every < 1) fail_usage("--layers every:{}: it must be at least 1", every);
  for (int64_t layer : listed)
    if (layer < 0 || layer >= layers) fail_usage("--layers: there is no layer {}; the model has layers 0 to {}", layer, layers - 1);
}

void LayerChoice::set(ModelConfig& config) const {
  config.moe_every = every;
  config.dense_first = 0;
  config.moe_layers = listed;
}

}  // namespace moe
