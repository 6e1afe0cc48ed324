// Configs of families that llama.cpp came to have words for later than for those of gguf_configs.h,
// for its list; each is made of a small one that routes as DeepSeek-V3.
#pragma once

#include <cmath>
#include <vector>

#include "hub/configs.h"

namespace moe::test {

// Layers with a window have other heads than those without, and values are narrower than keys.
inline ModelConfig mimo_config(ModelConfig c) {
  c.model_type = "mimo_v2_flash";
  c.routing.expert_groups = c.routing.groups_kept = 1;
  c.routing.routed_scale = 1;
  c.dense_first = 1;
  c.dense_width = 96;
  c.kv_heads = 4;
  c.full = {.kv_heads = 2};
  c.head_width = 16;
  c.rotary_width = 8;
  c.value_width = 8;
  c.value_factor = 0.707f;
  c.attention_sinks = c.window_sinks = true;
  c.attention_window = 5;
  c.window_layers = {0, 2};
  c.window_rope_theta = 500;
  return c;
}

inline ModelConfig laguna_config(ModelConfig c) {
  c.model_type = "laguna";
  c.routing.expert_groups = c.routing.groups_kept = 1;
  c.routing.routed_scale = 2.5f;
  c.dense_first = 1;
  c.dense_width = 96;
  c.shared_experts = 1;
  c.shared_width = 96;
  c.qk_norm = QkNorm::head;
  c.attention_gate = c.head_gates = c.gate_softplus = true;
  c.full = {.heads = 2};
  c.head_width = 16;
  c.rotary_width = 8;
  c.window_rotary_width = 16;
  c.attention_window = 5;
  c.window_layers = {1, 2};
  c.window_rope_theta = 500;
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                    .factor = 4,
                    .original_context = 8,
                    .attention_factor = 1 + 0.1f * std::log(4.0f)};
  return c;
}

// Kimi's linear attention, gates and decays of whole matrices, around latent attention that turns.
inline ModelConfig ling_config(ModelConfig c) {
  c.model_type = "bailing_hybrid";
  c.shared_experts = 1;
  c.attention_gate = c.head_gates = true;
  c.linear = {.key_heads = c.heads,
              .value_heads = c.heads,
              .key_width = 16,
              .value_width = 16,
              .conv_width = 4,
              .channel_decays = true,
              .decay_floor = -5};
  c.linear_layers = {0, 2};
  return c;
}

// GLM-5's attention with sinks and a gate, residual streams, held experts.
inline ModelConfig hy4_config(ModelConfig c) {
  c.model_type = "hy_v4";
  c.routing.expert_groups = c.routing.groups_kept = 1;
  c.shared_experts = 1;
  c.latent.query_width = 32;
  c.sparse = {.top = 6, .heads = 3, .width = 16, .norm_eps = c.norm_eps, .followers = {1}};
  c.hyper = {.streams = 2, .mixes = false, .magnitude = 1.5f, .eps = 1e-5f};
  c.attention_gate = c.attention_sinks = c.experts_held = true;
  return c;
}

// Lightning attention above attention and below it, of a model that routes as Mixtral; as llama.cpp
// has one factor of residuals, and with two.
inline ModelConfig lightning_config(ModelConfig c) {
  c.model_type = "minimax";
  c.norm_placement = NormPlacement::carried;
  c.head_width = 16;
  c.rotary_width = 8;
  c.lightning_layers = {0, 2};
  c.multipliers.attention_sum.kept = c.multipliers.lightning_sum.kept = c.multipliers.ffn_sum.kept =
      2.5f;
  return c;
}

inline void add_lightning_configs(std::vector<NamedConfig>& all, const ModelConfig& routed) {
  ModelConfig c = lightning_config(routed);
  all.push_back({"minimax-01", c});
  c.lightning_layers = {1};
  c.tied = true;
  c.rotary_width = 0;
  all.push_back({"minimax-01", c});
  c.multipliers.ffn_sum.added = 0.5f;
  all.push_back({"moe_cpp", c});
}

// Selective scans around attention in which nothing turns, and experts in some layers; of one that
// routes without dividing weights by their sum, or of one without experts.
inline ModelConfig jamba_config(ModelConfig c) {
  c.model_type = "jamba";
  c.rope_theta = 10000;  // which its configs do not say: nothing turns
  c.scan = {.heads = 2 * c.width,
            .groups = 1,
            .width = 1,
            .states = 16,
            .conv_width = 4,
            .conv_bias = true,
            .step_rank = 8};
  c.scan_layers = {0, 2};
  c.nope_layers = {1};
  if (c.moe_layer_count() > 0) c.moe_layers = {1};
  return c;
}

inline void add_jambas(std::vector<NamedConfig>& all, const ModelConfig& routed,
                       const ModelConfig& dense) {
  all.push_back({"jamba", jamba_config(routed)});
  ModelConfig everywhere = jamba_config(routed);
  everywhere.moe_layers = {0, 1, 2};
  everywhere.tied = true;
  all.push_back({"jamba", everywhere});
  ModelConfig without = jamba_config(dense);
  all.push_back({"jamba", without});
  without.scan.conv_bias = false;
  all.push_back({"moe_cpp", without});
}

inline void add_configs_with_listed_windows(std::vector<NamedConfig>& all,
                                            const ModelConfig& routed) {
  ModelConfig mimo = mimo_config(routed);
  all.push_back({"mimo2", mimo});
  mimo.value_width = 0;
  mimo.value_factor = 1;
  mimo.window_sinks = false;
  mimo.full = {.heads = 2};
  mimo.kv_heads = 2;
  mimo.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                       .factor = 4,
                       .original_context = 8,
                       .attention_factor = 1 + 0.1f * std::log(4.0f)};
  all.push_back({"mimo2", mimo});
  mimo.window_rotary_width = 16;
  all.push_back({"moe_cpp", mimo});
  ModelConfig laguna = laguna_config(routed);
  all.push_back({"laguna", laguna});
  laguna.full = {};
  laguna.window_layers.clear();
  laguna.attention_window = laguna.window_rotary_width = 0;
  laguna.window_rope_theta = 0;
  laguna.rope_scaling = {};
  laguna.head_gates = false;
  laguna.tied = true;
  all.push_back({"laguna", laguna});
}

// `latent` has latents and routes by groups.
inline void add_configs_with_later_latents(std::vector<NamedConfig>& all,
                                           const ModelConfig& latent) {
  ModelConfig ling = ling_config(latent);
  all.push_back({"bailingmoe3", ling});
  ling.latent.query_width = 32;
  ling.tied = true;
  all.push_back({"bailingmoe3", ling});
  ling.linear.decay_floor = 0;
  all.push_back({"moe_cpp", ling});
  ModelConfig hy4 = hy4_config(latent);
  all.push_back({"hy_v4", hy4});
  hy4.sparse.norm_eps = 2e-6f;
  all.push_back({"moe_cpp", hy4});
}

}  // namespace moe::test
