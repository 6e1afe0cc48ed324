// Small configs of families that came later than those of configs.h, for its list.
#pragma once

#include <cmath>

#include "model/config.h"

namespace moe::test {

// Ling 3.0's, whose decays have a floor or none; `latent` sets up what it has of DeepSeek.
template <class Add, class Latent>
void add_ling3(Add&& add, Latent&& latent) {
  for (const bool floor : {true, false})
    add("bailing_hybrid", "deepseek-v3", [&](ModelConfig& c) {
      latent(c);
      c.layers = 4;
      c.attention_gate = c.head_gates = true;
      c.linear = {.key_heads = 3,
                  .value_heads = 3,
                  .key_width = 4,
                  .value_width = 4,
                  .conv_width = 3,
                  .channel_decays = true,
                  .decay_floor = floor ? -5.0f : 0.0f};
      if (floor) {
        c.linear_layers = {0, 2};
      } else {
        c.linear_layers = {0, 1, 3};
        c.latent.query_width = 5;
        c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                          .factor = 4,
                          .original_context = 8,
                          .score_mscale = 0.707f};
      }
    });
}

// LFM3's, with norms and gates or without them.
template <class Add>
void add_lfm3(Add&& add) {
  for (const bool parts : {true, false})
    add("lfm3", "dense", [&](ModelConfig& c) {
      c.layers = 4;
      c.head_width = 6;
      c.tied = parts;
      c.qk_norm = QkNorm::head;
      c.conv_width = 3;
      c.conv_layers = {0, 1};
      c.attention_window = 5;
      c.window_layers = {2};
      if (!parts) {
        c.attention_bias = c.attention_out_bias = true;
        return;
      }
      c.norm_placement = NormPlacement::both;
      c.attention_gate = c.head_gates = true;
      c.window_rope_theta = 500;
      c.rope_scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.5f};
    });
}

// LongCat-Flash's, with zero experts or without them, whose router is stages of a config's own.
template <class Add, class Latent, class All>
void add_longcat(Add&& add, Latent&& latent, All& all) {
  for (const bool zero : {true, false}) {
    add("longcat_flash", "mixtral", [&](ModelConfig& c) {
      latent(c);
      c.layers = 4;
      c.dense_first = 0;
      c.moe_every = 2;
      c.latent = {.width = 6, .query_width = 5, .value_width = 3};
      c.latent.factor = static_cast<float>(std::sqrt(static_cast<double>(c.width) / 6));
      c.latent.query_factor = static_cast<float>(std::sqrt(static_cast<double>(c.width) / 5));
      c.expert_width = 6;
      c.shared_experts = 1;
      c.shared_width = c.dense_width = 10;
      c.shortcut = true;
    });
    RoutingOptions& routing = all.back().config.routing;
    routing.coef = {};
    routing.zero_experts = zero ? 2 : 0;
    routing.recipe = kCustom;
    routing.stages =
        R"({"select":{"bias":true,"type":"top_k"},"weigh":{"scale":1.5,"type":"scores"}})";
  }
}

}  // namespace moe::test
