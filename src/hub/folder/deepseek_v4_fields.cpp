// The keys of DeepSeek-V4 (transformers:deepseek_v4/configuration_deepseek_v4.py), and those that
// its configs were published with (huggingface deepseek-ai/DeepSeek-V4-Flash-Base): lists of ratios
// in place of types of layers, and a scaling of rotary angles beside two bases.
#include "hub/folder/architectures.h"
#include "hub/folder/family_fields.h"
#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

constexpr const char *kV4Recipe = "deepseek-v4", *kV4Types = "layer_types",
                     *kV4Ratios = "compress_ratios", *kV4Rates = "compress_rates",
                     *kV4Mlps = "mlp_layer_types", *kV4Hashed = "num_hash_layers",
                     *kV4Rope = "rope_parameters", *kV4Main = "main", *kV4Compress = "compress",
                     *kV4Base = "rope_theta", *kV4OtherBase = "compress_rope_theta",
                     *kV4Share = "partial_rotary_factor", *kV4Turning = "qk_rope_head_dim",
                     *kV4Limit = "swiglu_limit", *kV4Scale = "routed_scaling_factor",
                     *kV4Balance = "router_aux_loss_coef";
constexpr const char *kV4Sliding = "sliding_attention", *kV4Light = "compressed_sparse_attention",
                     *kV4Heavy = "heavily_compressed_attention", *kV4Table = "hash_moe",
                     *kV4Moe = "moe";
constexpr int64_t kV4LightRate = 4, kV4HeavyRate = 128;  // where nothing is said
constexpr double kV4KnownLimit = 10;                     // ops::Act::swiglu_10

template <class Visitor, class Config>
void visit_v4(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("head_dim", c.head_width, 2);
  v.size("q_lora_rank", c.latent.query_width, 1);
  v.size("o_groups", c.latent.out_groups, 1);
  v.size("o_lora_rank", c.latent.out_width, 1);
  v.size("sliding_window", c.attention_window, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("rms_norm_eps", c.norm_eps, 0);
  v.size("hc_mult", c.hyper.streams, 2);
  v.size("hc_sinkhorn_iters", c.hyper.rounds, 1);
  v.number("hc_eps", c.hyper.eps, 0);
  v.size("moe_intermediate_size", c.expert_width, 1);
  v.size("n_routed_experts", c.routing.experts, 1);
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  v.flag("tie_word_embeddings", c.tied);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  visit_extras(v, c);
}

// One thing that a key may say, in words or not at all.
template <class T>
void need_same(const JsonReader& reader, const char* key, T only, const char* why) {
  if (reader.get<T>(key, only) != only) refuse(reader, key, why);
}

std::vector<std::string> types_of_ratios(const JsonReader& reader, const ModelConfig& c) {
  const auto ratios = reader.get<std::vector<int64_t>>(kV4Ratios);
  std::vector<std::string> types;
  for (size_t i = 0; i < ratios.size() && static_cast<int64_t>(i) < c.layers; ++i) {
    if (ratios[i] != 0 && ratios[i] != kV4LightRate && ratios[i] != kV4HeavyRate)
      fail("{}: \"{}\" has {} at layer {}; 0, {} and {} are known", reader.where(), kV4Ratios,
           ratios[i], i, kV4LightRate, kV4HeavyRate);
    types.emplace_back(ratios[i] == 0              ? kV4Sliding
                       : ratios[i] == kV4LightRate ? kV4Light
                                                   : kV4Heavy);
  }
  return types;
}

// Layers with entries, and of how many tokens these are.
void read_v4_entries(const JsonReader& reader, ModelConfig& c) {
  const bool by_ratios = !reader.has(kV4Types) && reader.has(kV4Ratios);
  const auto types =
      by_ratios ? types_of_ratios(reader, c) : reader.get<std::vector<std::string>>(kV4Types);
  if (by_ratios) stands(reader, kV4Types);
  else stands(reader, kV4Ratios);
  const char* key = by_ratios ? kV4Ratios : kV4Types;
  const char *const light[] = {kV4Light}, *const heavy[] = {kV4Heavy},
                    *const not_light[] = {kV4Sliding, kV4Heavy},
                    *const not_heavy[] = {kV4Sliding, kV4Light};
  c.light_layers = layers_of_type(reader, c, key, types, light, not_light);
  c.heavy_layers = layers_of_type(reader, c, key, types, heavy, not_heavy);
  int64_t of_light = reader.get_in<int64_t>("compress_rate_csa", 1, kMaxSize, kV4LightRate),
          of_heavy = reader.get_in<int64_t>("compress_rate_hca", 1, kMaxSize, kV4HeavyRate);
  if (reader.has(kV4Rates)) {
    const JsonReader rates = reader.object(kV4Rates);
    of_light = rates.get_in<int64_t>(kV4Light, 1, kMaxSize);
    of_heavy = rates.get_in<int64_t>(kV4Heavy, 1, kMaxSize);
    rates.refuse_unknown();
  }
  Entries indexed;
  FieldReader fields(reader);
  fields.size("index_topk", indexed.top, 1);
  fields.size("index_n_heads", indexed.heads, 1);
  fields.size("index_head_dim", indexed.width, 1);
  indexed.tokens = of_light;
  if (!c.light_layers.empty()) c.light = indexed;
  if (!c.heavy_layers.empty()) c.heavy.tokens = of_heavy;
}

int64_t turning_part(const JsonReader& reader, const ModelConfig& c, double share) {
  const auto turning = static_cast<int64_t>(static_cast<double>(c.head_width) * share);
  if (turning < 2 || turning % 2 != 0 || turning >= c.head_width)
    fail("{}: {} of a head of {} turns; it must be an even number of them, and not all",
         reader.where(), share, c.head_width);
  return turning;
}

// As transformers saves it, by kinds of layers, or with a scaling of layers that have entries
// beside the bases of both; angles are then not multiplied by what that scaling would say.
void read_v4_rope(const JsonReader& reader, ModelConfig& c) {
  double share = reader.get_in<double>(kV4Share, 0, 1, 0.125);
  if (!reader.has(kV4Share) && reader.has(kV4Turning))
    share = share_of_head(reader.get_in<int64_t>(kV4Turning, 2, c.head_width), c.head_width);
  c.rotary_width = turning_part(reader, c, share);
  need_same<int64_t>(reader, kV4Turning, c.rotary_width,
                     "\"partial_rotary_factor\" says otherwise; make them equal");
  const bool nested = reader.has(kV4Rope) && reader.value(kV4Rope).contains(kV4Main);
  if (nested) {
    const JsonReader rope = reader.object(kV4Rope), main = rope.object(kV4Main),
                     compress = rope.object(kV4Compress);
    RopeScaling unscaled;
    c.rope_theta = 0;
    read_rope_of_kind(main, c.window_rope_theta, unscaled, share);
    if (unscaled.kind != RopeScaling::Kind::none)
      fail("{}: layers without entries turn unscaled, only \"default\"", main.where());
    read_rope_of_kind(compress, c.rope_theta, c.rope_scaling, share);
    stands(rope, "rope_type");  // which transformers may leave there
    rope.refuse_unknown();
    for (const auto& [key, base] :
         {std::pair{kV4Base, c.window_rope_theta}, {kV4OtherBase, c.rope_theta}})
      if (static_cast<float>(reader.get<double>(key, static_cast<double>(base))) != base)
        refuse(reader, key, "\"rope_parameters\" says another base; make them equal");
    return;
  }
  FieldReader fields(reader);
  fields.number(kV4Base, c.window_rope_theta, 0);
  fields.number(kV4OtherBase, c.rope_theta, 0);
  const char* key = reader.has(kV4Rope) ? kV4Rope : "rope_scaling";
  if (!reader.has(key)) return;
  const JsonReader scaling = reader.object(key);
  const bool said = scaling.has("attention_factor");
  float base = c.rope_theta;
  read_rope_of_kind(scaling, base, c.rope_scaling, share);
  if (!said) c.rope_scaling.attention_factor = 1;
}

void read_v4_routing(const JsonReader& reader, ModelConfig& c) {
  c.routing.recipe = kV4Recipe;
  if (reader.has(kV4Mlps)) {
    const auto types = reader.get<std::vector<std::string>>(kV4Mlps);
    const char *const table[] = {kV4Table}, *const other[] = {kV4Moe};
    c.table_layers = layers_of_type(reader, c, kV4Mlps, types, table, other);
    stands(reader, kV4Hashed);
  } else {
    const auto count = reader.get_in<int64_t>(kV4Hashed, 0, kMaxLayers);
    for (int64_t i = 0; i < std::min(count, c.layers); ++i) c.table_layers.push_back(i);
  }
  const auto& weigh = std::get<ChosenScores>(find_recipe(kV4Recipe).train.weigh);
  const auto scale = static_cast<float>(reader.get_in<double>(kV4Scale, FLT_MIN, FLT_MAX));
  if (scale != weigh.scale) c.routing.routed_scale = scale;
  need_same<std::string>(reader, "scoring_func", "sqrtsoftplus",
                         "only \"sqrtsoftplus\" is of this family here");
  need_same<bool>(reader, "norm_topk_prob", true, "weights are divided by their sum, only true");
  need_same<double>(reader, "router_jitter_noise", 0, "noise is not supported, only 0");
  stands(reader, "topk_method");
  c.routing.coef.balance =
      read_coefficient(reader, kV4Balance, static_cast<double>(c.routing.top_k));
}

}  // namespace

ModelConfig read_deepseek_v4(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_v4(fields, c);
  c.kv_heads = 1;
  need_same<int64_t>(reader, "num_key_value_heads", 1, "all heads share one key and value");
  c.latent.width = c.latent.value_width = c.head_width;
  c.latent.shared = c.attention_sinks = c.hyper.mixes = true;
  read_v4_entries(reader, c);
  read_v4_rope(reader, c);
  read_v4_routing(reader, c);
  need_same<std::string>(reader, "hidden_act", "silu", "only \"silu\" is supported");
  if (const auto limit = reader.get<double>(kV4Limit); limit != kV4KnownLimit)
    fail("{}: \"{}\" is {}; only {} is known here", reader.where(), kV4Limit,
         text_of(reader, kV4Limit), kV4KnownLimit);
  c.act = ops::Act::swiglu_10;
  c.shared_experts = reader.get_in<int64_t>("n_shared_experts", 1, 1);
  c.shared_width = c.dense_width = c.expert_width;
  need_off(reader, "attention_bias", "biases are not supported in this family");
  need_off(reader, "mlp_bias", "biases are not supported in this family");
  reader.get<double>("attention_dropout", 0);  // part of its training only; there is none here
  for (const char* key : {"num_nextn_predict_layers", "expert_dtype"}) stands(reader, key);
  return c;
}

void write_deepseek_v4(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_v4(fields, c);
  json["num_key_value_heads"] = 1;
  const Entries light = c.light.present()
                            ? c.light
                            : Entries{.tokens = kV4LightRate, .top = 1, .heads = 1, .width = 128};
  fields.size("index_topk", light.top, 1);
  fields.size("index_n_heads", light.heads, 1);
  fields.size("index_head_dim", light.width, 1);
  json[kV4Rates] = {{kV4Light, light.tokens},
                    {kV4Heavy, c.heavy.present() ? c.heavy.tokens : kV4HeavyRate}};
  for (int64_t i = 0; i < c.layers; ++i) {
    const Entries of = c.entries(i);
    json[kV4Types].push_back(of.chosen() ? kV4Light : of.present() ? kV4Heavy : kV4Sliding);
    json[kV4Mlps].push_back(c.has_table(i) ? kV4Table : kV4Moe);
  }
  const double share = share_of_head(c.rotary_width, c.head_width);
  Json compress = rope_scaling_json(c.rope_scaling), main = {{"rope_type", "default"}};
  for (Json* of : {&compress, &main}) (*of)[kV4Share] = share;
  FieldWriter(compress).number(kV4Base, c.rope_theta, 0);
  FieldWriter(main).number(kV4Base, c.window_rope_theta, 0);
  json[kV4Share] = share;
  json[kV4Base] = main[kV4Base];
  json[kV4OtherBase] = compress[kV4Base];
  json[kV4Rope][kV4Main] = main;
  json[kV4Rope][kV4Compress] = compress;
  const auto& weigh = std::get<ChosenScores>(find_recipe(kV4Recipe).train.weigh);
  fields.number(kV4Scale, c.routing.routed_scale.value_or(weigh.scale), 0);
  write_coefficient(json, kV4Balance, c.routing.coef.balance, static_cast<double>(c.routing.top_k));
  json["scoring_func"] = "sqrtsoftplus";
  json["norm_topk_prob"] = true;
  json["hidden_act"] = "silu";
  json[kV4Limit] = kV4KnownLimit;
  json["n_shared_experts"] = 1;
  json["attention_bias"] = json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["router_jitter_noise"] = 0.0;
  json["num_nextn_predict_layers"] = 0;
  json["output_router_logits"] = false;
  write_token_ids(json);
}

std::string why_not_deepseek_v4(const ModelConfig& c) {
  if (!c.latent.shared || c.latent.out_groups == 0)
    return "its heads do not share one key that is the value too, in parts that are made narrower";
  if (const std::string has = what_few_have(c, {.streams = true, .shared_latents = true});
      !has.empty())
    return has;
  if (c.routing.recipe != kV4Recipe || c.moe_layer_count() != c.layers || !c.routing.stages.empty())
    return "some of its layers do not route as DeepSeek-V4";
  if (!c.hyper.present() || !c.hyper.mixes || c.hyper.magnitude != 2)
    return "its residual streams are not mixed as DeepSeek-V4's";
  if (c.norm != NormKind::rms || c.norm_offset || c.norm_placement != NormPlacement::pre)
    return "its norms are not RMSNorms before each sublayer";
  if (!c.attention_sinks) return "its attention has no sinks";
  if (c.attention_window == 0 || !c.window_layers.empty() || c.window_rope_theta == 0)
    return "some of its layers have no window, or one base of rotary angles is of all";
  if (!c.multipliers.none()) return "it has multipliers";
  if (!c.conv_layers.empty() || !c.linear_layers.empty() || !c.scan_layers.empty() ||
      !c.lightning_layers.empty())
    return "some of its layers have no attention";
  if (c.qk_norm != QkNorm::none) return "queries and keys have norms with weights of their own";
  if (c.attention_bias || c.attention_out_bias || c.ffn_bias || c.expert_down_bias)
    return "some of its projections have biases";
  if (c.act != ops::Act::swiglu_10 || !c.gated || c.experts_held)
    return "its FFNs do not hold their gates at 10";
  if (c.shared_experts != 1 || c.shared_width != c.expert_width || c.shared_gate)
    return "it has not one shared expert, without a gate, as wide as the others";
  if (c.rope_scaling.kind == RopeScaling::Kind::proportional) return "a share of each head turns";
  return c.dropout != 0 ? "it has dropout" : "";
}

}  // namespace moe
