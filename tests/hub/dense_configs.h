// Small configs of families without experts (hub/configs.h).
#pragma once

#include <cmath>

#include "model/config.h"

namespace moe::test {

inline void part_turns(ModelConfig& c) { c.head_width = 6, c.rotary_width = 4; }

// Families without experts, each of which differs from Llama in names, norms or what turns.
template <class Add>
void add_dense_families(Add&& add) {
  add("phi3", "dense", [](ModelConfig& c) { c.attention_window = 9; });
  add("phi3", "dense", [&](ModelConfig& c) {
    part_turns(c);
    c.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                      .original_context = 8,
                      .attention_factor = 1.25f,
                      .long_attention_factor = 1.25f,
                      .short_factors = {1, 1.125f},
                      .long_factors = {2, 3}};
  });
  add("gemma", "dense", [](ModelConfig& c) {
    c.head_width = 6;
    c.norm_offset = c.tied = true;
    c.act = ops::Act::gelu_tanh;
    c.multipliers.embedding = std::sqrt(static_cast<float>(c.width));
  });
  const auto gemma2 = [](ModelConfig& c) {
    c.head_width = 6;
    c.norm_placement = NormPlacement::both;
    c.norm_offset = c.tied = true;
    c.act = ops::Act::gelu_tanh;
    c.layers = 3;
    c.attention_window = 5;
    c.window_layers = {0, 2};
    c.multipliers = {.embedding = std::sqrt(static_cast<float>(c.width)),
                     .attention = 1 / std::sqrt(7.0f)};
  };
  add("gemma2", "dense", [&](ModelConfig& c) {
    gemma2(c);
    c.score_cap = 50;
    c.logit_cap = 30;
  });
  add("gemma2", "dense", gemma2);
  for (const bool caps : {true, false})
    add("vaultgemma", "dense", [&](ModelConfig& c) {
      gemma2(c);
      c.norm_placement = NormPlacement::pre;
      if (!caps) return;
      c.score_cap = 50;
      c.logit_cap = 30;
    });
  const Multipliers multipliers = {
      .embedding = 12, .residual = 0.22f, .attention = 0.015625f, .logits = 6};
  add("granite", "dense", [&](ModelConfig& c) { c.multipliers = multipliers, c.tied = true; });
  for (const bool behind : {true, false})
    add("hyperclovax", "dense", [&](ModelConfig& c) {
      c.multipliers = multipliers;
      c.multipliers.logits = 8;
      if (behind) c.norm_placement = NormPlacement::both;
    });
  add("granite_swa", "dense", [&](ModelConfig& c) {
    c.multipliers = multipliers;
    c.layers = 3;
    c.attention_sinks = true;
    c.attention_window = 5;
    c.window_layers = {1, 2};
    c.nope_layers = {0};
  });
  add("glm4", "dense", [&](ModelConfig& c) {
    part_turns(c);
    c.attention_bias = true;
    c.norm_placement = NormPlacement::both;
  });
  add("glm", "dense", part_turns);
  add("seed_oss", "dense", [](ModelConfig& c) { c.head_width = 6, c.attention_bias = true; });
  const auto exaone4 = [](ModelConfig& c) {
    c.norm_placement = NormPlacement::output;
    c.qk_norm = QkNorm::head;
  };
  add("exaone4", "dense", exaone4);
  add("exaone4", "dense", [&](ModelConfig& c) {
    exaone4(c);
    c.layers = 4;
    c.attention_window = 5;
    c.window_layers = {0, 1, 2};
    c.nope_layers = {3};
  });
  add("ernie4_5", "dense", [](ModelConfig& c) { c.head_width = 6, c.tied = true; });
  add("hunyuan_v1_dense", "dense", [](ModelConfig& c) {
    c.qk_norm = QkNorm::head;
    c.qk_norm_turned = c.attention_bias = c.attention_out_bias = true;
  });
  add("helium", "dense", [](ModelConfig& c) {
    c.width = c.heads * c.head_width;
    c.attention_bias = true;
  });
}

// Those that have LayerNorms or FFNs without gates too.
template <class Add>
void add_other_dense_families(Add&& add) {
  const auto cohere = [](ModelConfig& c) {
    c.norm = NormKind::layer;
    c.norm_placement = NormPlacement::beside;
    c.multipliers.logits = 16;
    c.tied = true;
  };
  add("cohere", "dense", cohere);
  add("cohere", "dense",
      [&](ModelConfig& c) { cohere(c), c.attention_bias = c.attention_out_bias = true; });
  add("cohere2", "dense", [&](ModelConfig& c) {
    cohere(c);
    c.width = c.heads * c.head_width;
    c.layers = 4;
    c.attention_window = 5;
    c.window_layers = {0, 1, 2};
    c.nope_layers = {3};
  });
  add("lfm2", "dense", [](ModelConfig& c) {
    c.layers = 3;
    c.qk_norm = QkNorm::head;
    c.conv_layers = {0, 2};
    c.conv_width = 3;
    c.tied = true;
  });
  const auto layer_norms = [](ModelConfig& c) {
    c.norm = NormKind::layer;
    c.norm_bias = c.attention_bias = true;
  };
  add("stablelm", "dense", [&](ModelConfig& c) {
    layer_norms(c);
    c.width = 16;
    c.head_width = 4;
    c.rotary_width = 2;
  });
  add("starcoder2", "dense", [&](ModelConfig& c) {
    layer_norms(c);
    c.attention_out_bias = c.ffn_bias = c.tied = true;
    c.gated = false;
    c.act = ops::Act::gelu_tanh;
    c.attention_window = 9;
  });
  add("arcee", "dense", [](ModelConfig& c) {
    c.gated = false;
    c.act = ops::Act::relu2;
    c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  });
  for (const bool biases : {false, true})
    add("nemotron", "dense", [&](ModelConfig& c) {
      part_turns(c);
      c.norm = NormKind::layer;
      c.norm_bias = c.norm_offset = true;
      c.gated = false;
      c.act = ops::Act::relu2;
      c.attention_bias = c.attention_out_bias = c.ffn_bias = biases;
    });
  add("nanochat", "dense", [](ModelConfig& c) {
    c.head_width = 6;
    c.norm_weights = c.gated = false;
    c.embedding_norm = c.qk_norm_turned = true;
    c.qk_norm = QkNorm::head;
    c.act = ops::Act::relu2;
    c.logit_cap = 15;
    c.attention_bias = c.attention_out_bias = true;
  });
  for (const bool biases : {false, true})
    add("internlm3", "dense", [&](ModelConfig& c) {
      c.head_width = 6;
      c.attention_bias = !biases;
      c.attention_out_bias = c.ffn_bias = biases;
      c.rope_scaling = {.kind = RopeScaling::Kind::dynamic, .factor = 6};
    });
  add("apertus", "dense", [](ModelConfig& c) {
    c.head_width = 6;
    c.gated = false;
    c.xielu = true;
    c.qk_norm = QkNorm::head;
    c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8};
  });
}

}  // namespace moe::test
