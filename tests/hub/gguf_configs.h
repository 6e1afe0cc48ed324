// A config of every architecture that GGUF has words for, and of models that only our own form can
// say.
#pragma once

#include <vector>

#include "hub/configs.h"
#include "hub/gguf_later_configs.h"

namespace moe::test {

inline ModelConfig dense_config() {
  ModelConfig c = small_config();
  c.vocab = 300;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 8;
  c.dense_width = c.expert_width = 64;
  c.layers = 3;
  c.rope_theta = 5000;
  c.norm_eps = 1e-6f;
  return c;
}

inline ModelConfig moe_config(const char* recipe, int64_t experts = 4, int64_t top_k = 2) {
  ModelConfig c = dense_config();
  c.expert_width = c.dense_width = 32;
  c.routing = default_options(find_recipe(recipe), experts, top_k, c.layers);
  return c;
}

// Slices of a dense network, shared ones among them, with the biases of cut projections.
inline ModelConfig carved_config(const char* recipe) {
  ModelConfig c = moe_config(recipe, 6, 3);
  c.tied = c.expert_down_bias = true;
  c.shared_experts = 2;
  c.shared_width = c.expert_width;
  return c;
}

// Layers that are one sublayer alone: a state space, attention in which nothing turns, experts.
inline ModelConfig halved_config() {
  ModelConfig c = moe_config("deepseek-v3");
  c.model_type = "nemotron_h";
  c.layers = 4;
  c.gated = false;
  c.act = ops::Act::relu2;
  c.rope_theta = 10000;  // which its configs do not say: nothing turns
  c.shared_experts = 1;
  c.shared_width = 96;
  c.scan = {.heads = 4, .groups = 2, .width = 16, .states = 16, .conv_width = 4, .conv_bias = true};
  c.scan_layers = {0};
  c.nope_layers = {1};
  c.mixer_only_layers = {0, 1};
  c.ffn_only_layers = {2, 3};
  c.moe_layers = {2, 3};
  return c;
}

// A state space beside attention in every layer.
inline ModelConfig beside_config() {
  ModelConfig c = dense_config();
  c.model_type = "falcon_h1";
  c.head_width = 16;
  c.scan = {.heads = 4, .groups = 2, .width = 16, .states = 16, .conv_width = 4, .conv_bias = true};
  c.scan_layers = {0, 1, 2};
  c.scan_beside = true;
  return c;
}

// Some of whose layers have something else in place of attention, and no experts.
inline void add_own_hybrids(std::vector<NamedConfig>& all) {
  ModelConfig bamba = dense_config();
  bamba.model_type = "bamba";
  bamba.rotary_width = 4;
  bamba.scan = {
      .heads = 4, .groups = 2, .width = 16, .states = 16, .conv_width = 4, .conv_bias = true};
  bamba.scan_layers = {0, 2};
  all.push_back({"moe_cpp", bamba});
  ModelConfig falcon = beside_config();
  falcon.scan.norm = falcon.scan.conv_bias = false;
  falcon.multipliers = {.embedding = 5.5f,
                        .attention = 0.5f,
                        .logits = 8,
                        .scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f},
                        .scan_out = 0.3f,
                        .attention_out = 0.9f,
                        .ffn_gate = 0.6f,
                        .ffn_down = 1.4f};
  all.push_back({"moe_cpp", falcon});
  ModelConfig olmo = dense_config();
  olmo.model_type = "olmo_hybrid";
  olmo.rope_theta = 10000;  // which its configs do not say: nothing turns
  olmo.qk_norm = QkNorm::full;
  olmo.norm_placement = NormPlacement::output;
  olmo.states_pre_norm = true;
  olmo.linear = {.key_heads = 2,
                 .value_heads = 2,
                 .key_width = 16,
                 .value_width = 32,
                 .conv_width = 4,
                 .negative = true,
                 .norm_eps = 1e-5f};
  olmo.linear_layers = {0, 2};
  olmo.nope_layers = {1};
  all.push_back({"moe_cpp", olmo});
}

// Models that no architecture of llama.cpp can say: every parameter that such a model may have is
// in one of them.
inline void add_own_configs(std::vector<NamedConfig>& all) {
  add_own_hybrids(all);
  all.push_back({"moe_cpp", carved_config("carved")});
  all.push_back({"moe_cpp", carved_config("cmoe")});
  ModelConfig plain = carved_config("cmoe");
  plain.gated = false;
  plain.act = ops::Act::gelu_tanh;
  plain.ffn_bias = true;
  all.push_back({"moe_cpp", plain});
  ModelConfig kimi = moe_config("deepseek-v3");
  kimi.model_type = "kimi_linear";
  kimi.kv_heads = kimi.heads;
  kimi.head_width = 24;
  kimi.latent = {.width = 32, .value_width = 16};
  kimi.rotary_width = 8;
  kimi.shared_experts = 1;
  kimi.shared_width = kimi.expert_width;
  kimi.linear = {.key_heads = 2,
                 .value_heads = 2,
                 .key_width = 16,
                 .value_width = 16,
                 .conv_width = 4,
                 .gate_width = 16};
  kimi.linear_layers = {0, 2};
  kimi.nope_layers = {1};
  kimi.rope_theta = 10000;  // which its configs do not say: nothing turns
  all.push_back({"moe_cpp", kimi});
  ModelConfig scanned = moe_config("mixtral");
  scanned.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.5f, .logits = 6};
  // three times as wide as the model, where llama.cpp knows twice
  scanned.scan = {
      .heads = 4, .groups = 2, .width = 24, .states = 16, .conv_width = 4, .conv_bias = true};
  scanned.scan_layers = {0, 2};
  all.push_back({"moe_cpp", scanned});
  scanned.model_type = "granitemoehybrid";
  scanned.shared_experts = 1;
  scanned.shared_width = 96;
  scanned.nope_layers = {1};
  all.push_back({"moe_cpp", scanned});
  for (const bool norm : {true, false}) {
    ModelConfig selective = moe_config("mixtral");
    selective.scan = {.heads = 96,
                      .groups = 1,
                      .width = 1,
                      .states = 16,
                      .conv_width = 4,
                      .conv_bias = norm,
                      .norm = norm,
                      .step_rank = 8};
    selective.scan_layers = {0, 2};
    all.push_back({"moe_cpp", selective});
  }
  ModelConfig halved = halved_config();
  halved.moe_layers = {2};
  all.push_back({"moe_cpp", halved});
  ModelConfig v3 = moe_config("deepseek-v3", 4, 2);
  v3.routing.expert_groups = 2;
  v3.routing.groups_kept = 1;
  v3.moe_layers = {0, 2};
  v3.attention_bias = v3.attention_out_bias = true;
  v3.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8192};
  all.push_back({"moe_cpp", v3});
  ModelConfig post = small_shared();
  post.vocab = 300;
  post.width = post.expert_width = post.shared_width = 32;
  post.head_width = 8;
  post.routing = default_options(find_recipe("expert-choice"), 4, 2, 2);
  all.push_back({"moe_cpp", post});
  ModelConfig noisy = moe_config("nanomoe");
  noisy.norm = NormKind::layer;
  noisy.norm_bias = true;
  noisy.positions = Positions::learned;
  all.push_back({"moe_cpp", noisy});
  ModelConfig windowed = dense_config();
  windowed.model_type = "mistral";
  windowed.attention_window = 7;
  windowed.rope_scaling = {
      .kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 8, .truncate = false};
  all.push_back({"moe_cpp", windowed});
}

// Sigmoids, groups, a scale, shared experts, a dense layer first.
inline ModelConfig grouped_config() {
  ModelConfig c = moe_config("deepseek-v3", 8, 2);
  c.routing.expert_groups = 4;
  c.routing.groups_kept = 2;
  c.routing.routed_scale = 1.5f;
  c.dense_first = 1;
  c.dense_width = 96;
  c.shared_experts = 2;
  c.shared_width = c.expert_width;
  return c;
}

// Keys and values of latents, with parts of a head that turn.
inline void make_latent(ModelConfig& c) {
  c.latent = {.width = 32, .query_width = 0, .value_width = 16};
  c.head_width = 24;
  c.rotary_width = 8;
  c.kv_heads = c.heads;
}

// State spaces around attention in which nothing turns, and experts beside a shared one.
inline ModelConfig hybrid_config() {
  ModelConfig c = moe_config("mixtral");
  c.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.5f, .logits = 6};
  c.shared_experts = 1;
  c.shared_width = 96;
  c.scan = {.heads = 4, .groups = 2, .width = 16, .states = 16, .conv_width = 4, .conv_bias = true};
  c.scan_layers = {0, 2};
  c.nope_layers = {1};
  return c;
}

// Of families without experts that llama.cpp has a graph of its own for.
inline void add_dense_configs(std::vector<NamedConfig>& all) {
  ModelConfig granite = dense_config();
  granite.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.5f, .logits = 6};
  all.push_back({"granite", granite});
  ModelConfig hybrid = granite;
  hybrid.scan = hybrid_config().scan;
  hybrid.scan.groups = 1;
  hybrid.scan_layers = {0, 2};
  hybrid.tied = true;
  all.push_back({"granitehybrid", hybrid});
  granite.nope_layers = {0, 1, 2};
  all.push_back({"granite", granite});
  ModelConfig beside = beside_config();
  all.push_back({"falcon-h1", beside});
  beside.scan.norm = false;
  beside.tied = true;
  all.push_back({"falcon-h1", beside});
  ModelConfig halved = halved_config();
  halved.routing = {};
  halved.moe_layers.clear();
  halved.shared_experts = halved.shared_width = 0;
  halved.head_width = 16;
  all.push_back({"nemotron_h", halved});
  ModelConfig gemma = dense_config();
  gemma.norm_offset = gemma.tied = true;
  gemma.act = ops::Act::gelu_tanh;
  gemma.head_width = 16;
  gemma.multipliers.embedding = std::sqrt(static_cast<float>(gemma.width));
  all.push_back({"gemma", gemma});
  ModelConfig gemma2 = gemma;
  gemma2.norm_placement = NormPlacement::both;
  gemma2.multipliers.attention = 0.25f;
  gemma2.attention_window = 5;
  gemma2.window_layers = {0, 2};
  gemma2.score_cap = 1.5f;
  gemma2.logit_cap = 3;
  all.push_back({"gemma2", gemma2});
  gemma2.score_cap = 0;
  all.push_back({"moe_cpp", gemma2});
  gemma.tied = false;
  all.push_back({"moe_cpp", gemma});
  ModelConfig glm = dense_config();
  glm.norm_placement = NormPlacement::both;
  glm.attention_bias = true;
  glm.head_width = 16;
  glm.rotary_width = 8;
  all.push_back({"glm4", glm});
  glm = dense_config();
  glm.attention_bias = true;
  glm.rotary_width = 4;
  all.push_back({"chatglm", glm});
  ModelConfig hunyuan = dense_config();
  hunyuan.qk_norm = QkNorm::head;
  hunyuan.qk_norm_turned = true;
  all.push_back({"hunyuan-dense", hunyuan});
  ModelConfig lfm2 = dense_config();
  lfm2.qk_norm = QkNorm::head;
  lfm2.conv_layers = {0, 2};
  lfm2.conv_width = 3;
  all.push_back({"lfm2", lfm2});
}

// Most have LayerNorms or FFNs without gates.
inline void add_other_dense_configs(std::vector<NamedConfig>& all) {
  ModelConfig stablelm = dense_config();
  stablelm.norm = NormKind::layer;
  stablelm.norm_bias = stablelm.attention_bias = true;
  stablelm.rotary_width = 4;
  all.push_back({"stablelm", stablelm});
  ModelConfig starcoder = dense_config();
  starcoder.norm = NormKind::layer;
  starcoder.norm_bias = starcoder.attention_bias = starcoder.attention_out_bias =
      starcoder.ffn_bias = starcoder.tied = true;
  starcoder.act = ops::Act::gelu_tanh;
  starcoder.gated = false;
  all.push_back({"starcoder2", starcoder});
  ModelConfig arcee = dense_config();
  arcee.act = ops::Act::relu2;
  arcee.gated = false;
  all.push_back({"arcee", arcee});
  ModelConfig nemotron = arcee;
  nemotron.norm = NormKind::layer;
  nemotron.norm_bias = nemotron.norm_offset = true;
  nemotron.head_width = 16;
  nemotron.rotary_width = 8;
  all.push_back({"nemotron", nemotron});
  nemotron.attention_bias = nemotron.attention_out_bias = nemotron.ffn_bias = true;
  all.push_back({"nemotron", nemotron});
  ModelConfig xielu = dense_config();  // for which our form alone has words
  xielu.gated = false;
  xielu.xielu = true;
  all.push_back({"moe_cpp", xielu});
  ModelConfig cohere = dense_config();
  cohere.norm = NormKind::layer;
  cohere.norm_placement = NormPlacement::beside;
  cohere.multipliers.logits = 16;
  cohere.tied = true;
  all.push_back({"command-r", cohere});
  cohere.layers = 5;
  cohere.attention_window = 5;
  cohere.window_layers = {0, 1, 2, 4};
  cohere.nope_layers = {3};
  all.push_back({"cohere2", cohere});
  cohere.window_layers = {0, 2, 4};
  cohere.nope_layers = {1, 3};
  cohere.attention_bias = cohere.attention_out_bias = true;
  all.push_back({"moe_cpp", cohere});
  ModelConfig ministral = dense_config();
  ministral.head_width = 16;
  ministral.query_growth = {.beta = 0.3f, .context = 4};
  all.push_back({"mistral3", ministral});
  ministral.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 4};
  all.push_back({"mistral3", ministral});
  ministral.rope_scaling.original_context = 8;
  all.push_back({"moe_cpp", ministral});
}

// Linear attention with decays of channels around latent attention in which nothing turns.
inline ModelConfig kimi_config() {
  ModelConfig c = grouped_config();
  make_latent(c);
  c.linear = {.key_heads = c.heads,
              .value_heads = c.heads,
              .key_width = 16,
              .value_width = 16,
              .conv_width = 4,
              .gate_width = 16};
  c.linear_layers = {0, 2};
  c.nope_layers = {1};
  return c;
}

// Routers of DeepSeek's kind, in the words of each family: with its attention of latents.
inline void add_latent_configs(std::vector<NamedConfig>& all) {
  ModelConfig v2 = moe_config("deepseek-v2", 6, 3);
  make_latent(v2);
  v2.routing.expert_groups = v2.routing.groups_kept = 1;
  v2.routing.routed_scale = 1;
  v2.dense_first = 1;
  v2.dense_width = 96;
  v2.shared_experts = 2;
  v2.shared_width = v2.expert_width;
  v2.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                     .factor = 40,
                     .original_context = 4096,
                     .score_mscale = 0.707f};
  all.push_back({"deepseek2", v2});
  ModelConfig youtu = dense_config();
  make_latent(youtu);
  youtu.latent.query_width = 32;
  youtu.tied = true;
  all.push_back({"deepseek2", youtu});
  ModelConfig v3 = grouped_config();
  make_latent(v3);
  v3.latent.query_width = 32;
  all.push_back({"deepseek2", v3});
  v3.sparse = {.top = 6, .heads = 3, .width = 16, .followers = {1}};
  all.push_back({"glm-dsa", v3});
  v3.sparse.followers = {};
  v3.model_type = "deepseek_v32";
  v3.rope_scaling = v2.rope_scaling;
  v3.rope_scaling.score_mscale = 1;
  all.push_back({"deepseek32", v3});
  all.push_back({"kimi-linear", kimi_config()});
}

// With attention by heads.
inline void add_grouped_configs(std::vector<NamedConfig>& all) {
  ModelConfig glm = grouped_config();
  glm.qk_norm = QkNorm::head;
  glm.head_width = 16;
  glm.rotary_width = 8;
  glm.attention_bias = true;
  all.push_back({"glm4moe", glm});
  ModelConfig air = grouped_config();
  air.rotary_width = 4;
  all.push_back({"glm4moe", air});
  ModelConfig solar = grouped_config();
  solar.dense_first = 0;
  solar.dense_width = solar.expert_width;  // unused
  solar.head_width = 16;
  all.push_back({"glm4moe", solar});
  ModelConfig ling = grouped_config();
  ling.model_type = "sarvam_moe";
  ling.qk_norm = QkNorm::head;
  all.push_back({"bailingmoe2", ling});
  ling.model_type = "bailing_moe_v2";
  ling.rotary_width = 4;
  all.push_back({"bailingmoe2", ling});
  ling.head_width = 16;  // heads that do not make up the width
  all.push_back({"glm4moe", ling});
  ModelConfig dots = grouped_config();
  dots.qk_norm = QkNorm::head;
  dots.kv_heads = dots.heads;
  all.push_back({"dots1", dots});
}

// With windows in some layers, and no positions in others.
inline void add_grouped_window_configs(std::vector<NamedConfig>& all) {
  ModelConfig exaone = grouped_config();
  exaone.qk_norm = QkNorm::head;
  exaone.head_width = 16;
  exaone.layers = 5;
  exaone.attention_window = 5;
  exaone.window_layers = {0, 1, 2, 4};
  exaone.nope_layers = {3};
  all.push_back({"exaone-moe", exaone});
  ModelConfig trinity = exaone;
  exaone.window_layers = {0, 2, 4};
  exaone.nope_layers = {1, 3};
  all.push_back({"moe_cpp", exaone});
  trinity.model_type = "afmoe";
  trinity.routing.expert_groups = trinity.routing.groups_kept = 1;
  trinity.norm_placement = NormPlacement::both;
  trinity.attention_gate = true;
  trinity.multipliers.embedding = std::sqrt(static_cast<float>(trinity.width));
  all.push_back({"afmoe", trinity});
  trinity.multipliers.embedding = 1;
  all.push_back({"moe_cpp", trinity});
}

// MiniMax's: a sigmoid without groups, from M3 on keys that are chosen by blocks.
inline void add_minimax_configs(std::vector<NamedConfig>& all) {
  ModelConfig minimax = moe_config("deepseek-v3", 4, 2);
  minimax.routing.expert_groups = minimax.routing.groups_kept = 1;
  minimax.routing.routed_scale = 1;
  minimax.qk_norm = QkNorm::full;
  minimax.head_width = 16;
  minimax.rotary_width = 8;
  all.push_back({"minimax-m2", minimax});
  minimax.routing.routed_scale = 2;
  minimax.dense_first = 1;
  minimax.dense_width = 96;
  minimax.shared_experts = 1;
  minimax.shared_width = minimax.expert_width;
  minimax.qk_norm = QkNorm::head;
  minimax.norm_offset = true;
  minimax.act = ops::Act::swiglu_oai;
  minimax.sparse = {
      .top = 192, .heads = 2, .width = 32, .block = 64, .local = 2, .whole_layers = {0}};
  all.push_back({"minimax-m3", minimax});
  minimax.sparse.whole_layers = {1};
  all.push_back({"moe_cpp", minimax});
}

inline void add_configs_like_deepseek(std::vector<NamedConfig>& all) {
  add_latent_configs(all);
  add_grouped_configs(all);
  add_grouped_window_configs(all);
  add_minimax_configs(all);
}

// Norms behind sublayers, and windows where there are so many layers that llama.cpp knows of them.
inline void add_exaone4_configs(std::vector<NamedConfig>& all) {
  ModelConfig exaone = dense_config();
  exaone.norm_placement = NormPlacement::output;
  exaone.qk_norm = QkNorm::head;
  exaone.rope_theta = 500000;
  exaone.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 16, .original_context = 8192};
  all.push_back({"exaone4", exaone});
  exaone.attention_window = 5;
  exaone.window_layers = {0, 1, 2};
  exaone.nope_layers = {3};
  exaone.layers = 4;
  all.push_back({"moe_cpp", exaone});
  exaone.layers = 64;
  exaone.window_layers.clear();
  exaone.nope_layers.clear();
  for (int64_t i = 0; i < exaone.layers; ++i)
    (i % 4 == 3 ? exaone.nope_layers : exaone.window_layers).push_back(i);
  all.push_back({"exaone4", exaone});
}

// Windows, linear attention, and norms in places of their own.
inline void add_configs_of_own_attention(std::vector<NamedConfig>& all) {
  ModelConfig olmo2 = dense_config();
  olmo2.norm_placement = NormPlacement::output;
  olmo2.qk_norm = QkNorm::full;
  all.push_back({"olmo2", olmo2});
  ModelConfig olmo3 = olmo2;
  olmo3.attention_window = 5;
  olmo3.window_layers = {0, 1, 2};
  olmo3.layers = 4;
  olmo3.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                        .factor = 4,
                        .original_context = 8,
                        .attention_factor = 1 + 0.1f * std::log(4.0f)};
  olmo3.window_rope_theta = olmo3.rope_theta;
  all.push_back({"olmo2", olmo3});
  add_exaone4_configs(all);
  ModelConfig gemma = dense_config();
  gemma.norm_placement = NormPlacement::both;
  gemma.norm_offset = true;
  gemma.qk_norm = QkNorm::head;
  gemma.act = ops::Act::gelu_tanh;
  gemma.head_width = 16;
  gemma.multipliers = {.embedding = std::sqrt(static_cast<float>(gemma.width)), .attention = 0.25f};
  gemma.attention_window = 5;
  for (int64_t i = 0; i < gemma.layers; ++i) gemma.window_layers.push_back(i);
  gemma.window_rope_theta = 500;
  all.push_back({"gemma3", gemma});
  ModelConfig gemma4 = gemma;
  gemma4.norm_offset = false;
  gemma4.window_layers = {0};
  gemma4.value_norm = gemma4.layer_scale = true;
  gemma4.full = {.head_width = 24, .values_of_keys = true};
  gemma4.multipliers.attention = 1;
  gemma4.rope_scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.25f};
  gemma4.logit_cap = 30;
  all.push_back({"gemma4", gemma4});
  gemma4.full.kv_heads = gemma4.kv_heads == 1 ? 2 : 1;
  gemma4.branch_norms = true;
  gemma4.shared_experts = 1;
  gemma4.shared_width = 20;
  gemma4.routing = default_options(find_recipe("gemma4"), 4, 2, gemma4.layers);
  all.push_back({"gemma4", gemma4});
  ModelConfig next = moe_config("qwen3-moe");
  next.norm_offset = next.attention_gate = true;
  next.qk_norm = QkNorm::head;
  next.head_width = 16;
  next.rotary_width = 4;
  next.shared_experts = 1;
  next.shared_width = 96;
  next.shared_gate = true;
  next.linear = {
      .key_heads = 2, .value_heads = 4, .key_width = 16, .value_width = 16, .conv_width = 4};
  next.linear_layers = {0, 2};
  all.push_back({"qwen3next", next});
  next.model_type = "qwen3_5_moe_text";
  next.linear.key_width = next.linear.value_width = 32;  // no block of a file is of two heads
  all.push_back({"qwen35moe", next});
  next.model_type.clear();
  next.routing = {};
  next.shared_experts = next.shared_width = 0;
  next.shared_gate = false;
  all.push_back({"qwen35", next});
  ModelConfig mellum = moe_config("qwen3-moe");
  mellum.qk_norm = QkNorm::head;
  mellum.head_width = 16;
  mellum.attention_window = 5;
  mellum.window_layers = {0, 1, 2};
  mellum.layers = 4;
  mellum.routing = default_options(find_recipe("qwen3-moe"), 4, 2, mellum.layers);
  mellum.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                         .factor = 4,
                         .original_context = 8,
                         .attention_factor = 1 + 0.1f * std::log(4.0f)};
  mellum.window_rope_theta = mellum.rope_theta;
  all.push_back({"mellum", mellum});
}

// Llama 4's, by the numbers that stand in llama.cpp's code.
inline ModelConfig chunked_config() {
  ModelConfig c = dense_config();
  c.model_type = "llama4_text";
  c.layers = 6;
  c.moe_layers = {1, 3, 5};
  c.head_width = 16;
  c.expert_width = c.shared_width = 32;
  c.shared_experts = 1;
  c.routing = default_options(find_recipe(kCustom), 4, 2, 3);
  route_as_llama4(c.routing);
  c.weigh_inputs = c.window_chunks = c.qk_norm_turned = true;
  c.qk_norm = QkNorm::bare;
  c.attention_window = 8192;
  c.window_layers = {0, 1, 2, 4, 5};
  c.nope_layers = {3};
  c.query_growth = {.beta = 0.1f, .context = 8192, .where_still = true};
  c.rope_theta = 500000;
  c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8192};
  return c;
}

// As it is, with norms of Maverick's, and with numbers that llama.cpp's code has otherwise.
inline void add_chunked_configs(std::vector<NamedConfig>& all) {
  ModelConfig c = chunked_config();
  all.push_back({"llama4", c});
  c.query_growth.beta = 0.2f;
  all.push_back({"moe_cpp", c});
  c = chunked_config();
  c.moe_layers.clear();
  c.qk_norm = QkNorm::none;
  c.rope_scaling = {};
  c.tied = true;
  all.push_back({"moe_cpp", c});
  c.routing.experts = 128;
  all.push_back({"llama4", c});
}

inline void add_configs_of_2025(std::vector<NamedConfig>& all) {
  add_chunked_configs(all);
  add_configs_like_deepseek(all);
  add_configs_of_own_attention(all);
  add_lightning_configs(all, moe_config("mixtral"));
  ModelConfig hunyuan = moe_config("mixtral");
  hunyuan.qk_norm = QkNorm::head;
  hunyuan.qk_norm_turned = true;
  hunyuan.shared_experts = 1;
  hunyuan.shared_width = hunyuan.expert_width;
  all.push_back({"hunyuan-moe", hunyuan});
  ModelConfig lfm2 = moe_config("deepseek-v3");
  lfm2.routing.expert_groups = lfm2.routing.groups_kept = 1;
  lfm2.routing.routed_scale = 1;
  lfm2.qk_norm = QkNorm::head;
  lfm2.dense_first = 1;
  lfm2.dense_width = 96;
  lfm2.conv_layers = {0, 2};
  lfm2.conv_width = 3;
  all.push_back({"lfm2moe", lfm2});
  ModelConfig smollm3 = dense_config();
  smollm3.layers = 5;
  smollm3.nope_layers = {3};
  smollm3.tied = true;
  all.push_back({"smollm3", smollm3});
  ModelConfig granite = moe_config("mixtral");
  granite.multipliers = {.embedding = 12, .residual = 0.25f, .attention = 0.5f, .logits = 6};
  all.push_back({"granitemoe", granite});
  granite.shared_experts = 1;
  granite.shared_width = 96;
  all.push_back({"granitemoe", granite});
  all.push_back({"granitehybrid", hybrid_config()});
  all.push_back({"nemotron_h_moe", halved_config()});
  granite.model_type = "granitemoe_swa";
  granite.attention_sinks = true;
  granite.attention_window = 5;
  granite.window_layers = {1, 2};
  granite.nope_layers = {0};
  all.push_back({"moe_cpp", granite});
  ModelConfig ernie = moe_config("ernie-moe");
  ernie.dense_first = 1;
  ernie.dense_width = 96;
  ernie.shared_experts = 2;
  ernie.shared_width = ernie.expert_width;
  all.push_back({"ernie4_5-moe", ernie});
  ModelConfig oss = moe_config("gpt-oss");
  oss.act = ops::Act::swiglu_oai;
  oss.attention_bias = oss.attention_out_bias = oss.ffn_bias = oss.attention_sinks = true;
  oss.attention_window = 5;
  oss.window_layers = {0, 2};
  oss.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                      .factor = 4,
                      .original_context = 8,
                      .attention_factor = 1 + 0.1f * std::log(4.0f),
                      .truncate = false};
  all.push_back({"gpt-oss", oss});
}

// A tiny model of each row of the table, of what else the rows can say, and of what none can.
inline std::vector<NamedConfig> gguf_configs() {
  std::vector<NamedConfig> all;
  ModelConfig gpt2 = dense_config();
  gpt2.norm = NormKind::layer;
  gpt2.norm_bias = gpt2.attention_bias = gpt2.attention_out_bias = gpt2.ffn_bias = gpt2.tied = true;
  gpt2.positions = Positions::learned;
  gpt2.act = ops::Act::gelu_tanh;
  gpt2.gated = false;
  gpt2.kv_heads = gpt2.heads;
  all.push_back({"gpt2", gpt2});
  ModelConfig qwen3 = dense_config();
  qwen3.qk_norm = QkNorm::head;
  qwen3.head_width = 16;
  all.push_back({"qwen3", qwen3});
  ModelConfig qwen2 = dense_config();
  qwen2.attention_bias = qwen2.tied = true;
  qwen2.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                        .factor = 4,
                        .original_context = 8,
                        .attention_factor = 1 + 0.1f * std::log(4.0f)};
  all.push_back({"qwen2", qwen2});
  ModelConfig llama = dense_config();
  llama.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 8192};
  llama.rope_theta = 500000;
  all.push_back({"llama", llama});
  llama.rope_scaling = {.kind = RopeScaling::Kind::dynamic, .factor = 2};
  all.push_back({"moe_cpp", llama});
  ModelConfig biased = dense_config();
  biased.attention_bias = biased.attention_out_bias = biased.ffn_bias = biased.tied = true;
  biased.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
  all.push_back({"llama", biased});
  all.push_back({"llama", moe_config("mixtral")});
  ModelConfig phi = dense_config();
  phi.rotary_width = 4;
  phi.tied = true;
  all.push_back({"phi3", phi});
  phi.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                      .original_context = 8,
                      .attention_factor = 1.25f,
                      .long_attention_factor = 1.25f,
                      .short_factors = {1, 1.5f},
                      .long_factors = {2, 9}};
  all.push_back({"phi3", phi});
  phi.rope_scaling.long_attention_factor = 1.5f;
  all.push_back({"moe_cpp", phi});
  ModelConfig olmoe = moe_config("olmoe");
  olmoe.qk_norm = QkNorm::full;
  olmoe.kv_heads = olmoe.heads;
  all.push_back({"olmoe", olmoe});
  ModelConfig qwen2moe = moe_config("qwen2-moe");
  qwen2moe.attention_bias = true;
  qwen2moe.shared_experts = 1;
  qwen2moe.shared_width = 96;
  qwen2moe.shared_gate = true;
  all.push_back({"qwen2moe", qwen2moe});
  ModelConfig qwen3moe = moe_config("qwen3-moe");
  qwen3moe.qk_norm = QkNorm::head;
  all.push_back({"qwen3moe", qwen3moe});
  ModelConfig deepseek = moe_config("deepseek-moe", 6, 3);
  deepseek.dense_first = 1;
  deepseek.dense_width = 96;
  deepseek.shared_experts = 2;
  deepseek.shared_width = deepseek.expert_width;
  all.push_back({"deepseek", deepseek});
  add_configs_of_2025(all);
  add_dense_configs(all);
  add_other_dense_configs(all);
  add_configs_with_listed_windows(all, moe_config("deepseek-v3"));
  add_layer_norm_ggufs(all, dense_config());
  ModelConfig latent = grouped_config();
  make_latent(latent);
  add_configs_with_later_latents(all, latent);
  add_jambas(all, moe_config("olmoe"), dense_config());
  add_own_configs(all);
  return all;
}

}  // namespace moe::test
