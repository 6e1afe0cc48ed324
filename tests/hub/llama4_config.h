// Small configs of Llama 4's text, for the tests of hub/.
#pragma once

#include "model/config.h"

namespace moe::test {

// All that sets it apart, or what of that its config can leave out.
inline void become_llama4(ModelConfig& c, bool whole) {
  c.qk_norm_turned = c.weigh_inputs = c.window_chunks = true;
  c.attention_window = 64;
  c.head_width = 6;
  c.expert_width = c.shared_width = 10;
  c.dense_width = 14;
  c.shared_experts = 1;
  if (whole) {
    c.layers = 4;
    c.moe_layers = {1, 3};
    c.nope_layers = {3};
    c.window_layers = {0, 1, 2};
    c.query_growth = {.beta = 0.1f, .context = 8, .where_still = true};
    c.qk_norm = QkNorm::bare;
    c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8};
  } else {
    c.window_layers = {0, 1};
    c.attention_bias = c.attention_out_bias = c.tied = true;
  }
}

inline void route_as_llama4(RoutingOptions& routing) {
  routing.recipe = kCustom;
  routing.stages =
      R"({"losses":{"balance":{"counts":"all_choices","probs":"softmax"}},"score":"raw",)"
      R"("weigh":{"renormalise":false,"type":"sigmoids"}})";
}

}  // namespace moe::test
