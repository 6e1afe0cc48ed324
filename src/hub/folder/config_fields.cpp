// The lists of fields of moe_cpp, which holds everything, and of olmoe, which is what a new model
// is saved as where it can be.
#include "hub/folder/config_fields.h"

#include "hub/folder/field_visitors.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

// `Config` is ModelConfig or const ModelConfig.
template <class Visitor, class Config>
void visit_moe_cpp_widths(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("num_key_value_heads", c.kv_heads, 1);
  v.size("head_dim", c.head_width, 1);
  v.extra("kv_lora_rank", c.latent.width, 0, 1);
  v.extra("q_lora_rank", c.latent.query_width, 0, 1);
  v.extra("v_head_dim", c.latent.value_width, 0, 1);
  v.extra("q_lora_both", c.latent.query_both, false);
  v.extra("q_lora_factor", c.latent.query_factor, 1, 0);
  v.extra("kv_lora_factor", c.latent.factor, 1, 0);
  v.extra("kv_lora_shared", c.latent.shared, false);
  v.extra("o_groups", c.latent.out_groups, 0, 1);
  v.extra("o_lora_rank", c.latent.out_width, 0, 1);
  v.extra("heavy_compress_rate", c.heavy.tokens, 0, 1);
  v.layer_list("heavy_compressed_layers", c.heavy_layers);
  v.extra("sparse_compress_rate", c.light.tokens, 0, 1);
  v.extra("sparse_compressed_topk", c.light.top, 0, 1);
  v.extra("sparse_compressed_n_heads", c.light.heads, 0, 1);
  v.extra("sparse_compressed_head_dim", c.light.width, 0, 1);
  v.layer_list("sparse_compressed_layers", c.light_layers);
  v.extra("index_topk", c.sparse.top, 0, 1);
  v.extra("index_n_heads", c.sparse.heads, 0, 1);
  v.extra("index_head_dim", c.sparse.width, 0, 1);
  v.extra("index_norm_eps", c.sparse.norm_eps, 1e-6f, 0);
  v.layer_list("index_followers", c.sparse.followers);
  v.extra("index_block_size", c.sparse.block, 0, 1);
  v.extra("index_local_blocks", c.sparse.local, 1, 1);
  v.layer_list("index_whole_layers", c.sparse.whole_layers);
  v.extra("rotary_dim", c.rotary_width, 0, 2);
  v.extra("window_rotary_dim", c.window_rotary_width, 0, 2);
  v.layer_list("nope_layers", c.nope_layers);
}

// What stands in place of attention or beside it, and layers that are one sublayer alone.
template <class Visitor, class Config>
void visit_moe_cpp_mixers(Visitor& v, Config& c) {
  v.extra("linear_num_key_heads", c.linear.key_heads, 0, 1);
  v.extra("linear_num_value_heads", c.linear.value_heads, 0, 1);
  v.extra("linear_key_head_dim", c.linear.key_width, 0, 1);
  v.extra("linear_value_head_dim", c.linear.value_width, 0, 1);
  v.extra("linear_conv_kernel_dim", c.linear.conv_width, 0, 2);
  v.extra("linear_gate_dim", c.linear.gate_width, 0, 1);
  v.extra("linear_channel_decays", c.linear.channel_decays, false);
  v.extra("linear_decay_floor", c.linear.decay_floor, 0, -FLT_MAX);
  v.extra("linear_allow_neg_eigval", c.linear.negative, false);
  v.extra("linear_norm_eps", c.linear.norm_eps, 0, 0);
  v.layer_list("linear_attention_layers", c.linear_layers);
  v.extra("mamba_n_heads", c.scan.heads, 0, 1);
  v.extra("mamba_n_groups", c.scan.groups, 0, 1);
  v.extra("mamba_d_head", c.scan.width, 0, 1);
  v.extra("mamba_d_state", c.scan.states, 0, 1);
  v.extra("mamba_d_conv", c.scan.conv_width, 0, 2);
  v.extra("mamba_conv_bias", c.scan.conv_bias, false);
  v.extra("mamba_rms_norm", c.scan.norm, true);
  v.extra("mamba_dt_rank", c.scan.step_rank, 0, 1);
  v.layer_list("mamba_layers", c.scan_layers);
  v.extra("mamba_beside", c.scan_beside, false);
  v.layer_list("lightning_layers", c.lightning_layers);
  v.extra("lightning_norm_eps", c.lightning_norm_eps, 1e-6f, 0);
  v.layer_list("ffn_only_layers", c.ffn_only_layers);
  v.layer_list("mixer_only_layers", c.mixer_only_layers);
}

template <class Visitor, class Config>
void visit_moe_cpp_multipliers(Visitor& v, Config& c) {
  v.extra("embedding_multiplier", c.multipliers.embedding, 1, 0);
  v.extra("residual_multiplier", c.multipliers.residual, 1, 0);
  v.extra("attention_multiplier", c.multipliers.attention, 0, 0);
  v.extra("logits_scaling", c.multipliers.logits, 1, 0);
  constexpr const char* kOfScan[] = {"scan_gate_multiplier", "scan_value_multiplier",
                                     "scan_write_multiplier", "scan_read_multiplier",
                                     "scan_step_multiplier"};
  for (size_t i = 0; i < std::size(kOfScan); ++i)
    v.extra(kOfScan[i], c.multipliers.scan_in[i], 1, 0);
  v.extra("scan_out_multiplier", c.multipliers.scan_out, 1, 0);
  v.extra("attention_out_multiplier", c.multipliers.attention_out, 1, 0);
  v.extra("ffn_gate_multiplier", c.multipliers.ffn_gate, 1, 0);
  v.extra("ffn_down_multiplier", c.multipliers.ffn_down, 1, 0);
  v.extra("attention_kept_multiplier", c.multipliers.attention_sum.kept, 1, 0);
  v.extra("attention_added_multiplier", c.multipliers.attention_sum.added, 1, 0);
  v.extra("lightning_kept_multiplier", c.multipliers.lightning_sum.kept, 1, 0);
  v.extra("lightning_added_multiplier", c.multipliers.lightning_sum.added, 1, 0);
  v.extra("ffn_kept_multiplier", c.multipliers.ffn_sum.kept, 1, 0);
  v.extra("ffn_added_multiplier", c.multipliers.ffn_sum.added, 1, 0);
}

template <class Visitor, class Config>
void visit_moe_cpp_layers(Visitor& v, Config& c) {
  v.size("max_position_embeddings", c.context, 1);
  v.one_of("norm_type", c.norm, kNormNames);
  v.one_of("norm_placement", c.norm_placement, kPlacementNames);
  v.extra("moe_out_norm", c.moe_out_norm, false);
  v.extra("states_pre_norm", c.states_pre_norm, false);
  v.extra("gated_norm_rank", c.norm_gate, 0, 1);
  v.number(c.norm == NormKind::rms ? "rms_norm_eps" : "layer_norm_eps", c.norm_eps, 0);
  v.flag("norm_bias", c.norm_bias);
  v.one_of("position_embedding_type", c.positions, kPositionNames);
  v.number("rope_theta", c.rope_theta, 0);
  v.extra("sliding_window", c.attention_window, 0, 1);
  v.layer_list("window_layers", c.window_layers);
  v.extra("sliding_window_chunks", c.window_chunks, false);
  v.extra("llama_4_scaling_beta", c.query_growth.beta, 0, 0);
  v.extra("llama_4_scaling_context", c.query_growth.context, 0, 1);
  v.extra("llama_4_scaling_where_still", c.query_growth.where_still, false);
  v.one_of("qk_norm", c.qk_norm, kQkNormNames);
  v.extra("global_head_dim", c.full.head_width, 0, 1);
  v.extra("num_global_key_value_heads", c.full.kv_heads, 0, 1);
  v.extra("num_global_attention_heads", c.full.heads, 0, 1);
  v.extra("attention_k_eq_v", c.full.values_of_keys, false);
  v.extra("value_norm", c.value_norm, false);
  v.extra("clip_qkv", c.qkv_clip, 0, 0);
  v.extra("value_head_dim", c.value_width, 0, 1);
  v.extra("attention_value_scale", c.value_factor, 1, 0);
  v.extra("branch_norms", c.branch_norms, false);
  v.extra("layer_scale", c.layer_scale, false);
  v.extra("hc_mult", c.hyper.streams, 0, 2);
  v.extra("hc_mixes", c.hyper.mixes, false);
  v.extra("hc_magnitude", c.hyper.magnitude, 2, 0);
  v.extra("hc_eps", c.hyper.eps, 1e-6f, 0);
  v.extra("hc_sinkhorn_iters", c.hyper.rounds, 20, 1);
  v.extra("final_logit_softcapping", c.logit_cap, 0, 0);
  v.extra("attn_logit_softcapping", c.score_cap, 0, 0);
  v.extra("attention_sinks", c.attention_sinks, false);
  v.extra("window_sinks", c.window_sinks, false);
  v.extra("qk_norm_turned", c.qk_norm_turned, false);
  v.extra("conv_L_cache", c.conv_width, 0, 2);
  v.layer_list("conv_layers", c.conv_layers);
  v.extra("attention_gate", c.attention_gate, false);
  v.extra("attention_gate_by_head", c.head_gates, false);
  v.extra("attention_gate_softplus", c.gate_softplus, false);
  v.extra("rope_local_base_freq", c.window_rope_theta, 0, 0);
  v.extra("norm_offset", c.norm_offset, false);
  v.extra("norm_weights", c.norm_weights, true);
  v.extra("embedding_norm", c.embedding_norm, false);
  visit_moe_cpp_mixers(v, c);
  v.flag("attention_bias", c.attention_bias);
  v.extra("attention_out_bias", c.attention_out_bias, c.attention_bias);
  v.flag("mlp_bias", c.ffn_bias);
  v.extra("expert_down_bias", c.expert_down_bias, false);
  v.one_of("hidden_act", c.act, kActNames);
  v.flag("gated_mlp", c.gated);
  v.extra("xielu", c.xielu, false);
  v.extra("sketch_bits", c.sketch_bits, 2, 2);
  v.flag("tie_word_embeddings", c.tied);
  v.extra("lm_head_bias", c.head_bias, false);
  v.number("dropout", c.dropout, 0);
  visit_moe_cpp_multipliers(v, c);
}

template <class Visitor, class Config>
void visit_moe_cpp_experts(Visitor& v, Config& c) {
  v.size("intermediate_size", c.dense_width, 0);
  v.size("moe_intermediate_size", c.expert_width, 0);
  v.size("n_shared_experts", c.shared_experts, 0);
  v.size("shared_expert_intermediate_size", c.shared_width, 0);
  v.flag("shared_expert_gate", c.shared_gate);
  v.extra("shared_expert_average", c.shared_average, false);
  v.extra("experts_held", c.experts_held, false);
  v.extra("weigh_expert_inputs", c.weigh_inputs, false);
  v.extra("shortcut_experts", c.shortcut, false);
  v.size("moe_every", c.moe_every, 1);
  v.size("first_k_dense_replace", c.dense_first, 0);
  v.layer_list("moe_layers", c.moe_layers);
  v.layer_list("hash_moe_layers", c.table_layers);
  v.recipe("recipe", c.routing.recipe);
  v.size("num_experts", c.routing.experts, 1);
  v.extra("zero_expert_num", c.routing.zero_experts, 0, 1);
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  v.optional("norm_topk_prob", c.routing.norm_topk_prob);
  v.optional("capacity_factor", c.routing.capacity_factor, 0);
  v.optional("capacity_factor_eval", c.routing.capacity_factor_eval, 0);
  v.optional("n_group", c.routing.expert_groups, 1);
  v.optional("topk_group", c.routing.groups_kept, 1);
  v.optional("routed_scaling_factor", c.routing.routed_scale, 0);
  v.stages("routing_stages", c.routing.stages);
  v.flag("router_noise", c.routing.noise);
  v.number("router_aux_loss_coef", c.routing.coef.balance, 0);
  v.number("router_z_loss_coef", c.routing.coef.z, 0);
  v.extra("router_device_loss_coef", c.routing.coef.device, 0, 0);
  v.extra("router_communication_loss_coef", c.routing.coef.communication, 0, 0);
  v.extra("router_importance_loss_coef", c.routing.coef.importance, 0, 0);
  v.extra("router_load_loss_coef", c.routing.coef.load, 0, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
}

// Everything a ModelConfig holds.
template <class Visitor, class Config>
void visit_moe_cpp(Visitor& v, Config& c) {
  visit_moe_cpp_widths(v, c);
  visit_moe_cpp_layers(v, c);
  visit_moe_cpp_experts(v, c);
  v.number("initializer_range", c.init.std, 0);
  v.number("initializer_cutoff", c.init.cut, 0);
  v.flag("init_scale_residual", c.init.scale_residual);
}

// transformers' keys; the extras at the end are ours, and transformers carries them along unread.
template <class Visitor, class Config>
void visit_olmoe(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("intermediate_size", c.expert_width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("num_key_value_heads", c.kv_heads, 1);
  v.size("num_experts", c.routing.experts, 1);
  v.size("num_experts_per_tok", c.routing.top_k, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("rms_norm_eps", c.norm_eps, 0);
  v.flag("attention_bias", c.attention_bias);
  v.flag("tie_word_embeddings", c.tied);
  v.one_of("hidden_act", c.act, kActNames);
  v.number("initializer_range", c.init.std, 0);
  v.extra_recipe("recipe", c.routing.recipe, "olmoe");
  v.extra("router_z_loss_coef", c.routing.coef.z, 0, 0);
  v.optional("router_balance_over", c.routing.balance_over, balance_over_names());
  v.extra("initializer_cutoff", c.init.cut, 0, 0);
  v.extra("init_scale_residual", c.init.scale_residual, false);
}

// What transformers' architecture has and ours has not must be switched off.
void refuse_switched_on(const JsonReader& reader, const ModelConfig& c) {
  reader.get<double>("attention_dropout", 0);  // part of its training only; there is none here
  if (reader.get<int64_t>("head_dim", c.head_width) != c.head_width)
    fail("{}: \"head_dim\" is {}; olmoe has hidden_size / num_attention_heads = {}", reader.where(),
         text_of(reader, "head_dim"), c.head_width);
}

}  // namespace

bool renormalises(std::string_view recipe) {
  const WeighStage& stage = find_recipe(recipe).train.weigh;
  const auto* weigh = std::get_if<ChosenScores>(&stage);
  if (std::holds_alternative<ScaledScores>(stage)) return true;
  return weigh != nullptr && weigh->renormalise != ChosenScores::Renormalise::never;
}

float read_coefficient(const JsonReader& reader, const char* key, double unit) {
  return static_cast<float>(unit * reader.get_in<double>(key, 0, FLT_MAX / unit));
}

void write_coefficient(Json& json, const char* key, float ours, double unit) {
  FieldWriter(json).number(key, ours, 0);
  const double coef = shortest_decimal(ours) / unit;
  json[key] = static_cast<float>(coef * unit) == ours ? coef : static_cast<double>(ours) / unit;
}

void write_token_ids(Json& json) {
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[key] = nullptr;
}

ModelConfig read_moe_cpp(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_moe_cpp(fields, c);
  c.rope_scaling = read_rope_scaling(reader);
  // Earlier versions said the first layer with a window.
  for (auto i = reader.get_in<int64_t>("max_window_layers", 0, kMaxLayers, 0);
       i > 0 && i < c.layers; ++i)
    c.window_layers.push_back(i);
  return c;
}

void write_moe_cpp(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_moe_cpp(fields, c);
  if (c.rope_scaling.kind != RopeScaling::Kind::none)
    json["rope_scaling"] = rope_scaling_json(c.rope_scaling);
}

// transformers' balance loss is K where ours is 1 (all choices are counted and not divided by K),
// so its coefficient is ours / K.
ModelConfig read_olmoe(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_olmoe(fields, c);
  if (c.width % c.heads != 0)
    fail("{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}",
         reader.where(), c.heads, c.width);
  c.head_width = c.width / c.heads;
  c.dense_width = c.expert_width;
  c.attention_out_bias = c.attention_bias;
  c.qk_norm = QkNorm::full;
  if (reader.has("clip_qkv"))
    c.qkv_clip = static_cast<float>(reader.get_in<double>("clip_qkv", FLT_MIN, FLT_MAX));
  read_rope(reader, c);
  c.routing.coef.balance =
      read_coefficient(reader, "router_aux_loss_coef", static_cast<double>(c.routing.top_k));
  if (const bool renormalise = reader.get<bool>("norm_topk_prob");
      renormalise != renormalises(c.routing.recipe))
    c.routing.norm_topk_prob = renormalise;
  refuse_switched_on(reader, c);
  return c;
}

void write_olmoe(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_olmoe(fields, c);
  write_rope(json, c);
  write_coefficient(json, "router_aux_loss_coef", c.routing.coef.balance,
                    static_cast<double>(c.routing.top_k));
  json["norm_topk_prob"] = c.routing.norm_topk_prob.value_or(renormalises(c.routing.recipe));
  json["attention_dropout"] = 0.0;
  json["clip_qkv"] = nullptr;
  if (c.qkv_clip > 0) fields.number("clip_qkv", c.qkv_clip, 0);
  json["output_router_logits"] = false;
  write_token_ids(json);
}

namespace {

constexpr const char* kIgnoredConfigKeys[] = {"_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_commit_hash",
                                              "_name_or_path",
                                              "architectures",
                                              "attn_implementation",
                                              "auto_map",
                                              "bad_words_ids",
                                              "begin_suppress_tokens",
                                              "bos_token_id",
                                              "cache_implementation",
                                              "chunk_size_feed_forward",
                                              "cross_attention_hidden_size",
                                              "decoder_start_token_id",
                                              "diversity_penalty",
                                              "do_sample",
                                              "dtype",
                                              "early_stopping",
                                              "encoder_no_repeat_ngram_size",
                                              "eos_token_id",
                                              "exponential_decay_length_penalty",
                                              "finetuning_task",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "id2label",
                                              "init_std",
                                              "is_decoder",
                                              "is_encoder_decoder",
                                              "is_llama_config",
                                              "label2id",
                                              "language_model_only",
                                              "length_penalty",
                                              "mamba_ssm_dtype",
                                              "max_length",
                                              "max_sequence_length",
                                              "min_length",
                                              "mtp_num_hidden_layers",
                                              "mtp_transformer_layers",
                                              "mtp_use_dedicated_embeddings",
                                              "n_ctx",
                                              "no_repeat_ngram_size",
                                              "num_beam_groups",
                                              "num_beams",
                                              "num_mtp_layers",
                                              "num_mtp_modules",
                                              "num_nextn_predict_layers",
                                              "num_return_sequences",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_router_logits",
                                              "output_scores",
                                              "pad_token_id",
                                              "prefix",
                                              "pretraining_tp",
                                              "problem_type",
                                              "pruned_heads",
                                              "remove_invalid_values",
                                              "repetition_penalty",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "sep_token_id",
                                              "suppress_tokens",
                                              "task_specific_params",
                                              "temperature",
                                              "tf_legacy_loss",
                                              "tie_encoder_decoder",
                                              "tokenizer_class",
                                              "top_k",
                                              "top_p",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers.js_config",
                                              "transformers_version",
                                              "typical_p",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "use_bfloat16",
                                              "use_cache",
                                              "use_mtp"};

}  // namespace

const std::vector<std::string>& ignored_config_keys() {
  static const std::vector<std::string> keys(std::begin(kIgnoredConfigKeys),
                                             std::end(kIgnoredConfigKeys));
  return keys;
}

}  // namespace moe
