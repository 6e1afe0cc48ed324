// Whole models against the scalar twin: loss and every entry of every gradient, the twin
// differentiated by jets. The list of models covers every recipe and every option of the
// architecture; tests/model/routing_test.cpp has the routing stages one by one.
#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "support/model_check.h"
#include "support/param_named.h"

namespace moe::test::model_test {
namespace {

ModelConfig routed(const Recipe& recipe, int64_t experts, int64_t k) {
  ModelConfig c = small();
  if (!recipe.has_router()) return c;
  c.routing = default_options(recipe, experts, k, c.layers);
  if (recipe.name == "custom") c.routing.stages = "{}";  // the stages by default
  c.shared_experts = std::min<int64_t>(2, recipe.shared.experts);
  c.shared_width = c.shared_experts > 0 ? 3 : 0;
  c.shared_gate = recipe.shared.gate;
  weigh_losses(c.routing);
  return c;
}
ModelConfig routed(const char* name, int64_t experts, int64_t k) {
  return routed(find_recipe(name), experts, k);
}

ModelConfig gpt(ModelConfig c) {
  c.norm = NormKind::layer;
  c.norm_bias = c.attention_bias = c.attention_out_bias = c.ffn_bias = c.tied = true;
  c.positions = Positions::learned;
  c.act = ops::Act::gelu;
  c.gated = false;
  return c;
}

bool draws(const RoutingSpec& spec) {
  const auto* buffer = std::get_if<BufferCapacity>(&spec.capacity);
  return !std::holds_alternative<NoNoise>(spec.noise) ||
         std::holds_alternative<RandomSecond>(spec.second) ||
         (buffer && buffer->order == BufferCapacity::Order::random);
}

// Whether the recipe takes this K of 4 experts.
bool takes(const Recipe& recipe, int64_t k) {
  if (!recipe.has_router() || recipe.top_k_is_fixed || k == recipe.default_top_k) return false;
  try {
    routed(recipe, 4, k);
    return true;
  } catch (const Error&) {
    return false;  // K = 1 with renormalised weights, groups too small for K
  }
}

// The rows of the table as they are, with what they draw, with one choice, with all experts chosen,
// and where pairs are dropped.
std::vector<Case> rows() {
  std::vector<Case> list;
  for (const Recipe& recipe : recipes()) {
    const bool many = recipe.default_top_k > 2;
    const Case row{.name = std::string(recipe.name),
                   .config = routed(recipe, many ? 8 : 4, many ? 3 : recipe.default_top_k)};
    list.push_back(row);
    for (int64_t k : {1, 4}) {
      if (!takes(recipe, k)) continue;
      Case other{.name = fmt::format("{}, {} of 4 experts", recipe.name, k),
                 .config = routed(recipe, 4, k)};
      other.config.layers = 1;
      if (k == 4) other.zero = "load";  // everyone is loaded alike
      list.push_back(other);
    }
    if (!recipe.has_router()) continue;
    if (draws(spec_of(row))) {
      list.push_back(row);
      list.back().name += ", drawing";
      list.back().random = true;
    }
    if (!std::holds_alternative<BufferCapacity>(recipe.train.capacity)) continue;
    list.push_back({.name = row.name + " in GPT-2's architecture, dropping",
                    .config = gpt(row.config),
                    .drops = true});
    list.back().config.routing.capacity_factor = 0.5f;
  }
  return list;
}

void add_variants_of_ffns(std::vector<Case>& list) {
  list.push_back({.name = "dense in GPT-2's architecture", .config = gpt(small())});
  ModelConfig c = routed("olmoe", 4, 2);
  list.push_back({.name = "olmoe in GPT-2's architecture", .config = gpt(c)});
  c.qk_norm = QkNorm::full;
  c.kv_heads = 1;
  c.head_width = 6;
  list.push_back(
      {.name = "full QK-norm, one key/value head, head width apart from the model's", .config = c});
  c = routed("olmoe", 4, 3);
  c.qk_norm = QkNorm::head;
  c.norm_placement = NormPlacement::post;
  c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  list.push_back({.name = "post-norm, QK-norm per head, biases in gated experts", .config = c});
  c = routed("mixtral", 4, 2);
  c.shared_experts = 2;
  c.shared_width = 3;
  c.dense_first = 1;
  list.push_back({.name = "shared experts after a dense layer", .config = c});
  c.moe_out_norm = true;
  c.dropout = 0.2f;
  list.push_back({.name = "a norm behind experts alone", .config = c, .random = true});
  c.moe_out_norm = false;
  c.dropout = 0;
  c.shared_gate = true;
  c.moe_layers = {1};
  c.ffn_bias = true;
  c.act = ops::Act::gelu_tanh;
  list.push_back({.name = "gated shared experts with bias, layers by list", .config = c});
  c = routed("cmoe", 4, 2);
  c.shared_experts = 1;
  c.shared_width = 3;
  c.expert_down_bias = true;
  c.act = ops::Act::gelu;
  list.push_back({.name = "biases after the experts' last matrix only", .config = c});
  c = gpt(c);
  c.ffn_bias = c.expert_down_bias = false;
  c.act = ops::Act::relu;
  list.push_back({.name = "analytic logits without gates", .config = c});
  c = routed("custom", 4, 1);
  c.routing.stages = R"({"score": "raw", "weigh": {"type": "sigmoids", "renormalise": false}})";
  weigh_losses(c.routing);
  c.weigh_inputs = true;
  c.shared_experts = 1;
  c.shared_width = 3;
  list.push_back({.name = "weights of what one expert is given", .config = c});
  c.routing.top_k = 3;
  c.ffn_bias = true;
  list.push_back({.name = "weights of what experts with biases are given", .config = c});
}

void add_variants_of_attention(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.attention_window = 2;
  c.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                    .factor = 4,
                    .original_context = 16,
                    .beta_fast = 2,
                    .beta_slow = 1,
                    .attention_factor = 1.25f};
  list.push_back(
      {.name = "a window of two tokens, rotary frequencies scaled by YaRN", .config = c});
  c.query_growth = {.beta = 0.7f, .context = 2};
  list.push_back({.name = "queries that grow, in a window, scaled by YaRN", .config = c});
  c = routed("mixtral", 4, 2);
  c.attention_window = 3;
  c.window_layers = {1};
  list.push_back({.name = "a window in the second layer only", .config = c});
  c.window_chunks = true;
  c.attention_sinks = true;
  list.push_back({.name = "chunks of three tokens in the second layer, sinks", .config = c});
  c.attention_sinks = false;
  c.nope_layers = {0};
  c.query_growth = {.beta = 0.7f, .context = 2, .where_still = true};
  c.qk_norm = QkNorm::bare;
  c.qk_norm_turned = true;
  list.push_back({.name = "bare norms where it turns, queries that grow where not", .config = c});
  c.qk_norm_turned = false;
  c.norm_offset = true;
  list.push_back({.name = "bare norms before what turns, norms from 1", .config = c});
  c = routed("mixtral", 4, 2);
  c.norm_placement = NormPlacement::output;
  c.qk_norm = QkNorm::full;
  c.dropout = 0.2f;
  list.push_back({.name = "norms of what sublayers give", .config = c, .random = true});
  c = routed("mixtral", 4, 2);
  c.norm = NormKind::layer;
  c.norm_placement = NormPlacement::beside;
  c.shared_experts = 1;
  c.shared_width = 3;
  c.dense_first = 1;
  c.multipliers = {.residual = 0.25f, .logits = 1.7f};
  list.push_back({.name = "FFNs beside attention, LayerNorms without bias", .config = c});
  c.norm_placement = NormPlacement::beside_each;
  list.push_back({.name = "FFNs beside attention, a norm each", .config = c});
  c.norm_placement = NormPlacement::beside;
  c.shared_average = true;
  list.push_back({.name = "shared experts averaged with the others", .config = c});
  c.shared_average = false;
  c.multipliers = {};
  c.dropout = 0.2f;
  c.layer_scale = true;
  list.push_back({.name = "FFNs beside attention, dropped", .config = c, .random = true});
  c.norm_placement = NormPlacement::beside_each;
  list.push_back(
      {.name = "FFNs beside attention, a norm each, dropped", .config = c, .random = true});
  c = routed("mixtral", 4, 2);
  c.head_width = 6;
  c.rotary_width = 4;
  c.nope_layers = {1};
  list.push_back({.name = "parts of heads that turn, and a layer where nothing does", .config = c});
  c = routed("gpt-oss", 4, 2);
  c.act = ops::Act::swiglu_oai;
  c.attention_sinks = c.attention_bias = c.attention_out_bias = c.ffn_bias = true;
  c.attention_window = 3;
  c.window_layers = {0};
  list.push_back({.name = "sinks, clamped SwiGLU, a router with a bias", .config = c});
  c = routed("mixtral", 4, 2);
  c.multipliers = {.embedding = 3, .residual = 0.25f, .attention = 0.4f, .logits = 1.7f};
  list.push_back({.name = "multipliers", .config = c});
  c = routed("mixtral", 4, 2);
  c.qkv_clip = 0.8f;
  c.kv_heads = 1;
  c.attention_bias = true;
  list.push_back({.name = "clipped queries, keys and values", .config = c});
  c.qk_norm = QkNorm::full;
  c.attention_bias = false;
  list.push_back({.name = "queries, keys and values clipped behind norms", .config = c});
}

// Norms on both sides of sublayers, within FFNs, and beside a bias of the head.
void add_variants_of_norms(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.norm_placement = NormPlacement::both;
  c.norm_offset = true;
  c.qk_norm = QkNorm::head;
  c.act = ops::Act::gelu_tanh;
  c.attention_window = 3;
  c.window_layers = {0};
  c.window_rope_theta = 50;
  c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
  list.push_back(
      {.name = "norms before and behind, from 1, windows that turn faster", .config = c});
  c = routed("gemma4", 4, 2);
  c.norm_placement = NormPlacement::both;
  c.qk_norm = QkNorm::head;
  c.value_norm = c.layer_scale = c.branch_norms = true;
  c.shared_experts = 1;
  c.shared_width = 5;
  c.attention_window = 3;
  c.window_layers = {0};
  c.window_rope_theta = 50;
  c.full = {.kv_heads = 1, .head_width = 6, .values_of_keys = true};
  c.rope_scaling = {.kind = RopeScaling::Kind::proportional, .share = 0.7f};
  c.multipliers = {.embedding = 3, .attention = 0.5f};
  c.logit_cap = 2;
  list.push_back({.name = "branches with norms, heads of two kinds, capped logits", .config = c});
  c = routed("sparsemixer", 4, 2);
  c.norm = NormKind::layer;
  c.norm_bias = c.head_bias = true;
  list.push_back({.name = "LayerNorms and a bias of the head", .config = c});
}

// What norms give is the residual, too.
void add_carried_residuals(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.norm_placement = NormPlacement::carried;
  list.push_back({.name = "residuals that norms give", .config = c});
  c.dense_first = 1;
  c.multipliers.attention_sum = {.kept = 1.7f, .added = 0.6f};
  c.multipliers.ffn_sum = {.kept = 0.8f, .added = 1.3f};
  list.push_back({.name = "residuals that norms give, multiplied", .config = c});
  c.norm = NormKind::layer;
  c.norm_bias = true;
  c.layers = 3;
  c.ffn_only_layers = {0};
  c.mixer_only_layers = {2};
  c.dropout = 0.2f;
  c.layer_scale = true;
  list.push_back({.name = "residuals that LayerNorms give, dropped, in layers of one sublayer",
                  .config = c,
                  .random = true});
}

void add_linear_attention(std::vector<Case>& list) {
  ModelConfig c = routed("qwen3-moe", 4, 2);
  c.norm_offset = true;
  c.attention_gate = true;
  c.qk_norm = QkNorm::head;
  c.rotary_width = 2;
  c.shared_experts = 1;
  c.shared_width = 3;
  c.shared_gate = true;
  // A head's first output is <k, q> v, whose norm loses as many digits as <k, q> has lost; where
  // the norm's epsilon is large it loses none.
  c.norm_eps = 0.05f;
  c.linear = {.key_heads = 1, .value_heads = 2, .key_width = 3, .value_width = 5, .conv_width = 3};
  c.linear_layers = {0};
  list.push_back({.name = "linear attention below attention with a gate", .config = c});
  c.head_gates = true;
  list.push_back({.name = "linear attention below attention with gates of heads", .config = c});
  c.conv_layers = {1};
  c.conv_width = 3;
  list.push_back({.name = "linear attention below a convolution", .config = c});
  c = small();
  c.qk_norm = QkNorm::full;
  c.norm_placement = NormPlacement::output;
  c.states_pre_norm = true;
  c.linear = {.key_heads = 2,
              .value_heads = 2,
              .key_width = 3,
              .value_width = 5,
              .conv_width = 3,
              .negative = true,
              .norm_eps = 0.05f};
  for (const int64_t linear : {0, 1}) {
    c.linear_layers = {linear};
    c.nope_layers = {1 - linear};
    list.push_back({.name = linear == 0 ? "norms before linear attention, behind attention"
                                        : "norms behind attention, before linear attention",
                    .config = c});
  }
}

void add_state_spaces(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.multipliers = {.embedding = 3, .residual = 0.25f, .attention = 0.4f, .logits = 1.7f};
  c.shared_experts = 1;
  c.shared_width = 3;
  c.nope_layers = {1};
  c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  c.scan_layers = {0};
  list.push_back({.name = "a state space below attention where nothing turns", .config = c});
  c = routed("mixtral", 4, 2);
  c.norm_offset = true;
  c.scan = {.heads = 2, .groups = 1, .width = 5, .states = 3, .conv_width = 2};
  c.scan_layers = {0, 1};
  list.push_back({.name = "state spaces everywhere", .config = c});
  c = small();
  c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  c.scan_layers = {0};
  c.scan_beside = true;
  c.multipliers = {.embedding = 3,
                   .attention = 0.4f,
                   .logits = 1.7f,
                   .scan_in = {0.7f, 1.3f, 0.6f, 1.2f, 0.8f},
                   .scan_out = 0.5f,
                   .attention_out = 1.5f,
                   .ffn_gate = 0.6f,
                   .ffn_down = 1.4f};
  list.push_back({.name = "a state space beside attention, all multiplied", .config = c});
  c.scan.norm = false;
  c.multipliers = {};
  c.dropout = 0.2f;
  list.push_back({.name = "a state space without a norm beside attention, dropped",
                  .config = c,
                  .random = true});
}

void add_selective_scans(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.nope_layers = {1};
  c.scan = {.heads = 7,
            .groups = 1,
            .width = 1,
            .states = 3,
            .conv_width = 3,
            .conv_bias = true,
            .step_rank = 2};
  c.scan_layers = {0};
  list.push_back({.name = "a selective scan below attention where nothing turns", .config = c});
  c.norm_offset = true;
  c.nope_layers = {};
  c.scan.norm = c.scan.conv_bias = false;
  c.scan_layers = {0, 1};
  list.push_back({.name = "selective scans everywhere, nothing in them normalised", .config = c});
}

// Gates behind norms: of attention in both layers, of the FFN in the one that routes.
void add_gated_norms(std::vector<Case>& list) {
  ModelConfig c = routed("deepseek-v3", 4, 2);
  c.dense_first = 1;
  c.norm_gate = 3;
  list.push_back({.name = "gates behind norms", .config = c});
  c = routed("mixtral", 4, 2);
  c.norm = NormKind::layer;
  c.norm_gate = 5;
  c.multipliers.residual = 0.25f;
  c.conv_layers = {0};
  c.conv_width = 2;
  list.push_back({.name = "gates behind LayerNorms, before a convolution too", .config = c});
}

// Layers that are one sublayer alone.
void add_halves(std::vector<Case>& list) {
  ModelConfig c = routed("deepseek-v3", 4, 2);
  c.layers = 4;
  c.gated = false;
  c.act = ops::Act::relu2;
  c.shared_experts = 1;
  c.shared_width = 3;
  c.scan = {.heads = 4, .groups = 2, .width = 3, .states = 5, .conv_width = 3, .conv_bias = true};
  c.scan_layers = {0};
  c.nope_layers = {2};
  c.mixer_only_layers = {0, 2};
  c.ffn_only_layers = {1, 3};
  c.moe_layers = {1};
  list.push_back({.name = "a state space, experts, attention, an FFN: a layer each", .config = c});
  c = routed("mixtral", 4, 2);
  c.layers = 3;
  c.norm_placement = NormPlacement::both;
  c.layer_scale = true;
  c.dropout = 0.2f;
  c.ffn_only_layers = {0};
  c.mixer_only_layers = {2};
  list.push_back({.name = "experts, both, attention, dropped, norms before and behind",
                  .config = c,
                  .random = true});
  c.dropout = 0;
  c.multipliers.residual = 0.25f;
  c.norm_placement = NormPlacement::post;
  list.push_back({.name = "experts, both, attention, norms of the sums", .config = c});
  c.norm_placement = NormPlacement::output;
  list.push_back({.name = "experts, both, attention, norms of what they give", .config = c});
}

void add_streams(std::vector<Case>& list) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.shared_experts = 1;
  c.shared_width = 5;
  c.hyper = {.streams = 3, .magnitude = 1.5f, .eps = 1e-3f};
  c.experts_held = true;
  list.push_back({.name = "three residual streams", .config = c});
  c.dense_first = 1;
  c.dropout = 0.2f;
  c.hyper.mixes = true;
  c.hyper.rounds = 3;
  list.push_back({.name = "three residual streams that mix", .config = c, .random = true});
  c = small();
  c.norm = NormKind::layer;
  c.norm_bias = true;
  c.hyper = {.streams = 4, .mixes = true};
  list.push_back({.name = "four residual streams that mix, LayerNorms", .config = c});
}

// What layers with a window do not share with the others, and values apart from keys.
void add_heads_of_two_kinds(std::vector<Case>& list) {
  ModelConfig c = routed("deepseek-v3", 4, 2);
  c.heads = c.kv_heads = 4;
  c.head_width = 6;
  c.rotary_width = 2;
  c.value_width = 3;
  c.value_factor = 0.707f;
  c.attention_sinks = c.window_sinks = true;
  c.attention_window = 3;
  c.window_layers = {0};
  c.window_rope_theta = 50;
  c.full = {.kv_heads = 2};
  list.push_back({.name = "narrow values with a factor, sinks of windows", .config = c});
  c.full = {.kv_heads = 1};
  c.value_width = 8;
  c.attention_bias = true;
  c.window_rotary_width = 6;
  list.push_back({.name = "wide values with biases, other parts turn in windows", .config = c});
  c.attention_bias = false;
  c.attention_gate = c.value_norm = true;
  c.rotary_width = 0;
  c.window_rotary_width = 4;
  c.window_layers = {1};
  list.push_back({.name = "normed values with a factor, and gates", .config = c});
  c = routed("deepseek-v3", 4, 2);
  c.heads = 4;
  c.qk_norm = QkNorm::head;
  c.attention_gate = c.gate_softplus = true;
  c.attention_window = 3;
  c.window_layers = {1};
  c.window_rope_theta = 50;
  c.rotary_width = 2;
  c.window_rotary_width = 4;
  c.full = {.heads = 2};
  list.push_back({.name = "fewer heads without a window, softplus gates", .config = c});
  c.full = {.heads = 6};
  c.head_gates = c.attention_bias = c.attention_out_bias = true;
  list.push_back({.name = "more heads without a window, gates of heads", .config = c});
}

std::vector<Case> architectures() {
  std::vector<Case> list;
  add_streams(list);
  add_heads_of_two_kinds(list);
  add_gated_norms(list);
  add_halves(list);
  add_variants_of_ffns(list);
  add_variants_of_attention(list);
  add_variants_of_norms(list);
  add_carried_residuals(list);
  add_linear_attention(list);
  add_state_spaces(list);
  add_selective_scans(list);
  ModelConfig c = routed("mixtral", 4, 2);
  c.conv_layers = {0};
  c.conv_width = 2;
  c.qk_norm = QkNorm::head;
  c.qk_norm_turned = true;
  c.kv_heads = 1;
  list.push_back({.name = "a convolution, and norms of what has turned", .config = c});
  c.conv_layers.clear();
  c.conv_width = 0;
  c.norm_eps = 0.05f;
  c.linear = {.key_heads = 1, .value_heads = 2, .key_width = 3, .value_width = 5, .conv_width = 3};
  c.linear_layers = {0, 1};
  c.act = ops::Act::sigmoid;
  list.push_back({.name = "linear attention everywhere", .config = c});
  c.linear.value_heads = 1;
  c.linear.gate_width = 2;
  c.act = ops::Act::silu;
  list.push_back({.name = "decays of channels everywhere", .config = c});
  c.linear = {.key_heads = 1,
              .value_heads = 2,
              .key_width = 3,
              .value_width = 5,
              .conv_width = 3,
              .gate_width = 4};
  c.linear_layers = {1};
  c.nope_layers = {0};
  list.push_back({.name = "decays of channels above attention where nothing turns", .config = c});
  c.linear.gate_width = 0;
  c.linear.channel_decays = true;
  list.push_back({.name = "decays of channels made of the token", .config = c});
  c.linear.decay_floor = -3;
  list.push_back({.name = "decays of channels that a floor bounds", .config = c});
  c = routed("mixtral", 4, 2);
  c.gated = false;
  c.act = ops::Act::relu2;
  c.norm = NormKind::layer;
  c.norm_bias = c.norm_offset = true;
  list.push_back({.name = "squares of ReLU behind LayerNorms that count from 1", .config = c});
  c = small();
  c.gated = false;
  c.xielu = c.attention_bias = c.attention_out_bias = true;
  c.qk_norm = QkNorm::head;
  list.push_back({.name = "xIELU in dense layers", .config = c});
  c = routed("mixtral", 4, 2);
  c.norm_weights = false;
  c.embedding_norm = c.qk_norm_turned = true;
  c.qk_norm = QkNorm::head;
  c.multipliers.embedding = 3;
  list.push_back({.name = "norms without weights, one of the embedding", .config = c});
  c.norm = NormKind::layer;
  c.embedding_norm = c.qk_norm_turned = false;
  c.qk_norm = QkNorm::none;
  c.qkv_clip = 0.8f;
  list.push_back({.name = "LayerNorms without weights, clipped queries", .config = c});
  if (device_of_tests == nullptr) {
    ModelConfig capped = routed("mixtral", 4, 2);
    capped.kv_heads = 1;
    capped.attention_sinks = true;
    capped.attention_window = 3;
    capped.window_layers = {0};
    capped.multipliers.attention = 1.5f;
    capped.score_cap = 1.5f;
    capped.logit_cap = 3;
    list.push_back(
        {.name = "capped scores of attention with sinks and a window", .config = capped});
  }
  c = gpt(routed("nanomoe", 4, 2));
  c.act = ops::Act::relu;
  c.dropout = 0.2f;
  c.moe_every = 2;
  list.push_back({.name = "dropout, ReLU, every second layer", .config = c, .random = true});
  return list;
}

TEST(Model, LossAndEveryGradientOfEveryRecipeMatchTheTwin) {
  for (const Case& item : rows()) expect_gradients(item);
}

TEST(Model, LossAndEveryGradientOfEveryArchitectureMatchTheTwin) {
  for (const Case& item : architectures()) expect_gradients(item);
}

// The twin's own derivatives: jets carry sixteen directions at once, dual numbers one.
TEST(Twin, JetsAndDualNumbersAgree) {
  ModelConfig c = gpt(routed("shazeer", 4, 2));
  c.norm_placement = NormPlacement::post;
  Case item{.name = "twin", .config = c, .random = true};
  for (const ops::Act act : {ops::Act::gelu, ops::Act::gelu_tanh, ops::Act::silu}) {
    item.config.act = act;
    Model model(item.config);
    const RoutingSpec spec = spec_of(item);
    const uint64_t seed = draw_model(model, item, spec);
    const TwinInput in = input(item, seed);
    auto jets = twin_params<Jet<16>>(model);
    auto duals = twin_params<Dual<double>>(model);
    for (const char* name : {"embed.weight", "layers.0.ffn.router.weight",
                             "layers.0.ffn.router.noise.weight", "layers.0.norm1.weight"}) {
      for (size_t i = 0; i < 8; ++i) jets.at(name)[i].d[i + 4] = 1;
      const Jet<16> loss = TwinModel<Jet<16>>(item.config, spec, jets).run(in, c.routing.coef).loss;
      for (size_t i = 0; i < 8; ++i) {
        duals.at(name)[i].d = 1;
        const Dual<double> want =
            TwinModel<Dual<double>>(item.config, spec, duals).run(in, c.routing.coef).loss;
        EXPECT_NEAR(loss.d[i + 4], want.d, kTwinDual * (1e-3 + std::abs(want.d))) << name;
        jets.at(name)[i].d[i + 4] = duals.at(name)[i].d = 0;
      }
    }
  }
}

TEST(Model, RecomputingGivesTheSameBitsAsKeeping) {
  std::vector<Case> all = rows();
  for (Case& item : architectures()) all.push_back(item);
  for (const Case& item : all) {
    Model kept(item.config), recomputed(item.config);
    kept.enable_grads();
    recomputed.enable_grads();
    draw_params(kept, 3);
    draw_params(recomputed, 3);
    const TwinInput in = input(item, 3);
    const RoutingSpec spec = spec_of(item);
    moe::Run run(2);
    const Trained a = train_once(kept, run, in, spec, Keep::all),
                  b = train_once(recomputed, run, in, spec, Keep::inputs);
    EXPECT_EQ(a.ce, b.ce) << item.name;
    EXPECT_EQ(a.dropped, b.dropped) << item.name;
    for (size_t i = 0; i < a.routing.size(); ++i)
      EXPECT_EQ(a.routing[i].counts, b.routing[i].counts) << item.name;
    for (size_t i = 0; i < kept.params().size(); ++i)
      if (kept.params()[i]->is_trained())
        EXPECT_TRUE(same_bits(kept.params()[i]->grad, recomputed.params()[i]->grad))
            << item.name << " " << kept.params()[i]->name;
  }
}

// The first half of a batch's sequences, or the second: two sequences each of six tokens.
TwinInput half_of(const TwinInput& in, size_t which) {
  TwinInput out = in;
  const auto cut = [&](std::vector<int32_t>& v) {
    v = {v.begin() + static_cast<long>(which * 12), v.begin() + static_cast<long>(which * 12 + 12)};
  };
  cut(out.ids);
  cut(out.positions);
  cut(out.targets);
  out.bounds = {0, 6, 12};
  return out;
}

// With the step's counts known beforehand, two micro-batches add up to the gradient of one batch;
// with their own counts they do not.
TEST(Model, MicroBatchesEqualOneBatchWhereSharesAreOfTheStep) {
  ModelConfig c = routed("olmoe", 4, 2);
  TwinInput whole;
  whole.bounds = {0, 6, 12, 18, 24};
  for (uint64_t i = 0; i < 24; ++i) {
    whole.ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(1), i, 9)));
    whole.targets.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(2), i, 9)));
    whole.positions.push_back(static_cast<int32_t>(i % 6));
  }
  for (const bool of_the_step : {true, false}) {
    RoutingSpec spec = train_spec(c.routing);
    spec.losses.balance->shares =
        of_the_step ? BalanceLoss::Shares::step : BalanceLoss::Shares::own;
    Model model(c);
    model.enable_grads();
    draw_params(model, 5);
    moe::Run run(2);
    const Trained once = train_once(model, run, whole, spec);
    std::vector<double> want = values(param_named(model, "layers.0.ffn.router.weight")->grad);
    TwinInput first = half_of(whole, 0), second = half_of(whole, 1);
    for (const LayerRouting& layer : once.routing)
      for (TwinInput* part : {&first, &second})
        part->step_counts.emplace_back(layer.balance_counts.begin(), layer.balance_counts.end());
    zero_grads(model);
    train_on(model, run, first, spec, Keep::all, 0.5f);
    train_on(model, run, second, spec, Keep::all, 0.5f);
    const double error =
        relative_error(values(param_named(model, "layers.0.ffn.router.weight")->grad), want);
    if (of_the_step) EXPECT_LT(error, kTwinF32);
    else EXPECT_GT(error, 1e-3);
  }
}

TEST(Model, AForwardTellsWhatItsPassWants) {
  ModelConfig c = routed("olmoe", 4, 2);
  c.moe_layers = {1};
  Model model(c);
  draw_params(model, 5);
  const RoutingSpec spec = train_spec(c.routing);
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5}, positions = {0, 1, 2, 3, 4};
  const std::vector<int64_t> bounds = {0, 5};
  std::vector<double> first;
  for (const Wanted wanted :
       {Wanted{}, Wanted{.counts = true}, Wanted{.balance_counts = true}, Wanted::all()}) {
    moe::Run run(1);
    ModelSaved saved;
    model.forward(run, {.batch = {ids, positions, bounds}, .routing = &spec, .wanted = wanted},
                  saved);
    if (first.empty()) first = values(saved.hidden);
    EXPECT_EQ(values(saved.hidden), first);
    ASSERT_EQ(saved.routing.size(), wanted.any() ? 1u : 0u);
    if (!wanted.any()) continue;
    EXPECT_EQ(saved.routing[0].layer, 1);
    EXPECT_EQ(saved.routing[0].counts.empty(), !wanted.counts);
    EXPECT_EQ(saved.routing[0].balance_counts.empty(), !wanted.balance_counts);
    EXPECT_EQ(saved.routing[0].losses.z > 0 && saved.routing[0].losses.balance > 0, wanted.losses);
  }
}

TEST(Model, InitialisesByRole) {
  ModelConfig c = gpt(routed("deepseek-v3", 8, 3));
  c.init = {.std = 0.05f, .cut = 2, .scale_residual = true};
  Model model(c);
  model.initialise(9);
  for (const Param* p : model.params()) {
    const std::vector<double> v = values(p->value);
    const double rms = norm(v) / std::sqrt(static_cast<double>(v.size()));
    if (p->role == Role::norm) EXPECT_EQ(rms, 1) << p->name;
    if (p->role == Role::bias || p->role == Role::buffer) EXPECT_EQ(rms, 0) << p->name;
    const double std = p->role == Role::residual ? 0.05 / 2 : 0.05;  // sqrt(2 L) = 2
    // 0.88: a normal cut at two deviations
    if (p->is_matrix()) EXPECT_NEAR(rms, std * 0.88, std * 0.25) << p->name;
    if (p->is_matrix())
      for (double x : v) EXPECT_LE(std::abs(x), 2 * std + 1e-6) << p->name;
  }
}

// Steps begin between 1e-3 and 1e-1, decays between e^-1 and e^-16 of a step of 1, and values go
// past the state as they are.
TEST(Model, InitialisesStateSpaces) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.norm_offset = true;
  c.scan = {.heads = 32, .groups = 1, .width = 2, .states = 3, .conv_width = 2, .conv_bias = true};
  c.scan_layers = {0};
  Model model(c);
  model.initialise(9);
  const auto of = [&](ParamKind kind, bool bias) {
    return values(model.find(Part::attention, kind, 0, bias)->value);
  };
  std::vector<double> steps;
  for (const double x : of(ParamKind::scan_dt_bias, true)) steps.push_back(std::log1p(std::exp(x)));
  const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
  EXPECT_GT(*least, 0.99e-3);
  EXPECT_LT(*most, 1.01e-1);
  EXPECT_GT(*most, 5 * *least);
  const std::vector<double> decays = of(ParamKind::scan_a_log, true);
  const auto [slow, fast] = std::minmax_element(decays.begin(), decays.end());
  EXPECT_GE(*slow, 0);
  EXPECT_LT(*fast, std::log(16) + 1e-6);
  EXPECT_GT(*fast, *slow + 1);
  EXPECT_EQ(of(ParamKind::scan_skip, true), std::vector<double>(32, 1));
  EXPECT_EQ(of(ParamKind::scan_norm, false), std::vector<double>(64, 1));
  EXPECT_EQ(of(ParamKind::scan_conv, true), std::vector<double>(70, 0));
}

// What a channel keeps decays one to C times as fast, and steps begin between 1e-3 and 1e-1.
TEST(Model, InitialisesSelectiveScans) {
  ModelConfig c = routed("mixtral", 4, 2);
  c.norm_offset = true;
  c.scan = {.heads = 40, .groups = 1, .width = 1, .states = 3, .conv_width = 2, .step_rank = 2};
  c.scan_layers = {0};
  Model model(c);
  model.initialise(9);
  const auto of = [&](ParamKind kind, bool bias) {
    return values(model.find(Part::attention, kind, 0, bias)->value);
  };
  const std::vector<double> decays = of(ParamKind::scan_a_log, true);
  ASSERT_EQ(decays.size(), 120u);
  for (size_t i = 0; i < decays.size(); ++i)
    EXPECT_NEAR(decays[i], std::log(1.0 + static_cast<double>(i % 3)), 1e-6) << i;
  for (const double x : of(ParamKind::scan_dt_bias, true)) {
    EXPECT_GT(std::log1p(std::exp(x)), 0.99e-3);
    EXPECT_LT(std::log1p(std::exp(x)), 1.01e-1);
  }
  EXPECT_EQ(of(ParamKind::scan_skip, true), std::vector<double>(40, 1));
  for (const ParamKind norm : {ParamKind::scan_b_norm, ParamKind::scan_c_norm})
    EXPECT_EQ(of(norm, false), std::vector<double>(3, 1));
  EXPECT_EQ(of(ParamKind::scan_step_norm, false), std::vector<double>(2, 1));
}

// A recipe may ask for a router that starts at zero; nothing else does.
TEST(Model, OnlyRoutersOfRecipesThatSaySoStartAtZero) {
  for (const Recipe& recipe : recipes()) {
    Model model(routed(recipe, 8, recipe.default_top_k > 2 ? 3 : recipe.default_top_k));
    model.initialise(9);
    for (const Param* p : model.params())
      if (p->is_matrix())
        EXPECT_EQ(norm(values(p->value)) == 0,
                  recipe.zero_init && p->name.find("router.") != std::string::npos)
            << recipe.name << " " << p->name;
  }
}

}  // namespace
}  // namespace moe::test::model_test
