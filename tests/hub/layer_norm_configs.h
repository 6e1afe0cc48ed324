// Small configs of families with LayerNorms, for configs.h and gguf_configs.h.
#pragma once

#include <vector>

#include "model/config.h"

namespace moe::test {

// OLMo's norms have neither weights nor biases.
inline void make_olmo(ModelConfig& c) {
  c.norm = NormKind::layer;
  c.norm_weights = false;
  c.norm_eps = 1e-5f;
}

// What GPT-NeoX and Phi share.
inline void make_neox(ModelConfig& c) {
  c.norm = NormKind::layer;
  c.norm_placement = NormPlacement::beside_each;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.gated = false;
  c.act = ops::Act::gelu_tanh;
}
inline void make_phi(ModelConfig& c) {
  make_neox(c);
  c.norm_placement = NormPlacement::beside;
  c.head_bias = true;
}

inline void make_jais2(ModelConfig& c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.gated = false;
  c.act = ops::Act::relu2;
}

template <class Add>
void add_layer_norm_families(Add&& add) {
  for (const bool clips : {true, false})
    add("olmo", "dense", [&](ModelConfig& c) {
      make_olmo(c);
      c.attention_bias = c.attention_out_bias = true;
      if (clips) c.qkv_clip = 1.5f;
      else c.tied = true;
    });
  for (const bool biases : {true, false})
    add("jais2", "dense", [&](ModelConfig& c) {
      make_jais2(c);
      c.head_width = 6;
      c.attention_bias = c.attention_out_bias = biases;
    });
  const auto wider = [](ModelConfig& c) {
    c.width = 16;
    c.head_width = 4;
    c.rotary_width = 2;
  };
  for (const bool beside : {true, false})
    add("gpt_neox", "dense", [&](ModelConfig& c) {
      make_neox(c);
      wider(c);
      c.kv_heads = c.heads;
      c.act = ops::Act::gelu;
      if (beside) return;
      c.norm_placement = NormPlacement::pre;
      c.attention_bias = c.attention_out_bias = false;
      c.tied = true;
      c.rotary_width = 0;
      c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
    });
  for (const bool part : {true, false})
    add("phi", "dense", [&](ModelConfig& c) {
      make_phi(c);
      wider(c);
      if (part) return;
      c.rotary_width = 0;
      c.kv_heads = c.heads;
      c.tied = true;
    });
}

// Of what llama.cpp has words for; `base`: a dense model like Llama.
template <class Named>
void add_layer_norm_ggufs(std::vector<Named>& all, const ModelConfig& base) {
  ModelConfig olmo = base;
  make_olmo(olmo);
  all.push_back({"olmo", olmo});
  olmo.qkv_clip = 1.5f;
  olmo.tied = true;
  all.push_back({"olmo", olmo});
  olmo.attention_bias = olmo.attention_out_bias = true;
  all.push_back({"moe_cpp", olmo});
  ModelConfig jais = base;
  make_jais2(jais);
  jais.head_width = 16;
  all.push_back({"jais2", jais});
  jais.ffn_bias = false;
  all.push_back({"moe_cpp", jais});
  ModelConfig neox = base;
  make_neox(neox);
  neox.kv_heads = neox.heads;
  neox.rotary_width = 4;
  all.push_back({"gptneox", neox});
  neox.norm_placement = NormPlacement::pre;
  all.push_back({"gptneox", neox});
  neox.norm_placement = NormPlacement::beside_each;
  neox.act = ops::Act::gelu;  // which llama.cpp takes for the one by tanh
  all.push_back({"moe_cpp", neox});
  ModelConfig phi = base;
  make_phi(phi);
  phi.rotary_width = 4;
  all.push_back({"phi2", phi});
  phi.head_bias = false;
  all.push_back({"moe_cpp", phi});
}

}  // namespace moe::test
