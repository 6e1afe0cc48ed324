// Small configs of every kind that a model folder must carry, for the tests of hub/.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "hub/deepseek_v4_config.h"
#include "hub/dense_configs.h"
#include "hub/later_configs.h"
#include "hub/layer_norm_configs.h"
#include "hub/llama4_config.h"
#include "hub/state_configs.h"
#include "hub/window_configs.h"
#include "model/config.h"
#include "support/routings.h"

namespace moe::test {

struct NamedConfig {
  std::string name;
  ModelConfig config;
};

inline ModelConfig small_config() {
  ModelConfig c;
  c.vocab = 256;
  c.width = 8;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 2;
  c.context = 16;
  c.dense_width = 12;
  c.expert_width = 6;
  return c;
}

inline ModelConfig small_olmoe() {
  ModelConfig c = small_config();
  c.qk_norm = QkNorm::full;
  c.dense_width = c.expert_width;  // unused
  c.rope_theta = 12345.678f;
  c.norm_eps = 1e-6f;
  c.routing = default_options(find_recipe("olmoe"), 3, 2, c.layers);
  c.init = {.std = 0.03f, .cut = 3, .scale_residual = true};
  return c;
}

inline ModelConfig small_nanomoe(bool bias, bool noise) {
  ModelConfig c = small_config();
  c.layers = 3;
  c.kv_heads = c.heads;
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = bias;
  c.positions = Positions::learned;
  c.act = ops::Act::gelu;
  c.gated = false;
  c.tied = true;
  c.dense_width = c.expert_width = 4 * c.width;
  c.moe_every = 2;
  c.dropout = 0.25f;
  c.routing = default_options(find_recipe("nanomoe"), 3, 2, c.moe_layer_count());
  c.routing.noise = noise;
  c.routing.capacity_factor = 1.1f;
  c.routing.capacity_factor_eval = 3.0f;
  return c;
}

// Shared experts with a gate, biases everywhere, heads wider than their share, a dense first layer.
inline ModelConfig small_shared() {
  ModelConfig c = small_config();
  c.layers = 3;
  c.head_width = 4;
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.norm_placement = NormPlacement::post;
  c.qk_norm = QkNorm::head;
  c.act = ops::Act::gelu_tanh;
  c.dense_first = 1;
  c.shared_experts = 2;
  c.shared_width = 5;
  c.shared_gate = true;
  c.routing = default_options(find_recipe("mixtral"), 4, 2, 2);
  return c;
}

// Families with windows, or routers of DeepSeek-V3's kind, in words of their own: "shared" gives a
// model shared experts.
template <class Add, class Shared>
void add_families_of_2025(Add&& add, Shared&& shared) {
  const auto sparse = [&](ModelConfig& c, int64_t layers) {
    shared(c);
    c.layers = layers;
    c.dense_first = 1;
    c.qk_norm = QkNorm::head;
    c.head_width = 6;
  };
  add("bailing_moe_v2", "deepseek-v3", [&](ModelConfig& c) {
    sparse(c, 3);
    c.rotary_width = 4;
    c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8};
  });
  add("bailing_moe_v2", "deepseek-v3", shared);
  add("sarvam_moe", "deepseek-v3", [&](ModelConfig& c) { sparse(c, 3); });
  add("hy_v3", "deepseek-v3", [&](ModelConfig& c) {
    sparse(c, 3);
    c.attention_bias = c.attention_out_bias = true;
  });
  const auto windowed = [&](ModelConfig& c) {
    sparse(c, 5);
    c.attention_window = 5;
    c.window_layers = {0, 1, 2, 4};
    c.nope_layers = {3};
  };
  add("exaone_moe", "deepseek-v3", windowed);
  for (const bool mup : {true, false})
    add("afmoe", "deepseek-v3", [&](ModelConfig& c) {
      windowed(c);
      c.norm_placement = NormPlacement::both;
      c.attention_gate = true;
      if (mup) c.multipliers.embedding = std::sqrt(static_cast<float>(c.width));
    });
}

template <class Add>
void add_first_families(Add&& add) {
  add("llama", "dense",
      [](ModelConfig& c) { c.attention_bias = c.attention_out_bias = c.ffn_bias = true; });
  add("iquestcoder", "dense", [](ModelConfig& c) { c.head_width = 6; });
  add("mistral", "dense", [](ModelConfig& c) { c.head_width = 4, c.attention_window = 7; });
  add("ministral3", "dense", [](ModelConfig& c) {
    c.head_width = 4;
    c.query_growth = {.beta = 0.1f, .context = 8};
  });
  add("ministral3", "dense", [](ModelConfig& c) {
    c.query_growth = {.beta = 0.2f, .context = 4};
    c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 4};
  });
  add("qwen2", "dense", [](ModelConfig& c) { c.attention_bias = c.tied = true; });
  add("qwen3", "dense",
      [](ModelConfig& c) { c.qk_norm = QkNorm::head, c.head_width = 6, c.attention_window = 9; });
  add("qwen2", "dense", [](ModelConfig& c) {
    c.attention_bias = true, c.attention_window = 9, c.window_layers = {1};
  });
  add("mixtral", "mixtral", [](ModelConfig& c) { c.act = ops::Act::gelu_tanh; });
  add("phimoe", "sparsemixer", [](ModelConfig& c) {
    c.norm = NormKind::layer;
    c.norm_bias = c.attention_bias = c.attention_out_bias = c.head_bias = true;
    c.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                      .original_context = 8,
                      .attention_factor = 1.25f,
                      .long_attention_factor = 1.5f,
                      .short_factors = {1.125f},
                      .long_factors = {3}};
  });
  add("qwen2_moe", "qwen2-moe", [](ModelConfig& c) {
    c.attention_bias = c.shared_gate = true;
    c.shared_experts = 1;
    c.shared_width = 10;
    c.expert_width = 6;
    c.layers = 3;
    c.moe_layers = {0, 2};
  });
  add("qwen3_moe", "qwen3-moe",
      [](ModelConfig& c) { c.qk_norm = QkNorm::head, c.expert_width = 6; });
  const auto gemma4 = [](ModelConfig& c) {
    c.norm_placement = NormPlacement::both;
    c.qk_norm = QkNorm::head;
    c.act = ops::Act::gelu_tanh;
    c.tied = c.value_norm = c.layer_scale = true;
    c.layers = 3;
    c.attention_window = 5;
    c.window_layers = {0, 1};
    c.window_rope_theta = 500;
    c.head_width = 6;
    c.full = {.kv_heads = c.kv_heads == 1 ? 2 : 1, .head_width = 10, .values_of_keys = true};
    c.rope_scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.25f};
    c.multipliers = {.embedding = std::sqrt(static_cast<float>(c.width)), .attention = 1};
    c.logit_cap = 30;
  };
  add("gemma4_text", "gemma4", [&](ModelConfig& c) {
    gemma4(c);
    c.branch_norms = true;
    c.shared_experts = 1;
    c.shared_width = 10;
    c.expert_width = c.dense_width = 6;
  });
  add("gemma4_text", "dense", gemma4);
  add("gpt2", "dense", [](ModelConfig& c) {
    c.norm = NormKind::layer;
    c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = c.tied = true;
    c.positions = Positions::learned;
    c.act = ops::Act::gelu_tanh;
    c.gated = false;
    c.kv_heads = c.heads;
    c.dropout = 0.1f;
  });
}

inline void two_shared_experts(ModelConfig& c) {
  c.shared_experts = 2;
  c.shared_width = c.expert_width = 6;
}

inline void latent(ModelConfig& c) {
  two_shared_experts(c);
  c.layers = 3;
  c.dense_first = 1;
  c.kv_heads = c.heads;
  c.head_width = 6;
  c.latent = {.width = 8, .query_width = 0, .value_width = 3};
  c.rotary_width = 2;
}

// DeepSeek's, and those with its latent attention.
template <class Add>
void add_deepseek_families(Add&& add) {
  add_deepseek_v4(add);
  add("deepseek", "deepseek-moe", [](ModelConfig& c) {
    two_shared_experts(c);
    c.layers = 3;
    c.dense_first = 1;
  });
  add("deepseek_v2", "deepseek-v2", latent);
  add("deepseek_v3", "deepseek-v3", [&](ModelConfig& c) {
    latent(c);
    c.latent.query_width = 5;
    c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_context = 8,
                      .score_mscale = 0.707f};
  });
  add("axk1", "deepseek-v3", [&](ModelConfig& c) {
    latent(c);
    c.latent.query_width = 5;
    c.moe_out_norm = true;
  });
  for (const bool queries : {true, false})
    add("mistral4", queries ? "mixtral" : "deepseek-moe", [&](ModelConfig& c) {
      latent(c);
      if (queries) c.latent.query_width = 5;
      else c.dense_first = 0;
      c.query_growth = {.beta = 0.1f, .context = 8};
      c.rope_scaling = {
          .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8, .score_mscale = 1};
    });
  const auto indexed = [&](ModelConfig& c) {
    latent(c);
    c.latent.query_width = 5;
    c.sparse = {.top = 6, .heads = 3, .width = 4};
  };
  add("deepseek_v32", "deepseek-v3", indexed);
  add("glm_moe_dsa", "deepseek-v3", [&](ModelConfig& c) {
    indexed(c);
    c.rotary_width = 4;
    c.sparse.followers = {2};
  });
  add("hy_v4", "deepseek-v3", [&](ModelConfig& c) {
    indexed(c);
    c.rotary_width = 4;
    c.sparse.followers = {2};
    c.sparse.norm_eps = c.norm_eps;
    c.hyper = {.streams = 2, .mixes = false};
    c.attention_gate = c.attention_sinks = c.experts_held = true;
  });
  add("axk2", "deepseek-v3", [&](ModelConfig& c) {
    indexed(c);
    c.norm_gate = 3;
    c.attention_gate = c.latent.query_both = true;
  });
  add("kimi_linear", "deepseek-v3", [&](ModelConfig& c) {
    latent(c);
    c.layers = 4;
    c.linear = {.key_heads = 3,
                .value_heads = 3,
                .key_width = 4,
                .value_width = 4,
                .conv_width = 3,
                .gate_width = 4};
    c.linear_layers = {0, 2};
    c.nope_layers = {1, 3};
  });
}

// Most have shared experts and a router of DeepSeek-V3's kind. `all` ends with what `add` added
// last.
template <class Add>
void add_later_families(Add&& add, std::vector<NamedConfig>& all) {
  const auto shared = two_shared_experts;
  add("glm4_moe", "deepseek-v3", [&](ModelConfig& c) {
    shared(c);
    c.layers = 3;
    c.dense_first = 1;
    c.attention_bias = true;
    c.qk_norm = QkNorm::head;
    c.head_width = 6;
    c.rotary_width = 4;
  });
  add("glm4_moe", "deepseek-v3", shared);
  add("solar_open", "deepseek-v3", [&](ModelConfig& c) {
    shared(c);
    c.dense_width = c.expert_width;  // unused
    c.head_width = 6;
    c.attention_bias = true;
  });
  add("glm4_moe_lite", "deepseek-v3", latent);
  add("youtu", "dense", [&](ModelConfig& c) {
    latent(c);
    c.dense_first = c.shared_experts = c.shared_width = 0;
    c.expert_width = c.dense_width;  // unused
  });
  for (const bool queries : {true, false})
    add("minicpm3", "dense", [&](ModelConfig& c) {
      latent(c);
      c.dense_first = c.shared_experts = c.shared_width = 0;
      c.expert_width = c.dense_width;  // unused
      c.multipliers = {.embedding = 12, .residual = 0.8f, .logits = 2};
      c.tied = queries;
      if (!queries) return;
      c.latent.query_width = 5;
      c.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                        .original_context = 8,
                        .attention_factor = 1.25f,
                        .long_attention_factor = 1.25f,
                        .short_factors = {1.125f},
                        .long_factors = {3}};
    });
  add_dense_families(add);
  add_other_dense_families(add);
  add_layer_norm_families(add);
  add("aria_text", "mixtral", [&](ModelConfig& c) {
    shared(c);
    c.dense_width = c.expert_width;  // unused
  });
  add_families_of_2025(add, shared);
  add("dots1", "deepseek-v3", [&](ModelConfig& c) {
    shared(c);
    c.qk_norm = QkNorm::head;
    c.attention_window = 9;
    c.window_layers = {1};
  });
  add("minimax_m2", "deepseek-v3", [](ModelConfig& c) {
    c.qk_norm = QkNorm::full;
    c.head_width = 6;
    c.rotary_width = 4;
  });
  all.back().config.routing.routed_scale = 1;
}

// With windows, or with norms in places of their own.
template <class Add>
void add_windowed_families(Add&& add) {
  add("olmo2", "dense", [](ModelConfig& c) {
    c.norm_placement = NormPlacement::output;
    c.qk_norm = QkNorm::full;
  });
  add("flex_olmo", "olmoe", [](ModelConfig& c) {
    c.norm_placement = NormPlacement::output;
    c.qk_norm = QkNorm::full;
  });
  add("mellum", "qwen3-moe", [](ModelConfig& c) {
    c.qk_norm = QkNorm::head;
    c.head_width = c.expert_width = 6;
    c.layers = 3;
    c.moe_layers = {0, 2};
    c.attention_window = 9;
    c.window_layers = {0, 1};
    c.window_rope_theta = 500;
    c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_context = 8,
                      .attention_factor = 1.25f};
  });
  add("smollm3", "dense", [](ModelConfig& c) { c.nope_layers = {1}, c.tied = true; });
  add("gpt_oss", "gpt-oss", [](ModelConfig& c) {
    c.layers = 3;
    c.act = ops::Act::swiglu_oai;
    c.attention_sinks = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
    c.attention_window = 9;
    c.window_layers = {0, 2};
    c.head_width = 6;
    c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_context = 8,
                      .attention_factor = 1.25f,
                      .truncate = false};
  });
}

// Cohere's with experts: scores by sigmoids are stages of a config's own, dense layers without a
// window turn or not. `all` ends with what `add` added last.
template <class Add>
void add_cohere_with_experts(Add&& add, std::vector<NamedConfig>& all) {
  const auto cohere = [](ModelConfig& c) {
    c.norm = NormKind::layer;
    c.norm_placement = NormPlacement::beside;
    c.multipliers.logits = 16;
    c.tied = c.shared_average = true;
    two_shared_experts(c);
    c.layers = 4;
    c.dense_first = 1;
    c.head_width = 6;
    c.attention_window = 5;
    c.window_layers = {1, 2};
    c.nope_layers = {3};
  };
  add("cohere2_moe", "mixtral", cohere);
  for (const bool renormalise : {true, false}) {
    add("cohere2_moe", "mixtral", [&](ModelConfig& c) {
      cohere(c);
      c.norm = NormKind::rms;
      c.attention_bias = c.attention_out_bias = true;
      c.shared_average = false;
      c.nope_layers = {0, 3};
      if (renormalise) c.shared_experts = c.shared_width = 0;
    });
    RoutingOptions& routing = all.back().config.routing;
    routing.coef.balance = 0.02f;
    routing.recipe = kCustom;
    routing.stages =
        std::string(
            R"({"losses":{"balance":{"counts":"all_choices","probs":"normalised_scores"}},)") +
        R"("score":"sigmoid","weigh":{"renormalise":")" + (renormalise ? "before_drop" : "never") +
        R"(","type":"scores"}})";
  }
}

// Its router too is stages of a config's own.
template <class Add>
void add_kolibri(Add&& add, std::vector<NamedConfig>& all) {
  for (const bool renormalise : {false, true}) {
    add("kolibri1", "mixtral", [&](ModelConfig& c) {
      c.dense_width = c.expert_width;  // unused
      c.qk_norm = QkNorm::head;
      c.head_width = 6;
      c.norm_placement = NormPlacement::both;
      c.shared_experts = 1;
      c.shared_width = 10;
      if (renormalise) return;
      c.layers = 3;
      c.attention_window = 5;
      c.window_layers = {0, 2};
      c.nope_layers = {1};
    });
    RoutingOptions& routing = all.back().config.routing;
    routing.recipe = kCustom;
    routing.stages =
        std::string(R"({"losses":{"balance":{"counts":"unbiased_choices","probs":"softmax"}},)") +
        R"("score":"raw","select":{"bias":true,"type":"top_k"},"weigh":{"renormalise":)" +
        (renormalise ? "true" : "false") + R"(,"type":"sigmoids"}})";
  }
}

// Granite's with experts, and its hybrids, which may have none.
template <class Add>
void add_granite_families(Add&& add) {
  const auto granite = [](ModelConfig& c) {
    c.multipliers = {.embedding = 12, .residual = 0.22f, .attention = 0.015625f, .logits = 6};
  };
  add("granitemoe", "mixtral", granite);
  add("granitemoeshared", "mixtral", [&](ModelConfig& c) {
    granite(c);
    c.shared_experts = 1;
    c.shared_width = 10;
  });
  add("granitemoehybrid", "mixtral", [&](ModelConfig& c) {
    granite(c);
    c.layers = 3;
    c.shared_experts = 1;
    c.shared_width = 10;
    c.scan = {.heads = 4, .groups = 2, .width = 4, .states = 3, .conv_width = 3, .conv_bias = true};
    c.scan_layers = {0, 2};
    c.nope_layers = {1};
  });
  for (const bool states : {true, false})
    add("granitemoehybrid", "dense", [&](ModelConfig& c) {
      granite(c);
      c.tied = true;
      if (!states) return;
      c.scan = {.heads = 2, .groups = 1, .width = 4, .states = 5, .conv_width = 2};
      c.scan_layers = {0};
    });
  for (const bool with_shared : {true, false})
    add("granitemoe_swa", "mixtral", [&](ModelConfig& c) {
      granite(c);
      c.layers = 3;
      c.attention_sinks = true;
      c.attention_window = 5;
      c.window_layers = {1, 2};
      if (!with_shared) return;
      c.shared_experts = 1;
      c.shared_width = 10;
      c.nope_layers = {0};
    });
}

// One of each family of transformers and the first DeepSeekMoE, with the parts that set it apart.
inline std::vector<NamedConfig> small_families() {
  std::vector<NamedConfig> all;
  const auto add = [&](const char* type, const char* recipe, auto change) {
    ModelConfig c = small_config();
    c.model_type = type;
    c.expert_width = c.dense_width;
    change(c);
    c.routing.recipe = recipe;
    if (find_recipe(recipe).has_router())
      c.routing = default_options(find_recipe(recipe), 3, 2, c.moe_layer_count());
    c.routing.coef.device = c.routing.coef.communication = 0;  // no family has words for them
    all.push_back({type, c});
  };
  add_first_families(add);
  add_deepseek_families(add);
  add_ling3(add, latent);
  add_lfm3(add);
  add_later_families(add, all);
  add_windowed_families(add);
  add_cohere_with_experts(add, all);
  add_kolibri(add, all);
  add_families_of_halves(add);
  for (const bool divides : {true, false})
    add("dbrx", divides ? "mixtral" : "qwen2-moe", [&](ModelConfig& c) {
      c.dense_width = c.expert_width;  // unused
      c.norm = NormKind::layer;
      c.qkv_clip = divides ? 1.5f : 0;
      if (!divides) c.act = ops::Act::gelu;
    });
  for (const bool whole : {true, false}) {
    add("llama4_text", "mixtral", [&](ModelConfig& c) { become_llama4(c, whole); });
    route_as_llama4(all.back().config.routing);
  }
  add_hybrid_families(add);
  add_lightning_family(add);
  add_plain_windows(add);
  add_mimo(add);
  add_laguna(add);
  add_flint(add, all);
  add_longcat(add, latent, all);
  add_minimax_m3(add, all);
  add("ernie4_5_moe", "ernie-moe", [](ModelConfig& c) {
    c.dense_first = 1;
    c.dense_width = 14;
    c.shared_experts = 2;
    c.shared_width = c.expert_width;
  });
  add_granite_families(add);
  return all;
}

// The first of a family.
inline ModelConfig small_family(std::string_view name) {
  const std::vector<NamedConfig> families = small_families();
  return std::ranges::find(families, name, &NamedConfig::name)->config;
}

inline std::vector<NamedConfig> small_configs() {
  std::vector<NamedConfig> all = {{"olmoe", small_olmoe()}, {"shared", small_shared()}};
  for (const bool bias : {false, true})
    for (const bool noise : {false, true})
      all.push_back({std::string("nanomoe") + (bias ? "_bias" : "") + (noise ? "_noise" : ""),
                     small_nanomoe(bias, noise)});
  ModelConfig tied_olmoe = small_olmoe();
  tied_olmoe.tied = tied_olmoe.attention_bias = tied_olmoe.attention_out_bias = true;
  all.push_back({"olmoe_tied_bias", tied_olmoe});
  ModelConfig dense = small_config();
  dense.act = ops::Act::relu;
  dense.tied = true;
  all.push_back({"dense_tied", dense});
  ModelConfig dense_gpt = small_nanomoe(true, false);
  dense_gpt.routing = {};
  dense_gpt.moe_every = 1;
  all.push_back({"dense_gpt", dense_gpt});
  ModelConfig scanned = small_shared();
  scanned.scan = {
      .heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  scanned.scan_layers = {0, 2};
  all.push_back({"scanned", scanned});
  scanned.scan = {.heads = 12,
                  .groups = 1,
                  .width = 1,
                  .states = 5,
                  .conv_width = 3,
                  .conv_bias = true,
                  .step_rank = 2};
  all.push_back({"selective", scanned});
  ModelConfig halved = small_config();
  halved.layers = 4;
  halved.mixer_only_layers = {0, 2};
  halved.ffn_only_layers = {3};
  halved.routing = default_options(find_recipe("mixtral"), 3, 2, 2);
  all.push_back({"halved", halved});
  ModelConfig gated = small_config();
  gated.attention_gate = gated.head_gates = true;
  all.push_back({"gates_of_heads", gated});
  ModelConfig decaying = small_shared();
  decaying.linear = {.key_heads = 2,
                     .value_heads = 2,
                     .key_width = 3,
                     .value_width = 5,
                     .conv_width = 3,
                     .channel_decays = true,
                     .decay_floor = -1.5f};
  decaying.linear_layers = {0, 2};
  all.push_back({"decays_of_channels", decaying});
  ModelConfig listed = small_config();
  listed.layers = 4;
  listed.moe_layers = {1, 3};
  listed.gated = false;
  listed.routing = default_options(find_recipe("switch"), 5, 1, 2);
  all.push_back({"switch_listed", listed});
  ModelConfig noisy = small_config();  // learned noise under Hugging Face names
  noisy.routing = default_options(find_recipe("nanomoe"), 3, 2, 2);
  noisy.shared_experts = 1;
  noisy.shared_width = 7;
  all.push_back({"noisy_rope", noisy});
  ModelConfig mixtral = small_olmoe();
  mixtral.routing = default_options(find_recipe("mixtral"), 3, 2, 2);
  all.push_back({"mixtral_as_olmoe", mixtral});
  // Every row of the table: the parts of its router under Hugging Face names.
  for (const RoutingOptions& routing : small_routings(6, small_config().layers)) {
    ModelConfig c = small_config();
    c.routing = routing;
    all.push_back({"recipe_" + routing.recipe, c});
  }
  return all;
}

}  // namespace moe::test
