// Small configs of DeepSeek-V4, for configs.h.
#pragma once

#include "model/config.h"

namespace moe::test {

// Layers of all three kinds, or of windows alone.
template <class Add>
void add_deepseek_v4(Add&& add) {
  for (const bool entries : {true, false})
    add("deepseek_v4", "deepseek-v4", [&](ModelConfig& c) {
      c.layers = entries ? 3 : 2;
      c.kv_heads = 1;
      c.head_width = 8;
      c.rotary_width = 4;
      c.latent = {.width = 8,
                  .query_width = 5,
                  .value_width = 8,
                  .shared = true,
                  .out_groups = 2,
                  .out_width = 3};
      c.attention_sinks = true;
      c.attention_window = 3;
      c.window_rope_theta = 500;
      c.hyper = {.streams = 2, .mixes = true, .rounds = 3};
      c.act = ops::Act::swiglu_10;
      c.shared_experts = 1;
      c.expert_width = c.shared_width = c.dense_width = 6;
      c.table_layers = {0};
      if (!entries) return;
      c.heavy = {.tokens = 4};
      c.heavy_layers = {1};
      c.light = {.tokens = 2, .top = 2, .heads = 3, .width = 6};
      c.light_layers = {2};
      c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8};
    });
}

}  // namespace moe::test
