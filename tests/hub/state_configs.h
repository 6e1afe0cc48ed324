// Models of families whose layers keep a state, small ones (hub/configs.h).
#pragma once

#include "model/config.h"

namespace moe::test {

// Whose layers are one sublayer alone.
template <class Add>
void add_families_of_halves(Add&& add) {
  const auto halves = [](ModelConfig& c) {
    c.gated = false;
    c.act = ops::Act::relu2;
    c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
    c.scan_layers = {0};
    c.nope_layers = {2};
    c.mixer_only_layers = {0, 2};
  };
  add("nemotron_h", "deepseek-v3", [&](ModelConfig& c) {
    halves(c);
    c.layers = 5;
    c.ffn_only_layers = {1, 3, 4};
    c.moe_layers = {1, 4};
    c.expert_width = 6;
    c.shared_experts = 1;
    c.shared_width = 10;
  });
  add("nemotron_h", "dense", [&](ModelConfig& c) {
    halves(c);
    c.layers = 4;
    c.head_width = 6;
    c.ffn_only_layers = {1, 3};
  });
}

// Residuals that norms give, with lightning attention below attention or above it, or in no layer.
template <class Add>
void add_lightning_family(Add&& add) {
  for (const int kind : {0, 1, 2})
    add("minimax", "mixtral", [&](ModelConfig& c) {
      c.layers = 3;
      c.head_width = 6;
      c.norm_placement = NormPlacement::carried;
      if (kind < 2) c.lightning_layers = {kind, 2};
      if (kind == 1) c.rotary_width = 4, c.attention_window = 5, c.tied = true;
      if (kind == 2) return;
      c.multipliers.attention_sum = {.kept = 3.5f, .added = 0.5f};
      c.multipliers.lightning_sum = {.kept = 2.5f, .added = 0.75f};
      c.multipliers.ffn_sum = {.kept = 1.5f, .added = 0.25f};
    });
}

// Some of whose layers have something else in place of attention, an FFN behind each.
template <class Add>
void add_hybrid_families(Add&& add) {
  for (const bool biased : {false, true})
    add("bamba", "dense", [&](ModelConfig& c) {
      c.layers = 3;
      c.head_width = 4;
      c.rotary_width = 2;
      c.scan = {.heads = 4, .groups = 2, .width = 4, .states = 3, .conv_width = 3};
      c.scan.conv_bias = !biased;
      c.scan_layers = {0, biased ? 1 : 2};
      c.attention_bias = c.attention_out_bias = c.ffn_bias = c.tied = biased;
    });
  for (const bool routes : {true, false})
    add("jamba", routes ? "olmoe" : "dense", [&](ModelConfig& c) {
      c.layers = 4;
      c.tied = !routes;
      c.scan = {.heads = 16, .groups = 1, .width = 1, .states = 3, .conv_width = 3, .step_rank = 2};
      c.scan.conv_bias = routes;
      c.nope_layers = {routes ? 1 : 3};
      c.scan_layers = {0, routes ? 2 : 1, routes ? 3 : 2};
      if (routes) c.moe_layers = {1, 3};
    });
  for (const bool normed : {false, true})
    add("falcon_h1", "dense", [&](ModelConfig& c) {
      c.head_width = 4;
      c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3};
      c.scan.norm = c.scan.conv_bias = normed;
      c.scan_layers = {0, 1};
      c.scan_beside = true;
      if (normed) return;
      c.multipliers = {.embedding = 5.5f,
                       .attention = 0.2f,
                       .logits = 8,
                       .scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f},
                       .scan_out = 0.3f,
                       .attention_out = 0.9f,
                       .ffn_gate = 0.6f,
                       .ffn_down = 1.4f};
    });
  for (const bool turns : {false, true})
    add("olmo_hybrid", "dense", [&](ModelConfig& c) {
      c.layers = 3;
      c.qk_norm = QkNorm::full;
      c.norm_placement = NormPlacement::output;
      c.states_pre_norm = true;
      c.linear = {.key_heads = 2,
                  .value_heads = 4,
                  .key_width = 3,
                  .value_width = 5,
                  .conv_width = 3,
                  .negative = !turns,
                  .norm_eps = 1e-5f};
      c.linear_layers = {0, 1};
      if (turns) c.norm_eps = 1e-6f;
      else c.nope_layers = {2};
      c.attention_bias = c.attention_out_bias = turns;
    });
}

}  // namespace moe::test
