// One list of fields for all that are built like Llama, with a row for what sets each family apart
// (hub/folder/families.h). A key whose absence would let the default of a class decide about the
// mathematics is needed, unless the family's own checkpoints were published before the key existed:
// then its absence means what there was before. What shows in the tensors (biases, widths of heads)
// is checked by them too.
#include "hub/folder/family_fields.h"

#include <algorithm>

#include "hub/folder/architectures.h"
#include "hub/folder/family_parts.h"

namespace moe {
namespace {

// Whether FFNs are clamped SwiGLUs, whatever "hidden_act" says, and whether experts have biases.
bool clamped(const Family& f) { return f.experts && f.experts->clamped; }
bool biased_experts(const Family& f) { return f.experts && f.experts->biased; }

template <class Visitor, class Config>
void visit_latents(Visitor& v, Config& c, const Family& f) {
  v.size("kv_lora_rank", c.latent.width, 1);
  v.size("qk_rope_head_dim", c.rotary_width, 2);
  if (f.minicpm) v.size_or("v_head_dim", c.latent.value_width, c.width / c.heads, 1);
  else v.size("v_head_dim", c.latent.value_width, 1);
}

void read_latents(const JsonReader& reader, ModelConfig& c, const Family& f) {
  FieldReader fields(reader);
  visit_latents(fields, c, f);
  if (!f.indexed && !f.may_lack_query_rank)
    need_to_stand(
        reader, "q_lora_rank",
        "the width of what queries are made of, or null where they are made of the token");
  if (f.indexed || f.longcat || reader.has("q_lora_rank"))
    fields.size("q_lora_rank", c.latent.query_width, 1);
  if (f.longcat) read_longcat_latents(c);
  if (f.indexed) read_indexers(reader, c, f);
  c.head_width = reader.get_in<int64_t>("qk_nope_head_dim", 1, kMaxSize) + c.rotary_width;
  // What else says the width of a head, or of a part of it.
  const auto check = [&](const char* key, int64_t width) {
    if (reader.get<int64_t>(key, width) != width)
      refuse(reader, key, "it does not go with the widths of the parts of a head");
  };
  check("qk_head_dim", c.head_width);
  switch (f.latent_head_dim) {
    case LatentHeadDim::turning: check("head_dim", c.rotary_width); break;
    case LatentHeadDim::whole: check("head_dim", c.head_width); break;
    case LatentHeadDim::linear:
    case LatentHeadDim::unread: stands(reader, "head_dim");
  }
  need_off(reader, "attention_bias", "biases of latent attention are not supported");
  need_off(reader, "mlp_bias", "biases of this family are not supported");
  stands(reader, "ep_size");  // of a way to run it
  if (!reader.get<bool>("rope_interleave", true))
    refuse(reader, "rope_interleave", "of this family only neighbours are turned, only true");
}

void write_latents(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_latents(fields, c, f);
  json["q_lora_rank"] = c.latent.query_width > 0 ? Json(c.latent.query_width) : Json();
  json["qk_nope_head_dim"] = c.head_width - c.rotary_width;
}

template <class Visitor, class Config>
void visit_sizes(Visitor& v, Config& c, const Family& f) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  const bool are_read = f.mixers->read_sizes != nullptr;  // the number of layers, a head's width
  if (are_read) v.size_or("num_hidden_layers", c.layers, c.layers, 1, kMaxLayers);
  else if (!f.longcat) v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  if (f.biases == FamilyBiases::flag_later || f.longcat)
    v.size_or("num_key_value_heads", c.kv_heads, c.heads, 1);
  else v.size("num_key_value_heads", c.kv_heads, 1);
  if (are_read) v.size_or("head_dim", c.head_width, c.head_width, 1);
  else if (f.head_width == HeadWidth::must) v.size("head_dim", c.head_width, 1);
  else if (!f.latent())
    v.size_or("head_dim", c.head_width, c.width % c.heads == 0 ? c.width / c.heads : 0, 1);
  v.size_by(f.context_key, f.other_context_key, c.context, 1);
  if (f.eps_key) v.number_by(f.eps_key, f.older_eps_key, c.norm_eps, 0);
  if (f.act_key && !clamped(f)) v.act(f.act_key, c.act);
  if (f.tied_unless_said) v.flag_or("tie_word_embeddings", c.tied, true);
  else if (f.longcat) v.flag_or("tie_word_embeddings", c.tied, false);
  else v.flag("tie_word_embeddings", c.tied);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  switch (f.biases) {
    case FamilyBiases::none:
    case FamilyBiases::qkv: return;
    case FamilyBiases::qkv_bias: return v.flag_or("qkv_bias", c.attention_bias, true);
    case FamilyBiases::qkv_flag:
    case FamilyBiases::flag: return v.flag("attention_bias", c.attention_bias);
    case FamilyBiases::flag_or_none: return v.flag_or("attention_bias", c.attention_bias, false);
    case FamilyBiases::flag_later:
      v.flag_or("attention_bias", c.attention_bias, false);
      return v.flag_or("mlp_bias", c.ffn_bias, false);
    case FamilyBiases::both:
      v.flag("attention_bias", c.attention_bias);
      return v.flag("mlp_bias", c.ffn_bias);
    case FamilyBiases::use_qkv: return v.flag_or("use_qkv_bias", c.attention_bias, false);
    case FamilyBiases::use_all: return v.flag("use_bias", c.attention_bias);
    case FamilyBiases::two_flags:
      v.flag_by("qkv_bias", "attention_bias", c.attention_bias);
      return v.flag_by("bias", "mlp_bias", c.attention_out_bias);
  }
}

// A.X K2's (transformers:axk2/modeling_axk2.py).
constexpr const char* kNormGate = "gated_norm_rank";

void read_norm_gates(const JsonReader& reader, ModelConfig& c) {
  c.norm_gate = reader.get_in<int64_t>(kNormGate, 1, kMaxSize);
  c.latent.query_both = true;
}

// gpt-oss's experts (transformers:gpt_oss/modeling_gpt_oss.py), and MiniMax-M3's FFNs; ops::Act has
// its two numbers.
constexpr double kSwigluAlpha = 1.702, kSwigluLimit = 7;

void read_clamped_swiglu(const JsonReader& reader, ModelConfig& c) {
  for (const auto& [key, known] :
       {std::pair{"swiglu_alpha", kSwigluAlpha}, {"swiglu_limit", kSwigluLimit}})
    if (reader.get<double>(key, known) != known)
      fail("{}: \"{}\" is {}; only {} is known here", reader.where(), key, text_of(reader, key),
           known);
  reader.get<std::string>("hidden_act", "silu");  // said, and not what its code does
  for (const char* key : {"initial_context_length", "experts_per_token"}) stands(reader, key);
  c.act = ops::Act::swiglu_oai;
}

void write_clamped_swiglu(Json& json) {
  json["hidden_act"] = "silu";
  json["swiglu_alpha"] = kSwigluAlpha;
  json["swiglu_limit"] = kSwigluLimit;
}

template <class Visitor, class Config>
void visit_multipliers(Visitor& v, Config& c, const Family& f) {
  v.number("embedding_multiplier", c.multipliers.embedding, 0);
  v.number("residual_multiplier", c.multipliers.residual, 0);
  v.number("attention_multiplier", c.multipliers.attention, 0);
  if (!f.logit_factor) v.number("logits_scaling", c.multipliers.logits, 0);
}

// Here logits are divided.
void read_logit_factor(const JsonReader& reader, ModelConfig& c, const char* key) {
  const double scale = reader.get_in<double>(key, 1 / FLT_MAX, 1 / FLT_MIN);
  c.multipliers.logits = static_cast<float>(1 / scale);
}

void write_logit_factor(Json& json, const ModelConfig& c, const char* key) {
  json[key] = 1 / static_cast<double>(c.multipliers.logits);
}

// Trinity's (transformers:afmoe/modeling_afmoe.py).
constexpr const char* kMup = "mup_enabled";

// Phi-3.5-MoE's (transformers:phimoe/modeling_phimoe.py).
constexpr const char* kHeadBias = "lm_head_bias";

void read_phimoe_parts(const JsonReader& reader, ModelConfig& c) {
  c.head_bias = reader.get<bool>(kHeadBias);
  if (reader.get<double>("hidden_dropout", 0) != 0)
    refuse(reader, "hidden_dropout", "dropout of this family is not supported, only 0");
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const int64_t original = c.rope_scaling.original_context;
  if (reader.has(kOriginal) && original > 0 && reader.get<int64_t>(kOriginal) != original)
    refuse(reader, kOriginal, "the rotary scaling says another; make them equal");
}

void read_keys(const JsonReader& reader, const Family& f) {
  for (const char* key : f.unread) stands(reader, key);
  for (const auto& [key, only] : f.keys) {
    if (!reader.has(key)) continue;
    const Json &said = reader.value(key), wanted = Json::parse(only);
    const bool same =
        said == wanted || (said.is_array() && !wanted.is_array() &&
                           std::all_of(said.begin(), said.end(),
                                       [&](const Json& of_layer) { return of_layer == wanted; }));
    if (!same) refuse(reader, key, fmt::format("only {} is of this family", only).c_str());
  }
}

constexpr float kUnsaidEps = 1e-5f;  // of norms whose epsilon no key says
constexpr const char *kRmsNormEps = "rms_norm_eps", *kHiddenAct = "hidden_act", *kXielu = "xielu";

// Biases, norms and what else of attention and FFNs is as the family has it.
void read_parts(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.layer_norms) c.norm = NormKind::layer;
  if (!f.eps_key) c.norm_eps = kUnsaidEps;
  if (f.either_norm && reader.has(kRmsNormEps)) {
    c.norm = NormKind::rms;
    FieldReader(reader).number(kRmsNormEps, c.norm_eps, 0);
  }
  c.norm_bias = f.layer_norms && f.norm_biases;
  c.norm_placement = f.placement;
  if (f.post_norm_key && !reader.get<bool>(f.post_norm_key)) c.norm_placement = NormPlacement::pre;
  c.moe_out_norm = f.moe_out_norm;
  c.norm_offset = f.norm_offset();
  c.norm_weights = f.norm_weights;
  if (f.clip_key) c.qkv_clip = read_cap(reader, f.clip_key);
  c.embedding_norm = f.nanochat;
  if (f.nanochat) {
    need_to_stand(reader, kLogitCap, "the number that logits are held below, or null");
    c.logit_cap = read_cap(reader, kLogitCap);
  }
  c.gated = !f.plain_ffn;
  if (f.relu2 && c.act != ops::Act::relu2)
    refuse(reader, "hidden_act", "only the square of ReLU is of this family, \"relu2\"");
  c.xielu = f.xielu;
  if (f.xielu && reader.get<std::string>(kHiddenAct) != kXielu)
    refuse(reader, kHiddenAct, "only xIELU is of this family, \"xielu\"");
  if (f.biases == FamilyBiases::qkv) c.attention_bias = true;
  if (f.biases == FamilyBiases::two_flags) c.ffn_bias = c.attention_out_bias;
  else c.attention_out_bias = f.out_bias() && c.attention_bias;
  if (f.biases == FamilyBiases::use_all) c.ffn_bias = c.attention_bias;
  c.qk_norm = f.qk_norm;
  if (f.qk_norm_flag && !reader.get<bool>("use_qk_norm")) c.qk_norm = QkNorm::none;
  c.qk_norm_turned = f.norm_turned;
  if (f.head_width_too && reader.get<int64_t>(f.head_width_too, c.head_width) != c.head_width)
    refuse(reader, f.head_width_too, "\"head_dim\" is another width");
  c.attention_sinks = f.sinks;
  c.attention_gate = f.attention_gate && (!f.gate_key || reader.get<bool>(f.gate_key));
  c.head_gates = f.head_gates && c.attention_gate;
  if (clamped(f)) read_clamped_swiglu(reader, c);
  if (biased_experts(f)) c.ffn_bias = true;
}

bool has_experts(const JsonReader& reader, const ModelConfig& c, const Family& f) {
  if (!f.experts) return false;
  const FamilyExperts& e = *f.experts;
  if (e.layers == MoeLayers::mixers) return !c.moe_layers.empty();
  if (e.or_shared_alone) {
    if (reader.get_in<int64_t>(e.count_key, 0, kMaxSize) > 0) return true;
    for (const char* key : {e.top_k_key, e.width_key, "router_aux_loss_coef"}) stands(reader, key);
    return false;
  }
  if (!e.switch_key || reader.get<bool>(e.switch_key)) return true;
  for (const char* key : {e.count_key, e.top_k_key, e.width_key}) stands(reader, key);
  return false;
}

bool is_dense(const ModelConfig& c, const Family& f) {
  return !f.experts || (f.experts->may_be_none() && c.moe_layer_count() == 0);
}

// How wide FFNs are of a model without experts.
void read_dense_width(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const bool shared = f.experts && f.experts->or_shared_alone;
  if (f.read_width) c.dense_width = f.read_width(reader);
  else
    FieldReader(reader).size(shared ? f.experts->shared_key : "intermediate_size", c.dense_width,
                             1);
  c.expert_width = c.dense_width;  // unused
}

void write_dense_width(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  fields.size("intermediate_size", c.dense_width, 1);
  if (f.write_width) f.write_width(json);
  if (!f.experts || !f.experts->or_shared_alone) return;
  fields.size(f.experts->shared_key, c.dense_width, 1);
  for (const char* key : {f.experts->count_key, f.experts->top_k_key}) json[key] = 0;
}

}  // namespace

ModelConfig read_family(const JsonReader& reader, const Family& f) {
  ModelConfig c;
  FieldReader fields(reader);
  if (f.mixers->read_sizes) f.mixers->read_sizes(reader, c);
  if (f.longcat) read_longcat_layers(reader, c);
  visit_sizes(fields, c, f);
  if (f.latent()) read_latents(reader, c, f);
  if (c.head_width == 0)
    fail(
        "{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}; then "
        "\"head_dim\" is needed",
        reader.where(), c.heads, c.width);
  read_parts(reader, c, f);
  if (f.mixers->read) f.mixers->read(reader, c);
  if (f.gemma != FamilyGemma::none) read_gemma(reader, c, f);
  const double share = read_rotary(reader, c, f);
  if (f.dense_windows) read_mlp_types(reader, c, *f.experts);
  read_windows(reader, c, f);
  read_windowed_turning(reader, c, f);
  if (f.gemma == FamilyGemma::gemma4) read_gemma4_layers(reader, c);
  if (f.mimo) read_mimo(reader, c);
  if (f.laguna) read_laguna(reader, c);
  if (f.blocks) read_blocks(reader, c);
  if (f.axk2) read_norm_gates(reader, c);
  read_frequencies(reader, c, f, share);
  if (f.llama4) read_llama4(reader, c);
  if (f.multipliers) visit_multipliers(fields, c, f);
  if (f.minicpm) read_minicpm(reader, c);
  if (f.logit_factor) read_logit_factor(reader, c, f.logit_factor);
  if (f.mup && reader.get<bool>(kMup)) c.multipliers.embedding = root_of_width(c);
  if (f.phimoe) read_phimoe_parts(reader, c);
  if (f.streams) read_streams(reader, c);
  visit_extras(fields, c);
  read_keys(reader, f);
  need_off(reader, "rope_interleaved",
           "rotary embeddings of neighbours are not supported, only of halves");
  need_off(reader, "use_mrope", "rotary embeddings of several axes are not supported");
  reader.get<double>("attention_dropout", 0);  // part of its training only; there is none here
  if (has_experts(reader, c, f)) read_experts(reader, c, f);
  else read_dense_width(reader, c, f);
  return c;
}

void write_family(Json& json, const ModelConfig& c, const Family& f) {
  FieldWriter fields(json);
  visit_sizes(fields, c, f);
  if (f.latent()) write_latents(json, c, f);
  if (f.indexed) write_indexers(json, c, f);
  if (f.streams) write_streams(json, c);
  if (f.multipliers) visit_multipliers(fields, c, f);
  if (f.minicpm) write_minicpm(json, c);
  if (f.logit_factor) write_logit_factor(json, c, f.logit_factor);
  if (f.mup) json[kMup] = c.multipliers.embedding != 1;
  if (f.gemma != FamilyGemma::none) write_gemma(json, c, f);
  if (f.mixers->write) f.mixers->write(json, c);
  if (clamped(f)) write_clamped_swiglu(json);
  if (f.xielu) json[kHiddenAct] = kXielu;
  if (f.phimoe) json[kHeadBias] = c.head_bias;
  if (f.gate_key) json[f.gate_key] = c.attention_gate;
  if (f.post_norm_key) json[f.post_norm_key] = c.norm_placement == NormPlacement::both;
  if (f.nanochat) write_cap(json, kLogitCap, c.logit_cap);
  if (f.clip_key) write_cap(json, f.clip_key, c.qkv_clip);
  if (f.qk_norm_flag) json["use_qk_norm"] = c.qk_norm != QkNorm::none;
  visit_extras(fields, c);
  write_rotary(json, c, f);
  write_windows(json, c, f);
  if (f.llama4) write_llama4(json, c);
  if (f.dense_windows) write_dense_pattern(json, c);
  if (f.mimo) write_mimo(json, c);
  if (f.laguna) write_laguna(json, c);
  if (f.blocks) write_blocks(json, c);
  if (f.axk2) json[kNormGate] = c.norm_gate;
  if (f.either_norm) {
    json[kRmsNormEps] = nullptr;
    if (c.norm == NormKind::rms) fields.number(kRmsNormEps, c.norm_eps, 0);
  }
  json["attention_dropout"] = 0.0;
  write_token_ids(json);
  if (f.needs_begin) json.erase("bos_token_id");
  if (f.experts && f.experts->switch_key) json[f.experts->switch_key] = c.moe_layer_count() > 0;
  if (is_dense(c, f)) write_dense_width(json, c, f);
  else write_experts(json, c, f);
}

namespace {

std::string why_not_norms(const ModelConfig& c, const Family& f) {
  if (f.layer_norms && !(f.either_norm && c.norm == NormKind::rms))
    return c.norm == NormKind::layer && c.norm_bias == f.norm_biases &&
                   c.norm_placement == f.placement
               ? ""
           : f.norm_biases
               ? "its norms are not LayerNorms with biases before each sublayer"
               : "its norms are not LayerNorms without biases, each before attention and an FFN";
  if (c.norm == NormKind::rms && (c.norm_placement == f.placement ||
                                  (f.post_norm_key && c.norm_placement == NormPlacement::pre)))
    return "";
  return f.placement == NormPlacement::pre ? "its norms are not RMSNorms before each sublayer"
         : f.placement == NormPlacement::both
             ? "its norms are not RMSNorms before and behind each sublayer"
         : f.placement == NormPlacement::carried
             ? "its residuals are not what RMSNorms before each sublayer give"
             : "its norms are not RMSNorms of what each sublayer gives";
}

std::string why_not_biases(const ModelConfig& c, const Family& f) {
  if (f.biases == FamilyBiases::none && (c.attention_bias || c.attention_out_bias))
    return "its attention has biases";
  if (f.biases == FamilyBiases::two_flags)
    return c.ffn_bias == c.attention_out_bias
               ? ""
               : "of FFNs and the projection after attention one has biases and one has none";
  const bool out = f.out_bias() && c.attention_bias;
  if (c.attention_out_bias != out) return "other projections of its attention have biases";
  if (f.biases == FamilyBiases::qkv && !c.attention_bias)
    return "queries, keys and values have no biases";
  if (f.biases == FamilyBiases::use_all)
    return c.ffn_bias != c.attention_bias ? "some projections have biases and some have none" : "";
  const bool said = f.biases == FamilyBiases::flag_later || f.biases == FamilyBiases::both;
  if (c.ffn_bias && !said && !biased_experts(f)) return "its FFNs have biases";
  return !c.ffn_bias && biased_experts(f) ? "its experts have no biases" : "";
}

// What the family's models may have of the parts that few have.
KnownParts parts_of_family(const ModelConfig& c, const Family& f) {
  KnownParts known = f.mixers->known;
  known.gemma4 |= f.gemma == FamilyGemma::gemma4;
  known.head_bias |= f.phimoe;
  known.longrope |= f.phimoe || f.longrope;
  known.query_growth |= c.query_growth.where_still ? f.llama4 : f.query_growth;
  known.caps |= f.gemma == FamilyGemma::gemma2;
  known.nanochat |= f.nanochat;
  known.bare_norms |= !f.norm_weights;
  known.moe_out_norm |= f.moe_out_norm;
  known.shared_average |= f.experts && f.experts->scores_said;
  known.xielu |= f.xielu;
  known.head_gates |= f.head_gates || f.laguna;
  known.streams |= f.streams;
  known.llama4 |= f.llama4;
  known.clips |= f.clip_key != nullptr;
  known.values_apart |= f.mimo;
  known.kv_heads_apart |= f.mimo;
  known.heads_apart |= f.laguna;
  known.softplus_gates |= f.laguna;
  known.parts_apart |= f.window_rope == WindowRope::parts;
  known.norm_gates |= f.axk2;
  known.longcat |= f.longcat;
  known.blocks |= f.blocks;
  return known;
}

}  // namespace

std::string why_not_family(const ModelConfig& c, const Family& f) {
  if (const std::string reason = why_not_norms(c, f); !reason.empty()) return reason;
  if (c.positions != Positions::rope) return "its positions are learned";
  if (f.head_width == HeadWidth::even && c.q_width() != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.latent.present() != f.latent())
    return f.latent() ? "its attention is not latent" : "its attention is latent";
  if (const std::string reason = why_not_indexers(c, f); !reason.empty()) return reason;
  if (const std::string reason = why_not_streams(c, f); !reason.empty()) return reason;
  if (f.moe_out_norm && !c.moe_out_norm) return "what its experts give is not normalised";
  if (!f.norm_weights && c.norm_weights) return "its norms have weights";
  if (!f.eps_key && c.norm_eps != kUnsaidEps) return "its norms have another epsilon than 1e-5";
  if (f.nanochat && !c.embedding_norm) return "its embedding is not normalised";
  if (const std::string reason = what_few_have(c, parts_of_family(c, f)); !reason.empty())
    return reason;
  for (const std::string& reason :
       {why_not_mixers(c, f), why_not_windows(c, f), why_not_rotary(c, f)})
    if (!reason.empty()) return reason;
  // Multipliers that do nothing can be said by a family that has them; of the scores it is one of
  // them.
  if (f.gemma != FamilyGemma::none) {
    if (const std::string reason = why_not_gemma(c, f); !reason.empty()) return reason;
  } else if (f.minicpm) {
    if (const std::string reason = why_not_minicpm(c); !reason.empty()) return reason;
  } else if (!f.multipliers && !f.mixers->multipliers) {
    Multipliers others = c.multipliers;
    if (f.logit_factor) others.logits = 1;
    if (f.mup && others.embedding == root_of_width(c)) others.embedding = 1;
    if (!others.none()) return "it has multipliers";
  }
  if (f.multipliers && c.multipliers.attention == 0) return "its scores have no multiplier";
  if (c.gated == f.plain_ffn) return c.gated ? "its FFNs have gates" : "its FFNs have no gates";
  if (f.relu2 && c.act != ops::Act::relu2) return "its activation is no square of ReLU";
  if (f.xielu && !c.xielu) return "its activation is no xIELU";
  if (c.dropout != 0) return "it has dropout";
  if (c.qk_norm != f.qk_norm && !(f.qk_norm_flag && c.qk_norm == QkNorm::none))
    return f.qk_norm == QkNorm::none   ? "queries and keys are normalised"
           : f.qk_norm == QkNorm::head ? "queries and keys are not normalised for each head"
           : f.qk_norm == QkNorm::bare ? "queries and keys are not normalised without weights"
                                       : "queries and keys are not normalised over all heads";
  if (const std::string reason = why_not_biases(c, f); !reason.empty()) return reason;
  if ((c.act == ops::Act::swiglu_oai) != clamped(f))
    return clamped(f) ? "its FFNs are no clamped SwiGLU" : "its FFNs are clamped SwiGLUs";
  if (c.attention_sinks != f.sinks)
    return f.sinks ? "its attention has no sinks" : "its attention has sinks";
  if (f.silu && c.act != ops::Act::silu) return "its activation is no SiLU";
  if (f.axk2 && (c.norm_gate == 0 || !c.latent.query_both))
    return "no gates stand behind its norms, or its queries are made of latents on one side of one";
  if (f.laguna && !c.gate_softplus) return "gates of its attention are sigmoids";
  if (f.mimo)
    if (const std::string reason = why_not_mimo(c); !reason.empty()) return reason;
  if (is_dense(c, f)) return c.moe_layer_count() > 0 ? "some of its layers route" : "";
  if (c.expert_down_bias) return "its experts have biases";
  return why_not_experts(c, f);
}

}  // namespace moe
