// The keys of GPT-NeoX (transformers:gpt_neox/configuration_gpt_neox.py, modeling_gpt_neox.py) and
// of Phi (phi/configuration_phi.py, modeling_phi.py): LayerNorms with biases, FFNs without gates, a
// part of each head that turns, and attention and FFN beside one another.
#include <optional>

#include "hub/folder/architectures.h"
#include "hub/folder/family_fields.h"
#include "hub/folder/family_parts.h"
#include "hub/folder/rope_fields.h"

namespace moe {
namespace {

constexpr const char *kNeoxBase = "rotary_emb_base", *kNeoxShare = "rotary_pct",
                     *kNewerBase = "rope_theta", *kNewerShare = "partial_rotary_factor",
                     *kNewerRope = "rope_parameters", *kNeoxBiases = "attention_bias",
                     *kNeoxBeside = "use_parallel_residual", *kPhiKvHeads = "num_key_value_heads";

template <class Visitor, class Config>
void visit_neox_sizes(Visitor& v, Config& c) {
  v.size("vocab_size", c.vocab, 1);
  v.size("hidden_size", c.width, 1);
  v.size("num_hidden_layers", c.layers, 1, kMaxLayers);
  v.size("num_attention_heads", c.heads, 1);
  v.size("intermediate_size", c.dense_width, 1);
  v.size("max_position_embeddings", c.context, 1);
  v.number("layer_norm_eps", c.norm_eps, 0);
  v.act("hidden_act", c.act);
  v.number_or("initializer_range", c.init.std, 0.02f, 0);
  v.flag("tie_word_embeddings", c.tied);
  visit_extras(v, c);
}

ModelConfig read_neox_parts(const JsonReader& reader) {
  ModelConfig c;
  FieldReader fields(reader);
  visit_neox_sizes(fields, c);
  if (c.width % c.heads != 0)
    fail("{}: \"num_attention_heads\" is {}, which does not divide \"hidden_size\" {}",
         reader.where(), c.heads, c.width);
  c.kv_heads = c.heads;
  c.head_width = c.width / c.heads;
  c.expert_width = c.dense_width;  // unused
  c.norm = NormKind::layer;
  c.norm_bias = c.ffn_bias = true;
  c.gated = false;
  // Parts of its training only; there are none here.
  for (const char* key : {"attention_dropout", "attention_probs_dropout_prob", "hidden_dropout",
                          "hidden_dropout_prob", "classifier_dropout", "resid_pdrop", "embd_pdrop"})
    stands(reader, key);
  return c;
}

void read_neox_share(const JsonReader& reader, ModelConfig& c, double share) {
  c.rotary_width = static_cast<int64_t>(static_cast<double>(c.head_width) * share);
  if (c.rotary_width < 2)
    fail("{}: {} of each head turns; of a head of {} no pair would", reader.where(), share,
         c.head_width);
  if (c.rotary_width == c.head_width) c.rotary_width = 0;
}

double neox_share(const ModelConfig& c) {
  return c.rotary_width > 0 ? share_of_head(c.rotary_width, c.head_width) : 1;
}

// What its published configs call otherwise than others do, who later writes both.
void read_neox_rope(const JsonReader& reader, ModelConfig& c) {
  const bool newer = reader.has(kNewerRope),
             shared =
                 reader.has(kNewerShare) || (newer && reader.object(kNewerRope).has(kNewerShare));
  const double share =
      shared ? read_rotary_share(reader, std::nullopt) : reader.get_in<double>(kNeoxShare, 0, 1);
  if (reader.get<double>(kNeoxShare, share) != share)
    refuse(reader, kNeoxShare, "\"partial_rotary_factor\" says another share; make them equal");
  read_neox_share(reader, c, share);
  if (newer || reader.has(kNewerBase)) {
    read_rope(reader, c, share);
    if (reader.has(kNeoxBase) && static_cast<float>(reader.get<double>(kNeoxBase)) != c.rope_theta)
      refuse(reader, kNeoxBase, "\"rope_theta\" says another base; make them equal");
    return;
  }
  c.rope_theta = static_cast<float>(reader.get_in<double>(kNeoxBase, FLT_MIN, FLT_MAX));
  c.rope_scaling = read_rope_scaling(reader, share);
  c.rope_scaling.score_mscale = 0;
}

// What neither can say; `known`: what it can say that few can.
std::string why_not_neox_parts(const ModelConfig& c, KnownParts known) {
  if (c.moe_layer_count() > 0) return "some of its layers route";
  if (std::string has = what_few_have(c, known); !has.empty()) return has;
  if (c.norm != NormKind::layer || !c.norm_bias || c.norm_offset)
    return "its norms are not LayerNorms with biases";
  if (c.positions != Positions::rope) return "its positions are learned";
  if (!c.nope_layers.empty()) return "in some of its layers nothing turns";
  if (c.attention_window > 0) return "its attention has a window";
  if (c.latent.present()) return "its attention is latent";
  if (!c.multipliers.none()) return "it has multipliers";
  if (c.attention_sinks || c.attention_gate) return "its attention has sinks or a gate";
  if (c.has_states()) return "some of its layers have no attention";
  if (c.qk_norm != QkNorm::none) return "queries and keys are normalised";
  if (c.head_width * c.heads != c.width)
    return fmt::format("{} heads of width {} do not make up the width {}", c.heads, c.head_width,
                       c.width);
  if (c.gated) return "its FFNs have gates";
  if (!c.ffn_bias) return "its FFNs have no biases";
  return c.dropout != 0 ? "it has dropout" : "";
}

}  // namespace

// Its first configs were published before the keys of biases and of what stands beside what
// (EleutherAI/gpt-neox-20b).
ModelConfig read_gpt_neox(const JsonReader& reader) {
  ModelConfig c = read_neox_parts(reader);
  c.attention_bias = c.attention_out_bias = reader.get<bool>(kNeoxBiases, true);
  c.norm_placement =
      reader.get<bool>(kNeoxBeside, true) ? NormPlacement::beside_each : NormPlacement::pre;
  read_neox_rope(reader, c);
  return c;
}

// In the words of its published configs, and in those that transformers 5 writes.
void write_gpt_neox(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_neox_sizes(fields, c);
  json[kNeoxBiases] = c.attention_bias;
  json[kNeoxBeside] = c.norm_placement == NormPlacement::beside_each;
  const double share = neox_share(c);
  write_rope(json, c, share);
  json[kNewerRope][kNewerShare] = json[kNeoxShare] = share;
  fields.number(kNeoxBase, c.rope_theta, 0);
  for (const char* key : {kNewerBase, kNewerShare}) json.erase(key);
  for (const char* key : {"attention_dropout", "hidden_dropout"}) json[key] = 0.0;
  write_token_ids(json);
}

std::string why_not_gpt_neox(const ModelConfig& c) {
  if (c.norm_placement != NormPlacement::beside_each && c.norm_placement != NormPlacement::pre)
    return "its norms do not stand each before its sublayer";
  if (std::string reason = why_not_neox_parts(c, {}); !reason.empty()) return reason;
  if (c.attention_bias != c.attention_out_bias)
    return "some of the attention's projections have biases and some have none";
  return c.kv_heads != c.heads ? "heads share keys and values" : "";
}

ModelConfig read_phi(const JsonReader& reader) {
  ModelConfig c = read_neox_parts(reader);
  FieldReader(reader).size_or(kPhiKvHeads, c.kv_heads, c.heads, 1);
  c.attention_bias = c.attention_out_bias = c.head_bias = true;
  c.norm_placement = NormPlacement::beside;
  need_off(reader, "qk_layernorm", "LayerNorms of queries and keys are not supported, only false");
  const double share = read_rotary_share(reader, 0.5);
  read_neox_share(reader, c, share);
  read_rope(reader, c, share);
  return c;
}

void write_phi(Json& json, const ModelConfig& c) {
  FieldWriter fields(json);
  visit_neox_sizes(fields, c);
  fields.size(kPhiKvHeads, c.kv_heads, 1);
  json["qk_layernorm"] = false;
  if (c.act == ops::Act::gelu_tanh) json["hidden_act"] = "gelu_new";  // as its class has it
  const double share = neox_share(c);
  write_rope(json, c, share);
  json[kNewerRope][kNewerShare] = json[kNewerShare] = share;  // where nothing is said half turns
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) json[key] = 0.0;
  write_token_ids(json);
}

std::string why_not_phi(const ModelConfig& c) {
  if (c.norm_placement != NormPlacement::beside)
    return "one norm does not stand before both sublayers";
  if (std::string reason = why_not_neox_parts(c, {.head_bias = true}); !reason.empty())
    return reason;
  if (!c.attention_bias || !c.attention_out_bias) return "its attention has no biases";
  return !c.head_bias ? "its head has no bias" : "";
}

}  // namespace moe
