#include "hub/wanted_model.h"

#include <algorithm>
#include <array>
#include <cfloat>

#include "hub/folder/field_visitors.h"
#include "hub/folder/styles.h"
#include "hub/tensor_map.h"

namespace moe {
namespace {

// The coefficients of the auxiliary losses; canonical, so that one number means the same in every
// recipe.
struct LossField {
  const char* field;
  const char* name;  // of each_loss
  const char* meaning;
  std::optional<double>* value;
};
std::array<LossField, 6> loss_fields(WantedModel& w) {
  return {
      {{"balance", "balance", "balance loss (1 when balanced, mean over layers)", &w.balance},
       {"z_loss", "z", "router z-loss (mean over layers)", &w.z_loss},
       {"importance_loss", "importance", "CV^2 of the summed weights (shazeer)",
        &w.importance_loss},
       {"load_loss", "load", "CV^2 of the expected load under the noise (shazeer)", &w.load_loss},
       {"device_loss", "device",
        "balance loss over groups of experts (deepseek-v2; 1 when balanced)", &w.device_loss},
       {"communication_loss", "communication",
        "balance loss of what groups receive (deepseek-v2; 1 when balanced)",
        &w.communication_loss}}};
}

// Routed and shared experts, and their widths.
void set_experts(ModelConfig& c, const WantedModel& w, const Style& style) {
  const Recipe& recipe = chosen_recipe(w.routing);
  c.moe_every = w.moe_every;
  c.dense_first = w.dense_first;
  c.moe_layers = w.moe_layers;
  if (w.moe_every < 1) fail_usage("@moe_every is {}; it must be at least 1", w.moe_every);
  c.routing.recipe = recipe.name;  // which layers are MoE depends on it
  c.routing = routing_options(w.routing, c.moe_layer_count());
  c.routing.noise = !w.no_router_noise;
  c.shared_experts = w.shared_experts.value_or(recipe.shared.experts);
  c.shared_gate = c.shared_experts > 0 && w.shared_gate.value_or(recipe.shared.gate);
  const int64_t widths = recipe.shared.experts > 0 ? recipe.shared.widths : 1;
  const int64_t limit = int64_t{1} << 20,
                shared =
                    w.shared_width ? 0 : std::clamp<int64_t>(c.shared_experts, 0, limit) * widths;
  c.expert_width = w.expert_width.value_or(default_expert_width(
      style, w.width, w.dense_width, std::clamp<int64_t>(c.routing.top_k, 1, limit) + shared));
  c.shared_width = c.shared_experts > 0 ? w.shared_width.value_or(c.expert_width * widths) : 0;
}

FieldList routing_fields(WantedModel& w) {
  FieldList list = fields(w.routing);
  list.group("Routing");
  list.add("expert_width", w.expert_width,
           "FFN width of an expert; default: so that those a token meets, shared ones too, "
           "together are one dense FFN of @dense_width (gpt2: each as wide)")
      .also({"moe_intermediate_size"});
  list.add("shared_experts", w.shared_experts,
           "experts that every token takes; default: the recipe's")
      .also({"n_shared_experts"});
  list.add("shared_width", w.shared_width,
           "FFN width of a shared expert; default: the routed experts', or the recipe's multiple "
           "of it")
      .also({"shared_expert_intermediate_size"});
  FieldValue gate = value_of(w.shared_gate);
  gate.kind = Field::Kind::toggle;
  list.add("shared_gate", gate,
           "weigh the shared experts by a sigmoid of the token; default: as the recipe does");
  list.add("moe_every", w.moe_every, "MoE at layers i with i mod P = 0")
      .also({"decoder_sparse_step"});
  list.add("dense_first", w.dense_first, "the first layers stay dense")
      .also({"first_k_dense_replace"});
  list.add("moe_layers", w.moe_layers, "or just these layers, e.g. 1,3,5");
  for (const LossField& loss : loss_fields(w))
    list.add(loss.field, *loss.value,
             fmt::format("coefficient of the {}; default: the recipe's", loss.meaning));
  list.add("no_router_noise", w.no_router_noise, "train without the recipe's noise");
  return list;
}

}  // namespace

FieldList fields(WantedModel& w) {
  FieldList list;
  list.group("Model");
  const std::vector<std::string> names = names_of(styles());
  list.add("architecture", w.architecture,
           fmt::format("{}; default: the one the recipe comes from", listed(names)))
      .values(names);
  list.add("layers", w.layers, "decoder blocks").also({"num_hidden_layers", "n_layer"});
  list.add("width", w.width, "model width D").also({"hidden_size", "n_embd"});
  list.add("heads", w.heads, "attention heads").also({"num_attention_heads", "n_head"});
  list.add("kv_heads", w.kv_heads, "key/value heads; default: as many as heads")
      .also({"num_key_value_heads"});
  list.add("head_width", w.head_width, "width of a head; default: width / heads")
      .also({"head_dim"});
  list.add("dense_width", w.dense_width,
           "FFN width of dense layers; default: 4 D (GELU) or 8/3 D (SwiGLU)")
      .also({"intermediate_size", "n_inner"});
  list.add_choice(
          "activation", w.activation, activation_names(),
          "silu, gelu, gelu_tanh, relu, relu2 (its square), sigmoid, swiglu_oai, gpt-oss's clamped "
          "one, or swiglu_10, silu with gate and up held at 10 (DeepSeek-V4)")
      .also({"hidden_act"});
  list.add_choice(
      "qk_norm", w.qk_norm, kQkNormNames,
      "none, head or full: RMSNorm of queries and keys; bare: as head, without weights, "
      "where something turns");
  list.add_choice("norm_placement", w.norm_placement, kPlacementNames,
                  "pre: h + f(norm(h)); post: norm(h + f(h)); output: h + norm(f(h)); both: h + "
                  "norm(f(norm(h))); beside: h + f(norm(h)) + g(norm(h)); beside_each: the same "
                  "with a norm for each; carried: norm(h) + f(norm(h))");
  list.add("streams", w.streams,
           "residual streams beside one another, weighed by the token (hyper-connections); 0: one "
           "that is not weighed")
      .also({"hc_mult"});
  list.add("mix_streams", w.mix_streams,
           "true (default): streams are mixed by doubly stochastic matrices, as DeepSeek-V4's "
           "(mHC); false: each goes on by itself, as Hy4's");
  list.add("bias", w.bias, "true or false: biases in norms, attention and experts (gpt2)");
  list.add("tied", w.tied, "true or false: the head is the embedding")
      .also({"tie_word_embeddings"});
  list.add("rope_theta", w.rope_theta, "base of rotary positions");
  list.add("dropout", w.dropout, "on the embedding and on what each sublayer adds");
  list.add(routing_fields(w));
  return list;
}

bool is_loss_field(std::string_view name) {
  WantedModel unused;
  const auto losses = loss_fields(unused);
  return std::any_of(losses.begin(), losses.end(),
                     [&](const LossField& loss) { return loss.field == name; });
}

void set_losses(RoutingOptions& options, WantedModel w) {
  const Recipe& recipe = find_recipe(options.recipe);
  for (const LossField& loss : loss_fields(w)) {
    if (!*loss.value) continue;
    const double x = **loss.value;
    if (!(x >= 0) || x > FLT_MAX)
      fail_usage("{} is {}; it must be 0 (off) or above", field(loss.field), x);
    if (x > 0 && recipe.has_router() && !has_loss(train_spec(options), loss.name))
      fail_usage(
          "recipe '{}' has no such loss, so {} {} has no meaning; leave it out, or add the loss in "
          "@stages of recipe custom",
          recipe.name, field(loss.field), x);
    each_loss(options.coef, [&](std::string_view name, float& coef) {
      if (name == loss.name) coef = static_cast<float>(x);
    });
  }
}

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> names = {"silu",       "gelu",    "gelu_tanh", "relu",
                                                 "swiglu_oai", "sigmoid", "relu2",     "swiglu_10"};
  return names;
}

ModelConfig make_config(const WantedModel& w, int64_t vocab, int64_t context) {
  const Style& style =
      find_style(w.architecture.empty() ? style_of_recipe(chosen_recipe(w.routing).name)
                                        : std::string_view(w.architecture));
  ModelConfig c = style.parts;
  c.vocab = vocab;
  c.context = context;
  c.layers = w.layers;
  c.width = w.width;
  c.heads = w.heads;
  c.kv_heads = w.kv_heads.value_or(w.heads);
  // Before anything is computed from them; validate() sees the rest.
  static constexpr int64_t kLimit = int64_t{1} << 24;
  const auto check_size = [](const char* name, int64_t value) {
    if (value < 1 || value > kLimit)
      fail_usage("{} is {}; it must be at least 1 and at most {}", field(name), value, kLimit);
  };
  check_size("layers", w.layers);
  check_size("width", w.width);
  check_size("heads", w.heads);
  if (!w.head_width && w.width % w.heads != 0)
    fail_usage("{} heads do not divide a width of {}; change @heads or @width, or give @head_width",
               w.heads, w.width);
  c.head_width = w.head_width.value_or(w.width / w.heads);
  c.dense_width = w.dense_width.value_or(default_dense_width(style, w.width));
  if (w.activation) c.act = *w.activation;
  if (w.qk_norm) c.qk_norm = *w.qk_norm;
  if (w.norm_placement) c.norm_placement = *w.norm_placement;
  if (w.mix_streams && w.streams == 0)
    fail_usage("@mix_streams is said of several residual streams; give @streams too");
  c.hyper.streams = w.streams;
  c.hyper.mixes = w.streams > 0 && w.mix_streams.value_or(true);
  if (w.bias) {
    c.attention_bias = c.attention_out_bias = c.ffn_bias = *w.bias;
    c.norm_bias = *w.bias && c.norm == NormKind::layer;
  }
  if (w.tied) c.tied = *w.tied;
  if (w.rope_theta) c.rope_theta = static_cast<float>(*w.rope_theta);
  c.dropout = static_cast<float>(w.dropout);

  set_experts(c, w, style);
  validate(c);
  set_losses(c.routing, w);
  // far beyond any machine, far below an overflow of sizes
  constexpr double kMostParameters = 1e12;
  if (const double size = parameter_count(c); size > kMostParameters)
    fail_usage(
        "this model would have {:.2g} parameters, at most {:.0g} are possible; lower @width, "
        "@layers, @experts or @expert_width",
        size, kMostParameters);
  return c;
}

}  // namespace moe
