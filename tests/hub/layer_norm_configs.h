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

template <class Add>
void add_layer_norm_families(Add&& add) {
  for (const bool clips : {true, false})
    add("olmo", "dense", [&](ModelConfig& c) {
      make_olmo(c);
      c.attention_bias = c.attention_out_bias = true;
      if (clips) c.qkv_clip = 1.5f;
      else c.tied = true;
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
}

}  // namespace moe::test
